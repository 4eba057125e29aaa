"""The launcher of a command, found by the words that start it; what stands before them wraps it, what follows are its flags.

A command, or a script around one, is a stranger's text: it is split into words, never run, and nothing that it names is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.launching.launchers import nemo
from meshwright.app.launching.launchers.recipes import read_recipe
from meshwright.app.launching.launchers.table import FLAGS, SERVING, STARTS, TRAINING, launchers_by_key
from meshwright.app.launching.parts.flag import FlagTable, ParsedCommand
from meshwright.app.launching.parts.launch_files import NO_FILES, LaunchFiles, config_of, documents_of, words_of_config
from meshwright.app.launching.parts.serving import LaunchFlags
from meshwright.app.launching.parts.start import Start, world_of_starter
from meshwright.app.launching.parts.stated import Stated, StatedServer, StatedTraining
from meshwright.app.launching.reading.manifests import manifest_of
from meshwright.app.launching.reading.script import Script, read_commands, read_script
from meshwright.app.launching.reading.wrappers import assigned
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS

_NO_LAUNCHERS = frozenset(
    (
        *("if", "elif", "while", "until", "for", "case", "[", "[[", "test", "echo", "printf", "cat", "ls", "cp", "cd"),
        *(
            "pip",
            "pip3",
            "apt-get",
            "apt",
            "pkill",
            "killall",
            "kill",
            "which",
            "command",
            "git",
            "grep",
            "tail",
            "curl",
            "wget",
        ),
        *(
            "chmod",
            "mkdir",
            "rm",
            "hf",
            "huggingface-cli",
            "sleep",
            "trap",
            "exit",
            "return",
            "source",
            ".",
            "module",
            "ulimit",
        ),
        *(
            "fi",
            "done",
            "esac",
            "then",
            "else",
            "do",
            "{",
            "}",
            "let",
            "read",
            "wait",
            "pushd",
            "popd",
            "tee",
            "date",
            "hostname",
        ),
    )
)
"""First words of commands that name a launcher's file without starting it, or start none."""


EXAMPLE = "meshwright explain --gpus 8xH100 --isl 2000 --osl 300 --rate 4 -- vllm serve Qwen/Qwen3-8B -tp 4"


_KEYS_OF_RECIPES = ("actor_rollout_ref", "policy")
_CONFIGS, _OF_SERVERS = launchers_by_key(TRAINING), launchers_by_key(SERVING)
"""Keys by which a configuration that was given alone is known, and the file of a server's flags."""


def read_command(text: str, files: LaunchFiles = NO_FILES) -> Stated:
    """Return what a launch command, a script around it or a launcher's configuration states.

    ``files`` are those beside it. Raises InvalidInputError for one of no launcher that is known, or one that can't be read.
    """
    if nemo.is_script_of_nemo(text):
        return nemo.read_run(Start((_SCRIPT,), files=files.beside({_SCRIPT: text})))
    documents = documents_of(text)
    manifest = manifest_of(documents)
    if manifest is not None:
        files = files.beside(manifest.files)
        script = (
            read_commands(manifest.commands, files, manifest.job)
            if manifest.script is None
            else replace(read_script(manifest.script, files), job=manifest.job)
        )
    elif documents:
        return _configured(documents[0], files)
    else:
        script = read_script(text, files)
    files = files.beside(script.files)
    for words in script.commands:
        if words[0] in _NO_LAUNCHERS:
            continue
        recipe = _recipe_of(words)
        if recipe is not None:
            trained = read_recipe(_start(recipe, script, files), recipe.launcher)
            return replace(trained, notes=(*script.notes, *trained.notes), job=script.job)
        program = _program_of(words, files)
        if program is None:
            continue
        if program.launcher in SERVING:
            server = _server(program.launcher, program.before, program.own, files)
            return replace(server, notes=(*script.notes, *server.notes), job=script.job)
        trained = _trained(program.launcher, _start(program, script, files))
        return replace(trained, notes=(*script.notes, *trained.notes), job=script.job)
    raise _unknown(script)


