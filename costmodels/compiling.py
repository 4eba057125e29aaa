"""Compiled functions that are kept on disk, each under a name that changes with all the code that it may be made of.

Numba keeps a compiled function beside its module, by file name and line, and compiles it again when that file changes. That is
not enough: an index of before that names a module that is gone can't be read at all, and a caller is not compiled again when
a function of another file that it calls changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from numba import njit

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

_Function = TypeVar("_Function", bound=Callable[..., object])

_HERE = Path(__file__).parent
_DIGITS = 12
"""Enough to tell releases and edits of one installation apart: 48 bits."""


def kept_compiled(function: _Function) -> Dispatcher[_Function]:
    """Compile a function, and keep it on disk until any compiled code of its floor or of the cost models changes."""
    return njit(cache=True)(named_by_sources(function))


def named_by_sources(function: _Function) -> _Function:
    """Give a function a name that says which sources it may be made of, for numba to keep it under."""
    depth = function.__module__.count(".")
    floor = Path(function.__code__.co_filename).parents[max(0, depth - 2)]  # meshwright.FLOOR.ROOM.MODULE lies two above
    sources = "".join([function.__module__, _sources_digest(floor), _sources_digest(_HERE)])
    function.__qualname__ += f"_{sha256(sources.encode()).hexdigest()[:_DIGITS]}"
    return function


@cache
def _sources_digest(folder: Path) -> str:
    """Return the digest of all modules below a folder that have compiled functions."""
    texts = (path.read_bytes() for path in sorted(folder.rglob("*.py")))
    return sha256(b"".join(text for text in texts if b"compiled" in text or b"njit" in text)).hexdigest()
