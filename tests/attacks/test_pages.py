"""Names on pages, in messages and in logs: shown, never obeyed."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from rich.table import Table

from meshwright.app.base.console import PageConsole, plain
from meshwright.app.base.logs import JsonFormatter, TextFormatter
from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.cli.pages.plan_page import NextStep, print_plan
from tests.attacks.names import names
from tests.attacks.planned import REQUESTS, planned, renamed
from tests.attacks.runner import check_lines, commands

SOURCE = Path(__file__).resolve().parents[2] / "app"
OWN_WAY = {
    "print": {
        "cli/commands/checking.py",
        "cli/commands/exits.py",
        "cli/commands/exporting.py",
        "cli/commands/hardware.py",
        "cli/commands/one_line.py",
        "cli/commands/operating.py",
        "cli/commands/secrets.py",
        "cli/main.py",
        # Runs alone on the machines of its user, who gives it all its words.
        "evidence/measuring/fabric_script.py",
    },
    "Console": {"cli/pages/progress_bar.py"},
    "Text": {"base/console.py"},
    # Of a part in the address of a resource.
    "quote": {"cli/commands/assistant_tools.py"},
}
"""Modules that may call what shows a text as it is: they quote, or show texts of ours alone."""


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("form", REQUESTS)
@settings(max_examples=20, deadline=None)
@example("[/x]")
@example("x\nFeasible: 1e9 tokens/s")
@given(name=names)
def test_the_page_of_a_plan_is_only_shown(form: str, name: str) -> None:
    good, bad = (page(form, each) for each in ("good", name))
    check_lines(bad)
    assert len(bad.split("\n")) - len(good.split("\n")) <= 4 * (1 + 6 * len(name) // 40), "a name made lines of its own"


def page(form: str, name: str) -> str:
    out = io.StringIO()
    print_plan(
        PageConsole(file=out, width=80), *renamed(planned(form), name), NextStep(f"written to {name}", f"see {name}"), full=True
    )
    return out.getvalue()


@settings(max_examples=100, deadline=None)
@example("::set-output name=x::y")
@given(name=names)
def test_cells_and_texts_are_only_shown(name: str) -> None:
    """A hostile name stays words on every page that prints it or gives it to a table, wherever the line wraps."""
    for width in (12, 80):
        out = io.StringIO()
        console = PageConsole(file=out, width=width)
        table = Table(name, title=name)
        table.add_row(name)
        for shown in (table, name, plain(name), plain(f"aaa bbb cc {name}")):
            console.print(shown)
        check_lines(out.getvalue())


@settings(max_examples=100, deadline=None)
@given(name=names)
def test_messages_are_only_shown(name: str) -> None:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        say(name)
        say(f"error: {name}")
        tell(name)
    check_lines(out.getvalue())
    check_lines(errors.getvalue())
    own = [line for line in errors.getvalue().split("\n") if line and not line.startswith("  ")]
    assert [line.split(":")[0] for line in own] == ["meshwright", "meshwright"]


@settings(max_examples=100, deadline=None)
@given(name=names)
def test_json_is_only_shown_and_reads_back(name: str) -> None:
    document = {name: [name, 1.5, None]}
    with redirect_stdout(io.StringIO()) as out:
        print_json(document)
    check_lines(out.getvalue())
    assert json.loads(out.getvalue()) == document


@settings(max_examples=100, deadline=None)
@given(name=names)
def test_log_lines_are_lines(name: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (name,), None)
    record.model = name
    for formatter in (TextFormatter(), JsonFormatter()):
        text = formatter.format(record)
        assert "\n" not in text and commands(text.partition(" ")[2]) == []
        check_lines(text)


@pytest.mark.slow
def test_nothing_else_shows_a_text_as_it_is() -> None:
    """A page or command added tomorrow goes through the same console, and quotes for shells in the same place."""
    found: dict[str, set[str]] = {name: set() for name in OWN_WAY}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        for call in _calls(path):
            if call in found and place != "base/quoting.py":
                found[call].add(place)
    found["quote"].discard("regression/formats.py")
    assert found == OWN_WAY


def _calls(path: Path) -> Iterator[str]:
    """Names of the functions that a module calls, the last part of each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "quote":
                yield node.func.attr
