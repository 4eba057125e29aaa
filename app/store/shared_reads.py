"""Short reads for callers on the event loop: over PostgreSQL, those that come together share one query.

A query costs a round trip, a thread's turn at the interpreter and a connection of the pool, whatever it asks for. Under load
an answer waits for these. So one query of a group runs at a time; what is asked meanwhile is asked together in the next.
A query never serves who came after it began: an answer is as new as that of a query of one's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from sqlalchemy import Engine

from meshwright.app.store.engine import is_sqlite

Found = TypeVar("Found")

MOST_TOGETHER = 64
"""Keys of one query at most, so that no answer waits for a thousand others."""


class SharedReads(Generic[Found]):
    """Looks rows up by key, for callers on one event loop.

    read   finds rows of one group, such as a tenant, by their keys; a key without a row is left out. It blocks.
    """

    def __init__(self, engine: Engine, read: Callable[[str, Sequence[str]], Mapping[str, Found]]):
        self._engine, self._read = engine, read
        self._asked: dict[str, dict[str, asyncio.Future[Found | None]]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}

    async def find(self, group: str, key: str) -> Found | None:
        """Return what is under a key, None where nothing is. Raises what the read raises."""
        if is_sqlite(self._engine):
            # Answered there and then: see `app.store.engine.read_soon`.
            return self._read(group, (key,)).get(key)
        asked = self._asked.setdefault(group, {})
        if key not in asked:
            asked[key] = asyncio.get_running_loop().create_future()
        if group not in self._working:
            self._working[group] = asyncio.create_task(self._work(group))
        # Shielded: one caller that leaves takes nothing from another that asked for the same.
        return await asyncio.shield(asked[key])

    async def _work(self, group: str) -> None:
        try:
            while asked := self._taken(group):
                try:
                    found = await asyncio.to_thread(self._read, group, _padded(tuple(asked)))
                except Exception as error:
                    for future in asked.values():
                        _fail(future, error)
                else:
                    for key, future in asked.items():
                        future.set_result(found.get(key))
        finally:
            del self._working[group]

    def _taken(self, group: str) -> dict[str, asyncio.Future[Found | None]]:
        """Take the keys of the next query from those that are asked for."""
        waiting = self._asked.pop(group, {})
        keys = list(waiting)
        if len(keys) > MOST_TOGETHER:
            self._asked[group] = {key: waiting[key] for key in keys[MOST_TOGETHER:]}
        return {key: waiting[key] for key in keys[:MOST_TOGETHER]}


def _padded(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys, the last one repeated up to a power of two: the driver prepares few forms of the query then."""
    return keys + keys[-1:] * ((1 << (len(keys) - 1).bit_length()) - len(keys))


def _fail(future: asyncio.Future[Found | None], error: Exception) -> None:
    future.set_exception(error)
    # Marked as looked at: all who asked may have gone.
    future.exception()
