"""The known name nearest to one that a user typed, for the remedy of an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_NAME = 100
"""Characters of a name that are compared: difflib's time grows with the square of the length."""


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the given one, letter case aside; None where none is much like it."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(given[:LONGEST_NAME].casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def did_you_mean(given: str, known: Iterable[str], *, otherwise: str) -> str:
    """Return the remedy of an error about an unknown name: the nearest known one, or what to do where none is near."""
    near = nearest_name(given, known)
    return otherwise if near is None else f"did you mean {near!r}?"
