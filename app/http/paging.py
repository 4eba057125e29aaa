"""The parameters of every list: a cursor, a limit and filters by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from meshwright.app.http.cursors import MAX_CURSOR_LENGTH, row_of

# Names hold no hidden characters (``app.requests.limits``), and PostgreSQL refuses to compare with some of them.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"

Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR_LENGTH, description="'next_cursor' of the page before.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Items a page.")]
NameFilter = Annotated[str | None, Query(max_length=200, pattern=PRINTABLE)]

Row = TypeVar("Row")


def before_of(kind: str, cursor: str | None) -> int | None:
    """The row that a page of a list of some kind starts before; None for the first page. Raises as ``row_of``."""
    return None if cursor is None else row_of(kind, cursor)


def page_of(found: Sequence[Row], limit: int) -> tuple[Sequence[Row], bool]:
    """The rows of a page, and whether there is a next one: one row more than asked was looked for."""
    return found[:limit], len(found) > limit
