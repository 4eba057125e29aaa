"""Compiled functions that are kept on disk, each under a name that changes with all the code that it may be made of.

Numba keeps a compiled function beside its module, by file name and line, and compiles it again when that file changes. That is
not enough: an index of before that names a module that is gone can't be read at all, and a caller is not compiled again when
a function of another file that it calls changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

_Function = TypeVar("_Function", bound=Callable[..., object])

_HERE = Path(__file__).parent
_DIGITS = 12
"""Enough to tell releases and edits of one installation apart: 48 bits."""


def kept_compiled(function: _Function) -> Dispatcher[_Function]:
    """Compile a function, and keep it on disk until any compiled code of its floor or of the cost models changes."""
    return njit(cache=True, no_cfunc_wrapper=True)(named_by_sources(function))  # type: ignore[call-overload, no-any-return]


def kept_compiled_whole(function: _Function) -> Dispatcher[_Function]:
    """The same of a function that makes no arrays: without counting references to those that it is given."""
    return njit(cache=True, no_cfunc_wrapper=True, _nrt=False)(named_by_sources(function))  # type: ignore[call-overload, no-any-return]


def compiled_inside(function: _Function) -> _Function:
    """Compile a function as part of those that call it: no entry for Python or C is made, which takes as long again."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)  # type: ignore[call-overload, no-any-return]


class CompiledOnceItPays:
    """A function that runs as Python until compiling it is less work than what it has done: a first small plan compiles none.

    Found on disk, it runs compiled from the first call on. Compiled callers take it for its compiled self, and callers that run
    as Python for its Python.
    """

    _as_python = 0
    """Number of these that are running as Python."""

    def __init__(self, dispatcher: Dispatcher[Callable[..., object]], pays_after: int):
        self.dispatcher = dispatcher
        self._work_left = pays_after
        self._asked_disk = False
        update_wrapper(self, dispatcher.py_func)

    @property
    def _numba_type_(self) -> object:
        """The type under which numba's compiler finds the compiled function."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: object) -> object:
        """Return the function's result: the same to the last bit, compiled or not."""
        if CompiledOnceItPays._as_python:
            return self.dispatcher.py_func(*arguments)
        if not self._asked_disk:
            self._asked_disk = True
            self._work_left = 0 if is_on_disk(self.dispatcher) else self._work_left
        if self._work_left <= 0:
            return self.dispatcher(*arguments)
        self._work_left -= 1 + sum(argument.size for argument in arguments if isinstance(argument, np.ndarray))
        CompiledOnceItPays._as_python += 1
        try:
            return self.dispatcher.py_func(*arguments)
        finally:
            CompiledOnceItPays._as_python -= 1


def compiled_once_it_pays(*, pays_after: int) -> Callable[[_Function], _Function]:
    """Keep a function compiled as `kept_compiled` does, from the call on at which that pays.

    ``pays_after`` calls, and elements of the arrays that they are given, take half a second or less as Python; compiling takes
    longer. For functions that give the same bits as Python: scalars of 64 bits, functions of `math`, and no sums of numpy,
    which adds in another order.
    """

    def decorate(function: _Function) -> _Function:
        return cast(_Function, CompiledOnceItPays(kept_compiled(function), pays_after))

    return decorate


def is_on_disk(dispatcher: Dispatcher[Callable[..., object]]) -> bool:
    """Return True if a function of these sources has been compiled on this machine before."""
    folder = Path(dispatcher.stats.cache_path or ".")
    function = dispatcher.py_func
    named = f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}-{function.__code__.co_firstlineno}."
    try:
        return any(path.name.startswith(named) for path in folder.iterdir())
    except OSError:
        return False


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
