"""The console that pages are printed on: every text on it is shown, none is obeyed.

Texts of a page hold names that strangers gave. ``plain`` makes a styled text of one. What a page gives as ``str`` the
console treats the same way; it knows no markup.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from meshwright.app.base.quoting import terminal_line, without_commands

if TYPE_CHECKING:
    from rich.style import Style

PAGE_WIDTH = 80
"""Columns of a page that does not go to a terminal."""


def page_console(to: TextIO | None = None) -> PageConsole:
    """The console on a stream, stdout unless given: as wide as the terminal, or PAGE_WIDTH where there is none."""
    to = to or sys.stdout
    return PageConsole(file=to, width=None if to.isatty() else PAGE_WIDTH)


def plain(text: str, style: str | Style = "") -> Text:
    """A text on one line, its hidden characters spelled out."""
    return Text(terminal_line(text), style=style)


def whole_line(text: str, style: str | Style = "") -> Text:
    """The same of a text that is copied as it stands: it is not wrapped where the page ends."""
    return Text(terminal_line(text), style=style, no_wrap=True, overflow="ignore")


class PageConsole(Console):
    """A console without markup, emoji codes or highlighting, whose lines are no commands to what reads them."""

    def __init__(self, *, file: TextIO, width: int | None):
        super().__init__(file=cast("TextIO", _Lines(file)), width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """A plain text as one line."""
        return super().render_str(terminal_line(text), **options)


class _Lines:
    """A file of lines. Wrapping may put any part of a text where a line begins, so commands are looked for last of all."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(without_commands(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def indented(text: Text, columns: int) -> Padding:
    """Text whose every line starts so far to the right."""
    return Padding(text, (0, 0, 0, columns), expand=False)
