"""The reading of a step's output by GitHub's runner, and the characters that no line of a terminal holds.

Source: actions/runner, src/Runner.Common/ActionCommand.cs (TryParseV2, TryParse, the tables of escapes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

HIDDEN_IN_LINE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]",
)


@dataclass(frozen=True, slots=True)
class Command:
    """A workflow command as the runner reads it."""

    name: str
    properties: Mapping[str, str]
    data: str


def commands(output: str) -> list[Command]:
    """Every command that the runner would obey in this output, of both forms."""
    found = [_second_form(line) or _first_form(line) for line in re.split("\r\n|\r|\n", output)]
    return [command for command in found if command is not None]


def check_lines(output: str) -> None:
    """No line of a page drives the terminal, hides a part of itself or is a command."""
    assert not [line for line in output.split("\n") if HIDDEN_IN_LINE.search(line)], output
    assert commands(output) == [], output


def _second_form(line: str) -> Command | None:
    line = line.strip()
    if not line.startswith("::"):
        return None
    end = line.find("::", 2)
    if end < 0:
        return None
    name, _, rest = line[2:end].partition(" ")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return Command(
        name, {key.strip(): _unescaped(value, of_property=True) for key, _, value in pairs}, _unescaped(line[end + 2 :])
    )


def _first_form(line: str) -> Command | None:
    start = line.find("##[")
    end = line.find("]", start)
    return None if start < 0 or end < 0 else Command(line[start + 3 : end], {}, line[end + 1 :])


def _unescaped(text: str, *, of_property: bool = False) -> str:
    pairs = [("%0D", "\r"), ("%0A", "\n"), *([("%3A", ":"), ("%2C", ",")] if of_property else []), ("%25", "%")]
    for escape, character in pairs:
        text = text.replace(escape, character)
    return text
