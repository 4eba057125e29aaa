"""Short writes for callers on the event loop: over SQLite, those that come together are committed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from meshwright.app.base.errors import StoreError
from meshwright.app.base.logs import logged_id, logging_for
from meshwright.app.store.engine import is_sqlite, writing

Answer = TypeVar("Answer")

MOST_TOGETHER = 32
"""Writes of one transaction at most: other processes wait for the lock meanwhile."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A write, the id that its log lines have, and who waits for what it gives."""

    write: Callable[[Connection], Any]
    work_id: str
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a write: its answer, or the exception that it raised."""

    answer: Any = None
    error: Exception | None = None


class Writes:
    """Runs short writes, for callers on one event loop.

    PostgreSQL takes each in a transaction and a thread of its own. SQLite takes one writer at a time, which waits for the disk
    at every commit: there, writes that come during a commit share the next transaction. One that fails leaves no trace and
    does not touch the others. A write may be called twice and so may change nothing but what its connection leads to.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._asked: list[_Asked] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._is_closed = False

    async def soon(self, write: Callable[[Connection], Answer]) -> Answer:
        """Return the answer of a write, once it is committed. Raises what the write raises, and StoreError when the database
        can't take it or the service ends first."""
        if self._is_closed:
            raise StoreError("the service ends: it takes no more writes")
        if not is_sqlite(self._engine):
            return await asyncio.to_thread(self._alone, write)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(write, logged_id(), future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Take no more writes, and wait until everyone who asked for one has heard."""
        self._is_closed = True
        if self._working is not None:
            await asyncio.wait([self._working])
        self._thread.shutdown()

    def _alone(self, write: Callable[[Connection], Answer]) -> Answer:
        with writing(self._engine) as connection:
            return write(connection)

    async def _work(self) -> None:
        """Do what is asked until nothing is. Whatever ends this, nobody waits on: who has not heard gets a StoreError."""
        loop = asyncio.get_running_loop()
        together: list[_Asked] = []
        try:
            while self._asked:
                together, self._asked = self._asked[:MOST_TOGETHER], self._asked[MOST_TOGETHER:]
                outcomes = await loop.run_in_executor(self._thread, self._outcomes, together)
                for asked, outcome in zip(together, outcomes, strict=True):
                    _tell(asked.future, outcome)
        finally:
            left, self._asked = (*together, *self._asked), []
            for asked in left:
                _tell(asked.future, _Outcome(error=StoreError("the service ended before it knew that this was written")))

    def _outcomes(self, together: Sequence[_Asked]) -> list[_Outcome]:
        """Return the outcome of each write. When one fails, all are taken back and tried one by one."""
        try:
            with writing(self._engine) as connection:
                return [_outcome(asked, connection) for asked in together]
        except Exception as error:
            if len(together) == 1:
                return [_Outcome(error=error)]
        return [outcome for asked in together for outcome in self._outcomes([asked])]


def _outcome(asked: _Asked, connection: Connection) -> _Outcome:
    with logging_for(asked.work_id):
        return _Outcome(asked.write(connection))


def _tell(future: asyncio.Future[Any], outcome: _Outcome) -> None:
    if future.done():
        # Whoever asked has gone.
        return
    if outcome.error is None:
        future.set_result(outcome.answer)
    else:
        future.set_exception(outcome.error)
