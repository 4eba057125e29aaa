"""Seconds that this process has spent compiling functions: a fresh installation's first solve, which no limit counts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba.core.event import TimingListener

_COMPILING = "numba:compile"


def compiled_s() -> float:
    """Return the seconds spent compiling since this was first asked; what is under way is counted when it is done."""
    listener = _listener()
    return listener.duration if listener.done else 0.0


@cache
def _listener() -> TimingListener:
    from numba.core.event import TimingListener, register

    listener = TimingListener()  # type: ignore[no-untyped-call]
    register(_COMPILING, listener)  # type: ignore[no-untyped-call]
    return listener
