"""Work on large bodies is done in another thread, as the work of whoever asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from meshwright.app.base.errors import BusyError, RateLimitedError
from meshwright.app.base.logs import logged_id, logging_for
from meshwright.app.edge.long_work import BODIES_OF_A_TENANT, LongWork


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


def test_tenants_with_large_bodies_in_hand_leave_room_for_short_ones() -> None:
    """A short body is still taken, when any number of tenants hold as much as they may."""
    long_work = LongWork(max_body_bytes=1000)
    refused = 0
    with contextlib.ExitStack() as stack:
        for tenant in range(20):
            hold = stack.enter_context(long_work.holding(f"greedy {tenant}"))
            for _ in range(BODIES_OF_A_TENANT):
                try:
                    hold(1000)
                except BusyError:
                    refused += 1
        with long_work.holding("modest") as hold:
            hold(100)
    assert refused, "not all of them fit together"


def test_a_tenant_has_its_share_and_gets_it_back() -> None:
    long_work = LongWork(max_body_bytes=1000)
    for _ in range(2):
        with long_work.holding("tenant") as hold:
            hold(BODIES_OF_A_TENANT * 1000)
            with pytest.raises(RateLimitedError):
                hold(1)


def test_a_tenant_has_no_more_in_hand_than_is_left_for_all_others() -> None:
    long_work = LongWork(max_body_bytes=1000)
    with contextlib.ExitStack() as stack:
        for tenant in "abcd":
            stack.enter_context(long_work.holding(tenant))(3000)
        hold = stack.enter_context(long_work.holding("e"))
        hold(2000)
        with pytest.raises(BusyError):
            hold(1)
        stack.enter_context(long_work.holding("f"))(1000)
