"""JSON text that a terminal and the log of a continuous integration run show without obeying."""

from __future__ import annotations

import json
import re
from typing import Any

from meshwright.app.quoting.readable import HIDDEN

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
