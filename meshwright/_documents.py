"""Values that callers give, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum
from os import PathLike, fspath
from pathlib import Path

from meshwright.app.base.errors import short_text
from meshwright.costmodels.errors import InvalidInputError

FileName = str | PathLike[str]

MAX_DEPTH = 64
"""As deep as a document that is read may be."""


def plain(value: object, *, at: str, depth: int = 0) -> object:
    """Return a value as JSON holds it: tuples as lists, NumPy's numbers as numbers, paths as text.

    ``at`` names the value in errors. Raises InvalidInputError for what JSON can't hold.
    """
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{at} is nested too deeply", allowed=f"at most {MAX_DEPTH} levels")
    if isinstance(value, Enum):
        return plain(value.value, at=at, depth=depth)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {_key(key, at): plain(item, at=f"{at}.{key}", depth=depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence | Set | range) and not isinstance(value, bytes | bytearray | memoryview):
        items = sorted(value, key=repr) if isinstance(value, Set) else value
        return [plain(item, at=f"{at}.{index}", depth=depth + 1) for index, item in enumerate(items)]
    for method in ("tolist", "item"):  # NumPy's arrays and numbers, PyTorch's tensors
        convert = getattr(value, method, None)
        if callable(convert):
            return plain(convert(), at=at, depth=depth + 1)
    raise InvalidInputError(f"{at} is nothing that a document can hold", given=f"{type(value).__name__}: {short_text(value)}")


def plain_object(value: object, *, at: str) -> dict[str, object]:
    """As ``plain``, of what has to be a mapping."""
    document = plain(value, at=at)
    if not isinstance(document, dict):
        raise InvalidInputError(f"{at} has to be a mapping of fields", given=short_text(value))
    return document


def absolute(path: FileName) -> str:
    """Return a path that means the same wherever it is read; raises InvalidInputError for what is no path."""
    if not isinstance(path, str | PathLike):
        raise InvalidInputError("a file is named by its path", given=f"{type(path).__name__}: {short_text(path)}")
    return str(Path(path).expanduser().absolute())


def _key(key: object, at: str) -> str:
    if not isinstance(key, str):
        raise InvalidInputError(f"names of fields in {at} have to be text", given=short_text(key))
    return str(key.value) if isinstance(key, Enum) else key
