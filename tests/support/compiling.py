"""Workers of one test run compile each function of the cost models once, not each of them.

What is compiled is kept on disk, so a function that one worker has compiled the others only load. Without this they all begin
at once, on a checkout that has compiled nothing yet, and each does the same half minute of work.
"""

from __future__ import annotations

import fcntl
import zlib
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

_LOCKED = Path(__file__)
"""A file that all workers have; of it a byte a function is locked, and nothing is written."""


def compile_in_turn() -> None:
    """Let one process at a time compile a function that is kept on disk; the others find it there.

    No two processes wait for each other: functions are locked from callers to callees, and in a process one thread compiles.
    """
    locked = _LOCKED.open("r+b")
    compiled = Dispatcher.compile

    def compile_or_wait(self: Any, signature: object) -> object:
        if not isinstance(self._cache, FunctionCache):
            return compiled(self, signature)
        place = zlib.crc32(f"{self.py_func.__module__}.{self.py_func.__qualname__}".encode())
        with global_compiler_lock:
            fcntl.lockf(locked, fcntl.LOCK_EX, 1, place)
            try:
                return compiled(self, signature)
            finally:
                fcntl.lockf(locked, fcntl.LOCK_UN, 1, place)

    Dispatcher.compile = compile_or_wait
