"""Deadlines of PostgreSQL connections, and a pause after one that was missed.

A server that is frozen, or a network that swallows packets, answers nothing at all: its own statement time-out does not run,
and the kernel goes on to acknowledge what is sent. So the client ends the connection: a thread shuts the socket of whoever
holds a connection for too long, and whoever waits on it gets an error. After that nobody is let near the database for a while
but one at a time, to see whether it answers again: else every thread of the process would wait out its own deadline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

HELD_S = 5.0
"""The longest that a connection is held: ten times the longest that one was by 2,000 submissions of eight threads and their
deletion, 0.47 s (99% within 0.2 s) on two cores with the database, at a load of 24 (`benchmarks/held_connections.py`)."""
PAUSE_S = 1.0
"""Between two tries of a database that did not answer."""


class Pause:
    """Remembers that a database did not answer. Safe to share among threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._next_try_s: float | None = None

    def may_try(self) -> bool:
        """Return True if the database is thought to answer, or if it is this caller's turn to see."""
        with self._lock:
            if self._next_try_s is None:
                return True
            now_s = self._clock()
            if now_s < self._next_try_s:
                return False
            self._next_try_s = now_s + PAUSE_S
            return True

    def missed(self) -> None:
        """Note that it did not answer."""
        with self._lock:
            self._next_try_s = self._clock() + PAUSE_S

    def answered(self) -> None:
        """Note that it did."""
        if self._next_try_s is not None:
            with self._lock:
                self._next_try_s = None


class Deadlines:
    """Ends the connections of an engine that are held for longer than ``held_s``, and tells ``pause``."""

    def __init__(self, engine: Engine, pause: Pause, *, held_s: float = HELD_S):
        self._pause, self._held_s = pause, held_s
        self._held: dict[Any, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        event.listen(engine, "checkout", self._begin)
        event.listen(engine, "checkin", self._end)
        event.listen(engine, "invalidate", self._end_of_broken)

    @property
    def pause(self) -> Pause:
        """The pause of the engine's database."""
        return self._pause

    def exempt(self, connection: Any) -> None:
        """Let a driver connection be held for as long as it takes, until it is given back."""
        with self._changed:
            self._held.pop(connection, None)

    def _begin(self, connection: Any, record: ConnectionPoolEntry, proxy: object) -> None:
        with self._changed:
            self._held[connection] = time.monotonic() + self._held_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="database-deadlines", daemon=True)
                self._thread.start()
            if len(self._held) == 1:
                self._changed.notify()

    def _end(self, connection: Any, record: ConnectionPoolEntry) -> None:
        with self._changed:
            self._held.pop(connection, None)

    def _end_of_broken(self, connection: Any, record: ConnectionPoolEntry, error: object) -> None:
        self._end(connection, record)

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._held:
                    self._changed.wait()
                now_s = time.monotonic()
                late = [connection for connection, deadline_s in self._held.items() if deadline_s <= now_s]
                for connection in late:
                    del self._held[connection]
                next_s = min(self._held.values(), default=now_s + self._held_s)
            for connection in late:
                self._pause.missed()
                _shut(connection)
            time.sleep(max(0.05, min(next_s - time.monotonic(), self._held_s)))


def _shut(connection: Any) -> None:
    """Shut a driver connection's socket, so that whoever waits on it gets an error."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
