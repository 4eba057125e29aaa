"""The manual page: it is what the commands say of themselves, and troff reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from meshwright.app.cli.main import cli as commands
from tests.support.command_line import Cli

PAGE = Path(__file__).parents[2] / "app" / "cli" / "meshwright.1"


def test_the_page_that_is_installed_is_the_one_that_is_printed(cli: Cli) -> None:
    assert cli("--man") == 0
    assert PAGE.read_text(encoding="utf-8") == cli.out, "print it anew: meshwright --man > app/cli/meshwright.1"


def test_every_command_and_option_is_on_it() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("\\-", "-")
    for name, command in get_command(commands).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        own = {f"{name} {each}": part for each, part in inner.items()} or {name: command}
        for path, one in own.items():
            section = text.split(f'.SS "meshwright {path}', 1)[1].split(".S", 1)[0]
            options = {option for each in one.params for option in each.opts if option.startswith("--") and not each.hidden}
            assert {option for option in options if f" {option}" not in section} == set(), path


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_troff_reads_it_without_a_warning() -> None:
    shown = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-P-c", PAGE], capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    text = re.sub(".\b", "", shown.stdout)
    assert "--ttft-p95 TIME" in text and "EXIT STATUS" in text
