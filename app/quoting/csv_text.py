"""Text of CSV (RFC 4180) that spreadsheets show: a cell that begins as a formula does is text to them, too.

Source: OWASP, "CSV Injection": cells that begin with =, +, -, @, tab or carriage return. An apostrophe before them keeps them
text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.app.quoting.json_text import json_line
from meshwright.app.quoting.readable import readable

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
