"""Quoting: a stranger's text in a format of ours, so that the format's reader takes it for text and nothing else.

One function a format. All spell out what a reader can't see (``app.base.quoting``); each then does what its format asks.
Nothing else writes a name into a script, a drawing or a report; pages are templates that escape by themselves.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

# Text of CSV (RFC 4180) that spreadsheets show: a cell that begins as a formula does is text to them, too.
#
# Source: OWASP, "CSV Injection": cells that begin with =, +, -, @, tab or carriage return. An
# apostrophe before them keeps them text.

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows under a line of their columns, in the order in which these first come; what a row lacks is empty."""
    given = list(rows)
    columns = list(dict.fromkeys(name for row in given for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([[_cell(row.get(name)) for name in columns] for row in given])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = readable(value) if isinstance(value, str) else json_line(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


# Text in a workflow command of GitHub Actions: its message and its properties.
#
# Source: GitHub Docs, "Workflow commands for GitHub Actions"; escapes as in the toolkit's ``command.ts``.


def workflow_message(text: str) -> str:
    """Return the text as it follows the second ``::``; its lines stay lines."""
    return "%0A".join(readable(line).replace("%", "%25") for line in text.split("\n"))


def workflow_property(text: str) -> str:
    """A value between the name of a command and the second ``::``."""
    return readable(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


# Text of HTML 5 and of SVG, as an element's text and as a quoted attribute.
#
# Source: HTML Living Standard, section 13.3 (escaping a string).


def html_text(text: str) -> str:
    """Return one line of text that a page shows as it is: no element, no entity, no end of an attribute."""
    return html.escape(xml_line(text), quote=True)


def html_attribute(document: str) -> str:
    """Return a whole document of ours as a quoted attribute, its line ends as they are."""
    return html.escape(document, quote=True)


# Text of which a reader sees every character: no line ends, no terminal codes, nothing that reorders what is shown.

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
_COMMAND_START = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
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


# JSON text that a terminal and the log of a continuous integration run show without obeying.

_OBEYED = re.compile(f"(?!\n){HIDDEN.pattern}|(?<=#)#(?=\\[)")


def json_text(document: Any, *, indent: int | None = 2) -> str:
    """The document as JSON text, its hidden characters as ``\\uXXXX``: a parser reads the same document.

    Line ends stand between values only, for in a text JSON has them escaped already.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return _OBEYED.sub(_escape, text)


def json_line(document: Any) -> str:
    """The document as one line of ASCII, for a log; what JSON has no form for stands as Python writes it."""
    return _OBEYED.sub(_escape, json.dumps(document, default=str))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


# Text in GitHub's Markdown: as text, as code, and in a cell of a table.
#
# Source: GitHub Flavored Markdown Spec 0.29, sections 2.4 (backslash escapes), 4.10 (tables) and 6.3 (code spans).

# An underscore between letters or digits emphasizes nothing, and most names have some.
_MARKUP = re.compile(r"[\\`*\[\]<>#&~!$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BLOCK_START = re.compile(r"^(\s*)(?=[-+=:])|^(\s*\d+)(?=[.)])")
# A backslash keeps none of these from its meaning in every reader: bars split cells, addresses become links, "@" calls people.
_AS_ENTITY = re.compile(r"\||:(?=//)|(?<=www)\.|@", re.IGNORECASE)


def markdown_text(text: str) -> str:
    """One line of text that Markdown shows as it is, in a cell of a table and where a line begins, too: no markup, no link."""
    escaped = _MARKUP.sub(r"\\\g<0>", readable(text).strip())
    named = _AS_ENTITY.sub(lambda found: f"&#{ord(found[0])};", escaped)
    return _BLOCK_START.sub(lambda found: f"{found[0]}\\", named)


def markdown_code(text: str) -> str:
    """Code on one line, between more backticks than it has in a row."""
    shown = readable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    # A space after the opening and before the closing fence is no part of the code, and keeps its own backticks and spaces.
    space = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) or not shown else ""
    return f"{fence}{space}{shown}{space}{fence}"


def markdown_code_cell(text: str) -> str:
    """Code in a cell of a table. A bar would split the cell inside a code span, too."""
    return f"<code>{markdown_text(text)}</code>" if "|" in text else markdown_code(text)


# Text in scripts of a POSIX shell: a word, a comment, a file that the script writes.

END_OF_FILE = "END_OF_FILE"


def shell_word(text: str) -> str:
    """One word of a command, whatever it holds. Hidden characters are spelled out: no path that we write has any."""
    # What has "##[" in it is quoted; closing and opening the quotes inside changes no word, but it is no workflow command then.
    return shlex.quote(readable(text)).replace("##[", "#''#[")


def shell_comment(text: str) -> str:
    """A comment of one line."""
    return f"# {without_commands(readable(text))}"


def here_document(name: str, text: str) -> str:
    """Commands that write a text to a file; the line that ends the text is none of its own lines."""
    lines, end = text.rstrip().split("\n"), END_OF_FILE
    while end in lines:
        end += "_"
    return "\n".join([f"cat > {shell_word(name)} <<'{end}'", *lines, end])


# Text of an XML 1.0 document. A writer of XML escapes markup itself, but not characters that XML has no way to write.

# XML 1.0 (fifth edition), production [2] Char: beside controls and surrogates these two are no characters.
_NO_CHARACTERS = re.compile("[\ufffe\uffff]")


def xml_line(text: str) -> str:
    """Text of an attribute, on one line."""
    return _NO_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", readable(text))


# YAML text that a terminal and the log of a continuous integration run show without obeying.
#
# Source: YAML 1.2.2, section 5.7 (escapes of double-quoted scalars, which those of JSON are among).

_ONE_LINE = 2**31 - 1
"""So many columns that no text is folded."""


class _Dumper(yaml.SafeDumper):
    """Writes texts that a reader might not see or a runner might obey in double quotes, as JSON has them."""

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.write_indicator(json_text(text, indent=None), True)


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = not HIDDEN.search(text.replace("\n", "")) and "::" not in text and "##[" not in text
    style = '"' if not is_plain else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def yaml_text(document: Mapping[str, Any]) -> str:
    """The document as YAML, its keys in their order; a parser reads the same document."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=_ONE_LINE)


__all__ = [
    "HIDDEN",
    "csv_text",
    "here_document",
    "html_attribute",
    "html_text",
    "json_line",
    "json_text",
    "markdown_code",
    "markdown_code_cell",
    "markdown_text",
    "readable",
    "shell_comment",
    "shell_word",
    "terminal_line",
    "terminal_lines",
    "without_commands",
    "workflow_message",
    "workflow_property",
    "xml_line",
    "yaml_text",
]
