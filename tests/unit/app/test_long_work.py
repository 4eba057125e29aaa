"""Work on large bodies is done in another thread, as the work of whoever asked for it."""

from __future__ import annotations

import asyncio
import gc

import pytest

from meshwright.app.http.long_work import LongWork
from meshwright.app.logs import logged_id, logging_for


def test_log_lines_of_a_piece_of_work_have_the_id_of_its_caller() -> None:
    async def ask(long_work: LongWork, word: str) -> str:
        with logging_for(word):
            return await long_work.do("tenant", logged_id)

    async def use() -> list[str]:
        long_work = LongWork(max_body_bytes=1)
        try:
            return [*await asyncio.gather(ask(long_work, "one"), ask(long_work, "two")), logged_id()]
        finally:
            await long_work.close()

    assert asyncio.run(use()) == ["one", "two", "-"]


def test_nothing_is_collected_during_a_piece_whatever_its_end() -> None:
    def look() -> bool:
        return gc.isenabled()

    def fail() -> None:
        raise KeyError

    async def ask() -> bool:
        long_work = LongWork(max_body_bytes=1)
        seen = await long_work.do("tenant", look)
        with pytest.raises(KeyError):
            await long_work.do("tenant", fail)
        await long_work.close()
        return seen

    assert gc.isenabled()
    assert not asyncio.run(ask())
    assert gc.isenabled()
