"""The parameters of every list: a cursor, a limit and filters by name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict

from meshwright.app.base.digits import is_digits
from meshwright.app.base.errors import DocumentError, FieldError

# Cursors of lists: opaque to callers, a row's place in the order of arrival to us.

MAX_CURSOR_LENGTH = 64


def cursor_of(kind: str, row_id: int) -> str:
    """The cursor of a list of some kind, for what comes after a row."""
    return base64.urlsafe_b64encode(f"{kind}:{row_id}".encode()).decode().rstrip("=")


def row_of(kind: str, cursor: str) -> int:
    """The row of a cursor; raises DocumentError for what is no cursor of this kind of list."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        given, _, number = text.partition(":")
        row = int(number) if given == kind and is_digits(number) else 0
    except (binascii.Error, UnicodeError, ValueError):
        row = 0
    if row < 1:
        fault = FieldError("cursor", "is no cursor of this list", given=repr(cursor), remedy="give 'next_cursor' as it came")
        raise DocumentError("this list can't be given", (fault,))
    return row


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


# The base of all answers: how strict their models are, and the problem document.

ANSWER = ConfigDict(extra="forbid", frozen=True)


class FaultDocument(BaseModel):
    """An error in one field."""

    model_config = ANSWER

    field: str
    problem: str
    given: str | None = None
    allowed: str | None = None
    remedy: str | None = None


class ProblemDocument(BaseModel):
    """A problem (RFC 9457)."""

    model_config = ANSWER

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    request_id: str | None = None
    errors: list[FaultDocument] = []
