"""Files beside a launch command, given with it: they are found by name, and no other file is opened."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from meshwright.app.base.documents import MAX_DEPTH, parse_document
from meshwright.costmodels.errors import InvalidInputError

_TOML_SECTION = re.compile(r"^[ \t]*\[[A-Za-z_][\w.]*\][ \t]*(?:#.*)?$", re.MULTILINE)
LONGEST_CONFIG = 200_000
"""Characters of a TOML file that are read."""
_TOML_DEPTH = 500
"""Opening brackets that a TOML file may have: its parser is recursive."""
_SCRIPTS = ("launch.sh", "job.sbatch", "run.sh", "train.sh", "serve.sh")
_MANIFESTS = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml", "deployment.yaml")
"""Names of the script of a folder, the first of them that is there."""
_SCRIPT_ENDS = (".sh", ".sbatch", ".slurm", ".bash", ".job")
_CONFIG_ENDS = (".toml", ".yaml", ".yml", ".json")
READ_ENDS = (*_SCRIPT_ENDS, *_CONFIG_ENDS, ".py")
"""Ends of the names of files that say something of a run."""


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """Texts of files by their names."""

    texts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def named(self, path: str) -> str | None:
        """Return the text of a file that a command names; folders before its name are not looked at."""
        plain = path.removeprefix("./")
        if plain in self.texts:
            return self.texts[plain]
        last = PurePosixPath(path).name
        return next((text for name, text in self.texts.items() if PurePosixPath(name).name == last), None)

    def required(self, path: str, *, flag: str) -> str:
        """Return the text of a file that a command names; raises InvalidInputError where it is not among these."""
        found = self.named(path)
        if found is None:
            raise InvalidInputError(
                "the command reads a file that was not given",
                given=f"{flag} {path}",
                allowed=", ".join(sorted(self.texts)) or "no files were given",
                remedy="give it by --with FILE, or put it into one folder with the command's script, and give the folder",
            )
        return found

    def beside(self, more: Mapping[str, str]) -> LaunchFiles:
        """Return these and more."""
        return LaunchFiles({**self.texts, **more})

    def main(self) -> str:
        """Return the text that starts the run: a script, else the one configuration.

        Raises InvalidInputError where it can't be told which one that is.
        """
        names = sorted(self.texts)
        scripts = [name for name in names if name.endswith(_SCRIPT_ENDS)]
        for wanted in _SCRIPTS:
            if wanted in scripts:
                return self.texts[wanted]
        configs = [name for name in names if name.endswith(_CONFIG_ENDS)]
        for wanted in () if scripts else _MANIFESTS:
            if wanted in configs:
                return self.texts[wanted]
        found = scripts or configs
        if len(found) != 1:
            raise InvalidInputError(
                "it can't be told which of the files starts the run",
                given=", ".join(found) or "no script and no configuration",
                allowed=f"one script ({', '.join(_SCRIPT_ENDS)}), or one configuration ({', '.join(_CONFIG_ENDS)})",
                remedy=f"name the script {_SCRIPTS[0]}",
            )
        return self.texts[found[0]]


NO_FILES = LaunchFiles()

_USUAL_NAME = re.compile(r"(?:zero|stage|z)[-_]?([123])(?!\d)")


@dataclass(frozen=True, slots=True)
class UsualConfig:
    """What the name of a configuration of DeepSpeed says: its stage, and which state is on the host."""

    stage: int
    offloaded: Mapping[str, str] | None


def by_usual_name(path: str) -> UsualConfig | None:
    """Return what the name of a configuration says, of names that recipes share (zero3.yaml, ds_z3_offload.json)."""
    name = PurePosixPath(path).name.casefold()
    found = _USUAL_NAME.search(name)
    if found is None:
        return None
    stage = int(found[1])
    on_host = {"offload_optimizer_device": "cpu"} | ({"offload_param_device": "cpu"} if stage == 3 else {})
    return UsualConfig(stage, on_host if "offload" in name else None)


def config_of(text: str) -> Mapping[str, Any] | None:
    """Return what a text in TOML, JSON or YAML holds, where it is such a file and no command.

    Raises InvalidInputError for one that can't be read.
    """
    begin = text.lstrip("\ufeff \t\r\n")
    if begin.startswith("{"):
        return _object(parse_document(text.encode(), what="configuration"))
    if _TOML_SECTION.search(text) and not begin.startswith("#!"):
        return _toml(text)
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if re.match(r"[A-Za-z_][\w.-]*:(?:\s|$)|---\s*$", first):
        return _object(parse_document(text.encode(), what="configuration"))
    return None


_MOST_DOCUMENTS = 200
_NEXT_DOCUMENT = re.compile(r"^---[ \t]*(?:#.*)?\r?$", re.MULTILINE)


def documents_of(text: str) -> list[Mapping[str, Any]]:
    """Return what a text holds: several documents of YAML, or the one of `config_of`; empty where it is a command.

    Raises InvalidInputError for one that can't be read.
    """
    if _NEXT_DOCUMENT.search(text) is None:
        found = config_of(text)
        return [] if found is None else [found]
    # A script may hold a line of three hyphens in a here-document; a file of documents begins with a key.
    parts = _NEXT_DOCUMENT.split(text, maxsplit=_MOST_DOCUMENTS)
    if len(parts) > _MOST_DOCUMENTS:
        raise InvalidInputError("the file holds too many documents", allowed=f"{_MOST_DOCUMENTS}")
    documents = []
    for part in parts:
        if not any(line.strip() and not line.lstrip().startswith("#") for line in part.splitlines()):
            continue
        found = config_of(part)
        if found is None:
            return []
        documents.append(found)
    return documents


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise InvalidInputError("the configuration holds no keys", given=type(found).__name__, allowed="keys and values")
    return found


def _toml(text: str) -> Mapping[str, Any]:
    if len(text) > LONGEST_CONFIG:
        raise InvalidInputError("the configuration is too long", given=f"{len(text):,} characters")
    if text.count("[") > _TOML_DEPTH or text.count("{") > _TOML_DEPTH or max(map(_dots, text.splitlines())) > MAX_DEPTH:
        raise InvalidInputError("the configuration is nested too deep", allowed=f"{MAX_DEPTH} levels")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InvalidInputError("the configuration is not valid TOML", given=str(error)[:200]) from None


def _dots(line: str) -> int:
    return line.split("=", maxsplit=1)[0].count(".")


def words_of_config(document: Mapping[str, Any], *, into: str = "") -> list[str]:
    """Return the keys of a configuration as flags, ``--section.key=value``, in the order of the file; lists as their values
    with blanks between them."""
    return [f"--{into}{name}={value}" for name, value in _flat(document)]


def _flat(document: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{begin}{key}.")
        elif value is None:
            continue
        elif isinstance(value, bool):
            yield f"{begin}{key}", str(value).casefold()
        elif isinstance(value, list):
            yield f"{begin}{key}", " ".join(_member(each) for each in value)
        else:
            yield f"{begin}{key}", str(value)


def _member(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, Mapping) else str(value)