def _start(program: _LaunchedProgram, script: Script, files: LaunchFiles) -> Start:
    environment = {**script.variables, **assigned(program.before)}
    world = world_of_starter(program.before, environment) or (None if script.job is None else script.job.ranks)
    return Start(program.own, program.before, world, environment, files, program=program.name)


def _trained(launcher: Launcher, start: Start) -> StatedTraining:
    read = TRAINING[launcher].read
    assert read is not None, "a launcher that is known by words or keys has a reader"
    return read(start)


_MOST_NAMED = 4
_SCRIPT = "nemo_train.py"
"""The name of a script that was given alone."""


def _unknown(script: Script) -> InvalidInputError:
    """The error of a script that starts no launcher: the commands that might have, each with its line."""
    met = [
        (line, " ".join(words[:4])[:80])
        for words, line in zip(script.commands, script.lines, strict=True)
        if words[0] not in _NO_LAUNCHERS and not (words[0].isidentifier() and len(words) == 1)
    ]
    where = f" (line {', '.join(str(line) for line, _ in met[-_MOST_NAMED:])})" if met and script.lines[-1] > 1 else ""
    return InvalidInputError(
        f"this is no launch command that is known{where}",
        given="; ".join(words for _, words in met[-_MOST_NAMED:]) or "nothing that starts a program",
        allowed=", ".join(" ".join(starts[0]) for starts in STARTS.values()),
        remedy=f"as in: {EXAMPLE}",
    )


def _configured(document: Mapping[str, Any], files: LaunchFiles) -> Stated:
    """The run of a configuration that was given without a command."""
    if any(isinstance(document.get(key), Mapping) for key in _KEYS_OF_RECIPES) or _is_megatron_recipe(document):
        return read_recipe(Start(files=files, document=document))
    for key, launcher in _CONFIGS.items():
        if key in document:
            return _trained(launcher, Start(files=files, document=document))
    keys = {str(key).replace("_", "-") for key in document}
    for key, launcher in _OF_SERVERS.items():
        if key in keys:
            given = files.beside({_GIVEN: json.dumps(document)})
            return _server(launcher, (), ("--config", _GIVEN), given)
    raise InvalidInputError(
        "this is no configuration of a launcher that is known",
        given=", ".join(map(str, [*document][:6])) or "no keys",
        allowed=f"a configuration with one of the keys {', '.join(_CONFIGS)}, or a launch command",
    )


_GIVEN = "the configuration"


def _is_megatron_recipe(document: Mapping[str, Any]) -> bool:
    """True of configurations of NeMo and Megatron-Bridge, whose model has Megatron-Core's degrees."""
    model = document.get("model")
    return isinstance(model, Mapping) and "tensor_model_parallel_size" in model


@dataclass(frozen=True, slots=True)
class _LaunchedProgram:
    """A launcher with the words before it and its own; its name is the last of the words that start it, or its script."""

    launcher: Launcher
    before: Sequence[str]
    own: Sequence[str]
    name: str


def _recipe_of(words: Sequence[str]) -> _LaunchedProgram | None:
    """The launcher that trains what a recipe says, where a command starts one."""
    for launcher, each in TRAINING.items():
        for start in each.recipes:
            place = _place_of(start, words)
            if place is not None:
                # What stands before the keys of a recipe is all in front of it, its own name too.
                end = place + len(start)
                return _LaunchedProgram(launcher, words[:end], words[end:], words[end - 1])
    return None


def _program_of(words: Sequence[str], files: LaunchFiles) -> _LaunchedProgram | None:
    """The launcher that a command starts: by its own words, else by the arguments of the script that is started."""
    for launcher, starts in STARTS.items():
        for start in starts:
            place = _place_of(start, words)
            if place is not None:
                return _LaunchedProgram(launcher, words[:place], words[place + len(start) :], start[-1])
    script = _place_of_script(words)
    if script is None:
        return None
    before, own, name = words[:script], words[script + 1 :], words[script]
    if nemo.script_of_nemo(words[script], files) is not None:
        return _LaunchedProgram(Launcher.NEMO, before, words[script:], name)
    names = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in own if word.startswith("--")}
    for launcher, each in TRAINING.items():
        if names & each.arguments:
            return _LaunchedProgram(launcher, before, own, name)
    by_file = _launcher_of_settings(own, files)
    if by_file is not None:
        return _LaunchedProgram(by_file, before, own, name)
    return _LaunchedProgram(Launcher.DEEPSPEED, before, own, name) if _place_of(("deepspeed",), before) is not None else None


