"""What results of serving benchmarks are made of: JSON documents of other tools, and numbers as they write them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.app.base.documents import NonFinite, parse_document
from meshwright.app.evidence.logs.stated import Figure, exactly
from meshwright.costmodels.errors import InvalidInputError

Json = Mapping[str, Any]

LARGEST_BYTES = 64 * 2**20
"""Of a result: those of GuideLLM hold the text of each request."""

_INFINITE = ("inf", "infinity", "+inf")


def documents(lines: Sequence[str], marker: str) -> Iterator[Json]:
    """The JSON objects of a file that have a word: the whole of it, else each of its lines, the last one first. Infinity
    stands as text. They are read when they are asked for: a file may have many."""
    text = "\n".join(lines).strip()
    if not text.startswith("{") or marker not in text:
        return
    whole = _object(text)
    if whole is not None:
        yield whole
        return
    for line in reversed(lines):
        document = _object(line) if marker in line else None
        if document is not None:
            yield document


def _object(text: str) -> Json | None:
    try:
        document = parse_document(
            text.encode("utf-8", "replace"), what="benchmark result", max_bytes=LARGEST_BYTES, non_finite=NonFinite.AS_TEXT
        )
    except InvalidInputError:
        return None
    return document if isinstance(document, dict) else None


def at(document: object, *names: str) -> Any:
    """What stands under these names, one in another; None where one of them is missing."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def number(value: object) -> float:
    """The value as a finite number, written as one or as text; 0 where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        found = float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def figure(value: object) -> Figure | None:
    """The value as a figure; None where it is no number above 0."""
    found = number(value)
    return exactly(found) if found > 0.0 else None


def rate(value: object) -> Figure | None:
    """The value as a rate of requests, which may be without limit; None where it is none."""
    is_infinite = value == math.inf or (isinstance(value, str) and value.strip().lower() in _INFINITE)
    return exactly(math.inf) if is_infinite else figure(value)


def ratio(above: Figure | None, below: Figure | None) -> Figure | None:
    """How much of one figure there is for each of the other; None where one is missing."""
    return None if above is None or below is None else exactly(above.value / below.value)


def name(value: object) -> str | None:
    """The value as a name; of a list its one item; None where it is none."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return value if isinstance(value, str) and value else None
