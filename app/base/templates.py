"""Templates of HTML: whatever a value holds, a page shows it as text.

What is of the type ``Markup`` is taken as it is: drawings, and what templates made themselves. Nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from meshwright.app.base.quoting import xml_line


@dataclass(frozen=True)
class Hyperlink:
    """Words that lead to a place."""

    place: str
    text: str


@dataclass(frozen=True)
class Code:
    """Words of a program."""

    text: str


Words: TypeAlias = "str | Hyperlink | Code | Sequence[Words]"
"""What a place of a page shows: text, a link, code, or several of them behind one another."""


class Templates:
    """The templates of some folders, each read once."""

    def __init__(self, *folders: Path):
        self._environment = Environment(
            loader=FileSystemLoader(folders),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_on_one_line,
        )
        self._environment.filters["lines"] = _lines
        self._environment.tests |= {
            "link": lambda each: isinstance(each, Hyperlink),
            "code": lambda each: isinstance(each, Code),
        }

    def render(self, name: str, /, **values: object) -> str:
        """Return the text of a template with these values; raises UndefinedError where one is missing."""
        return self._environment.get_template(name).render(values)


def _on_one_line(value: object) -> object:
    """A value as it is shown: what a reader can't see is spelled out, line ends too."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else xml_line(value)


def _lines(text: str) -> Markup:
    """The lines of a text, for elements that keep line ends."""
    return Markup("\n").join(map(xml_line, text.split("\n")))
