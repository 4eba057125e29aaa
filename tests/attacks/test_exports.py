"""Names in exports: every script of every launcher is run, and runs nothing but its launcher."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from meshwright.app.base.quoting import readable
from meshwright.app.launching.exporters import LAUNCHERS, export
from meshwright.app.launching.exporters.launch import script
from meshwright.app.launching.parts.export import Export
from tests.attacks.exports import run
from tests.attacks.names import COMMAND, names
from tests.attacks.planned import REQUESTS, planned, renamed
from tests.attacks.runner import check_lines

DRAFT_FLAG = "--speculative-draft-model-path"
UNNAMED = (
    "megatron",
    "megatron-bridge",
    "nemo",
    "deepspeed",
    "torchtitan",
    "pytorch",
    "nanotron",
    "maxtext",
    "accelerate",
    "trl",
    "axolotl",
    "llama-factory",
)
"""Forms whose commands name no model; some of their files do."""


def test_every_launcher_is_attacked() -> None:
    assert {launcher.value for launcher, _ in REQUESTS.values()} == set(LAUNCHERS)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("form", REQUESTS)
@settings(max_examples=20, deadline=None)
@example(f"x; {COMMAND} #")
@example(f"x\n{COMMAND}\n#")
@example(f"x\nEND_OF_FILE\n{COMMAND}\n")
@example(f"x\r{COMMAND}")
@example("--trust-remote-code")
@given(name=names)
def test_a_script_runs_nothing_but_its_launcher(form: str, name: str) -> None:
    result = export(*renamed(planned(form), name), REQUESTS[form][0].value)
    text = script(result)
    check_lines(text)
    called = run(text)
    assert all(word == f"./{readable(name)}" for word in called if word.startswith("./"))
    assert f"./{readable(name)}" in called or form in UNNAMED


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("form", REQUESTS)
@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/cron.d/x", "..", "a/b", "x\0y", "~/.bashrc"])
def test_no_name_leads_a_written_file_out_of_its_folder(form: str, name: str) -> None:
    good, bad = (export(*renamed(planned(form), each), REQUESTS[form][0].value).files for each in ("good", name))
    assert set(bad) == set(good), "what files are called is the launcher's, never the request's"
    assert all(Path(file).name == file for file in good)


@pytest.mark.slow
@pytest.mark.parametrize("form", REQUESTS)
@settings(max_examples=20, deadline=None)
@given(name=names)
def test_a_shell_splits_commands_as_they_were_meant(form: str, name: str) -> None:
    """A hostile name changes no other word of any command."""
    launcher = REQUESTS[form][0].value
    good, bad = (words(export(*renamed(planned(form), each), launcher)) for each in ("good", name))
    assert bad == [_with_name(word, name) for word in good]


def words(result: Export) -> list[str]:
    """Words of the command and of each script among the files."""
    texts = [result.command, *(text for name, text in sorted(result.files.items()) if name.endswith(".sh"))]
    split = [word for text in texts for word in shlex.split(text.replace("\\\n", " "))]
    # A value that begins like a flag is joined to its own.
    return [part for word in split for part in (word.split("=", 1) if word.startswith(f"{DRAFT_FLAG}=") else [word])]


def _with_name(word: str, name: str) -> str:
    shown = readable(name)
    match word:
        case "./good":
            return f"./{shown}"
        case "good":
            return shown
        case _ if word.startswith("{") and "good" in word:
            document = json.loads(word)
            return json.dumps({key: name if value == "good" else value for key, value in document.items()})
    return word
