"""Short writes: those that come together are committed together, and one that fails harms none of the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, event, select

from meshwright.app.base.errors import QueueFullError, StoreError
from meshwright.app.base.logs import logged_id, logging_for
from meshwright.app.base.settings import Settings
from meshwright.app.store.engine import is_sqlite, open_engine, reading
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.plans import PlanRepository
from meshwright.app.store.tables import plans
from meshwright.app.store.writes import MOST_TOGETHER, Writes
from tests.integration.db import numbered

pytestmark = pytest.mark.both_databases

WAIT_S = 30.0


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = open_engine(settings.database_url)
    upgrade(engine)
    yield engine
    engine.dispose()


def run(engine: Engine, use: Callable[[Writes], Awaitable[None]]) -> None:
    """Run with the writes of an event loop."""

    async def main() -> None:
        writes = Writes(engine)
        await use(writes)
        await writes.close()

    asyncio.run(main())


def add(engine: Engine, number: int) -> Callable[[Connection], int]:
    """A write that stores a plan and gives its number."""

    def write(connection: Connection) -> int:
        assert PlanRepository(engine).add_with(connection, numbered(number))
        return number

    return write


def stored(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        return set(connection.execute(select(plans.c.digest)).scalars())


def test_all_are_done_in_few_commits(engine: Engine) -> None:
    commits: list[Connection] = []
    count = 2 * MOST_TOGETHER

    async def use(writes: Writes) -> None:
        event.listen(engine, "commit", commits.append)
        assert await asyncio.gather(*(writes.soon(add(engine, number)) for number in range(count))) == list(range(count))
        # Nothing is left undone by the time a caller hears.
        assert await writes.soon(add(engine, count)) == count
        assert len(commits) == (3 if is_sqlite(engine) else count + 1)

    run(engine, use)
    assert stored(engine) == {numbered(number).digest for number in range(count + 1)}


def test_one_that_fails_leaves_no_trace_and_harms_no_other(engine: Engine) -> None:
    def refuse(connection: Connection) -> None:
        add(engine, 100)(connection)
        raise QueueFullError("full", allowed="less")

    def wrong(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO no_such_table VALUES (1)")

    async def use(writes: Writes) -> None:
        asked = (add(engine, 1), refuse, add(engine, 2), wrong, add(engine, 3))
        given = await asyncio.gather(*(writes.soon(write) for write in asked), return_exceptions=True)
        assert [given[index] for index in (0, 2, 4)] == [1, 2, 3]
        assert isinstance(given[1], QueueFullError)
        assert isinstance(given[3], StoreError)

    run(engine, use)
    assert stored(engine) == {numbered(number).digest for number in (1, 2, 3)}


def test_a_caller_that_goes_away_takes_nothing_with_it(engine: Engine) -> None:
    async def use(writes: Writes) -> None:
        gone = asyncio.ensure_future(writes.soon(add(engine, 1)))
        await asyncio.sleep(0)
        gone.cancel()
        assert await writes.soon(add(engine, 2)) == 2

    run(engine, use)
    assert numbered(2).digest in stored(engine)


def test_log_lines_of_a_write_have_the_id_of_its_caller(engine: Engine) -> None:
    async def use(writes: Writes) -> None:
        async def ask(word: str) -> str:
            with logging_for(word):
                return await writes.soon(lambda connection: logged_id())

        assert [*await asyncio.gather(ask("one"), ask("two"))] == ["one", "two"]

    run(engine, use)


def test_closing_waits_for_what_was_asked_and_takes_no_more(engine: Engine) -> None:
    count = MOST_TOGETHER + 1

    async def use(writes: Writes) -> None:
        asked = [asyncio.ensure_future(writes.soon(add(engine, number))) for number in range(count)]
        await asyncio.sleep(0)
        await writes.close()
        with pytest.raises(StoreError, match="no more"):
            await writes.soon(add(engine, count))
        assert await asyncio.wait_for(asyncio.gather(*asked), WAIT_S) == list(range(count))

    run(engine, use)
    assert stored(engine) == {numbered(number).digest for number in range(count)}


@pytest.mark.parametrize("end", [asyncio.Task.cancel, None], ids=["cancelled", "thread gone"])
def test_nobody_waits_for_writes_that_will_not_come(engine: Engine, end: Callable[[asyncio.Task[None]], bool] | None) -> None:
    if not is_sqlite(engine):
        pytest.skip("only SQLite's writers share a thread")
    go_on = threading.Event()

    def slowly(connection: Connection) -> None:
        assert go_on.wait(WAIT_S)

    async def use(writes: Writes) -> None:
        first = asyncio.ensure_future(writes.soon(slowly))
        await asyncio.sleep(0)
        later = [asyncio.ensure_future(writes.soon(add(engine, number))) for number in range(3)]
        await asyncio.sleep(0)
        working = writes._working
        assert working is not None
        if end is None:
            writes._thread.shutdown(wait=False)
        else:
            end(working)
        go_on.set()
        given = await asyncio.wait_for(asyncio.gather(first, *later, return_exceptions=True), WAIT_S)
        assert all(isinstance(each, StoreError) for each in given[end is None :])
        await asyncio.wait([working])
        assert working.cancelled() or isinstance(working.exception(), RuntimeError)

    run(engine, use)
