"""Cursors of lists: opaque to callers, a row's place in the order of arrival to us."""

from __future__ import annotations

import base64
import binascii

from meshwright.app.errors import DocumentError, FieldError

MAX_CURSOR_LENGTH = 64


def cursor_of(kind: str, row_id: int) -> str:
    """The cursor of a list of some kind, for what comes after a row."""
    return base64.urlsafe_b64encode(f"{kind}:{row_id}".encode()).decode().rstrip("=")


def row_of(kind: str, cursor: str) -> int:
    """The row of a cursor; raises DocumentError for what is no cursor of this kind of list."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        given, _, number = text.partition(":")
        row = int(number) if given == kind and number.isdigit() and len(number) < 19 else 0
    except (binascii.Error, UnicodeError, ValueError):
        row = 0
    if row < 1:
        fault = FieldError("cursor", "is no cursor of this list", given=repr(cursor), remedy="give 'next_cursor' as it came")
        raise DocumentError("this list can't be given", (fault,))
    return row