def _place_of_script(words: Sequence[str]) -> int | None:
    """The place of the script, or of the module behind -m, that a command starts."""
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return place
        if word == "-m" and place > 0 and words[place - 1].rpartition("/")[2].startswith(("python", "torchrun")):
            following = words[place + 1] if place + 1 < len(words) else ""
            if following not in _MODULES_THAT_START:
                return place + 1 if following else None
        if word in ("-m", "--module") and any(
            each.endswith("torchrun") or each in _MODULES_THAT_START for each in words[:place]
        ):
            return place + 1 if place + 1 < len(words) else None
    return None


_MODULES_THAT_START = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner")


def _launcher_of_settings(own: Sequence[str], files: LaunchFiles) -> Launcher | None:
    """The launcher of a script whose arguments are in a file, by the keys of that file."""
    named = own[0] if own and own[0].endswith((".yaml", ".yml")) else None
    if named is None and "--config" in own[:-1]:
        named = own[list(own).index("--config") + 1]
    text = None if named is None else files.named(named)
    document = None if text is None else config_of(text)
    if document is None:
        return None
    return next((launcher for key, launcher in _CONFIGS.items() if key in document), None)


def _place_of(wanted: Sequence[str], words: Sequence[str]) -> int | None:
    """The place of the first of a launcher's words; a path before a program's name is not looked at."""
    for place in range(len(words) - len(wanted) + 1):
        if f"/{words[place]}".endswith(f"/{wanted[0]}") and tuple(words[place + 1 : place + len(wanted)]) == tuple(wanted[1:]):
            return place
    return None


def _server(launcher: Launcher, before: Sequence[str], own: Sequence[str], files: LaunchFiles) -> StatedServer:
    engine = SERVERS[launcher].engine
    table = FLAGS[engine]
    read = table.read(own)
    named = read.fields.get("config_file")
    notes = _of_pools(read)
    text = None if named is None else files.named(named)
    if named is not None and text is None:
        notes = (f"{named} was not given, and what it says is not in the figures: give it by --with", *notes)
    if named is not None and text is not None:
        settings = table.read(_settings(text, named, table))
        # TensorRT-LLM's file holds over its command, others' commands over their files.
        first, second = (read, settings) if engine is ServingEngine.TENSORRT_LLM else (settings, read)
        words = (*read.words, *settings.words)
        read = ParsedCommand({**first.fields, **second.fields}, (*first.given, *second.given), words)
    flags = LaunchFlags(**read.fields)
    model = flags.model or next(iter(read.words), None)
    return StatedServer(launcher, flags, model, read.given, assigned(before), notes)


def _settings(text: str, named: str, table: FlagTable) -> list[str]:
    """The flags that a server's file says: switches where they are on, and what a flag takes as JSON as that."""
    document = config_of(text)
    if document is None:
        raise InvalidInputError("the file of the server's flags is no YAML", given=named)
    words: list[str] = []
    for name, value in document.items():
        flag = str(name).replace("_", "-")
        names = table.whole_names(f"--{flag}")
        known = table.by_name.get(names[0]) if len(names) == 1 else None
        if isinstance(value, bool) and (known is None or known.read is None):
            words += [f"--{flag}"] if value else []
        elif isinstance(value, Mapping) and known is not None:
            words.append(f"--{flag}={json.dumps(value)}")
        else:
            words += words_of_config({str(name): value})
    return words


_POOLS = frozenset(
    ("is-prefill-worker", "is-decode-worker", "disaggregation-mode", "disaggregation-strategy", "kv-transfer-config")
)


def _of_pools(read: ParsedCommand) -> tuple[str, ...]:
    if any(flag.table_name in _POOLS for flag in read.given):
        return ("this is one server of several that share prompts and answers: it is priced as one that answers alone",)
    return ()
