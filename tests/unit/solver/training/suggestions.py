"""Shared by the tests of suggestions and others: changed."""

from __future__ import annotations

from typing import Any


def changed(document: Any, path: str, value: Any) -> None:
    """Set a field of a request document by its dotted path."""
    *parts, last = path.split(".")
    for part in parts:
        document = document[int(part)] if part.isdigit() else document.setdefault(part, {})
    document[last] = value
