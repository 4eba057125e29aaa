"""Text of which a reader sees every character: no line ends, no terminal codes, nothing that reorders what is shown."""

from __future__ import annotations

import re

# Unicode 16.0, chapters 23.1 (C0 and C1 controls) and 23.2 (layout controls); bidi: UAX #9, table 1.
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 controls, DEL, C1 controls
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff]"  # halves of surrogate pairs
)
"""Characters that no name holds: they end lines, drive terminals, or reorder what a reader sees."""

ALLOWED_CHARACTERS = "text on one line, without control characters, marks of direction and halves of surrogate pairs"
"""The characters that names may hold, in the words of an error."""

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COMMAND_START = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_INDENT = "  "


def readable(text: str) -> str:
    """The text with every hidden character spelled out: ``\\n``, ``\\x1b``, ``\\u202e``. A good name stays as it is."""
    return HIDDEN.sub(_spelled, text)


def terminal_line(text: str) -> str:
    """One line for a terminal or the log of a continuous integration run, which obeys no part of it."""
    return without_commands(readable(text))


def terminal_lines(text: str) -> str:
    """Lines for a terminal, all but the first indented, so that none passes for a message of its own."""
    first, *rest = text.split("\n")
    shown = (line if line.startswith(_INDENT) else f"{_INDENT}{line}" for line in rest)
    return "\n".join(terminal_line(line) for line in (first, *shown))


def without_commands(text: str) -> str:
    """Text in which GitHub's runner finds no workflow command.

    It reads ``::name::`` where a line begins, and ``##[name]`` anywhere.
    Source: actions/runner, ActionCommand.cs (TryParseV2, TryParse).
    """
    return _COMMAND_START.sub(r"\1\\x3a", text).replace("##[", "#\\x23[")


def _spelled(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
