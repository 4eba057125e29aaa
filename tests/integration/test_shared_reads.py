"""Queries that a stored plan costs: few alone, fewer for many callers at once, and each as new as a query of one's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Engine, event

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.edge.keys import KeyWish, create_key, revoke_key
from meshwright.app.requests.digests import keyed_request
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.plans import PlanStore
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import KeyRepository
from meshwright.app.store.shared_reads import MOST_TOGETHER, SharedReads
from tests.support.fakes import feasible_plan
from tests.support.requests_given import resolved, training
from tests.support.service import running_service

pytestmark = pytest.mark.both_databases


@dataclass
class Counted:
    """The statements that all connections of this process run."""

    statements: int = 0


@contextmanager
def counting(database: str) -> Iterator[Counted]:
    counted = Counted()

    def count(*told: object) -> None:
        counted.statements += 1

    if database == "sqlite":
        event.listen(Engine, "before_cursor_execute", count)
        try:
            yield counted
        finally:
            event.remove(Engine, "before_cursor_execute", count)
        return
    # Some reads go straight to the driver.
    psycopg = pytest.importorskip("psycopg")
    execute = psycopg.Cursor.execute

    def executing(*given: Any, **options: Any) -> Any:
        count()
        return execute(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", executing)
        yield counted


def test_a_stored_plan_costs_one_statement_for_the_key_and_one_for_its_staleness(settings: Settings) -> None:
    engine = open_engine(settings.database_url)
    upgrade(engine)
    keys = KeyRepository(engine)
    made = create_key(keys, KeyWish("acme", "ci", frozenset({Scope.ADMIN}), None))
    key = keyed_request(resolved(training()))
    PlanStore(engine, "acme").keep(feasible_plan(key.request), key)
    shown = {"authorization": f"Bearer {made.text}"}
    # On SQLite a transaction begins by a statement of its own.
    begins = 1 if engine.dialect.name == "sqlite" else 0
    with running_service(replace(settings, auth=Auth.REQUIRED), None) as client:

        def by_digest(_: int = 0) -> int:
            return client.get(f"/v1/plans/{key.digest}", headers=shown).status_code

        def by_request() -> int:
            return client.post("/v1/plans", json=training(), headers=shown).status_code

        assert (by_digest(), by_request()) == (200, 200)
        with counting(engine.dialect.name) as counted:
            assert by_digest() == 200
        assert counted.statements == 2 * (1 + begins)
        with counting(engine.dialect.name) as counted:
            assert by_request() == 200
        assert counted.statements == 1 + begins
        with ThreadPoolExecutor(16) as many, counting(engine.dialect.name) as counted:
            assert set(many.map(by_digest, range(64))) == {200}
        assert counted.statements <= 64 * 2 * (1 + begins)
        revoke_key(keys, made.key.prefix, tenant="acme")
        assert (by_digest(), by_request()) == (401, 401), "no answer about a key is remembered"
    engine.dispose()


class Gated:
    """A read that begins when it is let, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.may_answer = threading.Event()
        self.fails = False

    def __call__(self, group: str, keys: Sequence[str]) -> dict[str, str]:
        self.asked.append(tuple(dict.fromkeys(keys)))
        assert self.may_answer.wait(60)
        if self.fails:
            raise StoreError("away")
        return {key: f"{group}:{key}" for key in keys if key != "none"}


@pytest.fixture
def remote(settings: Settings) -> Iterator[Engine]:
    """A PostgreSQL engine: on SQLite nobody waits for another's query."""
    engine = open_engine(settings.database_url)
    if engine.dialect.name == "sqlite":
        pytest.skip("reads of SQLite are answered there and then")
    yield engine
    engine.dispose()


def test_what_is_asked_during_a_query_is_asked_together_in_the_next(remote: Engine) -> None:
    async def run() -> None:
        read = Gated()
        shared = SharedReads(remote, read)
        first = asyncio.create_task(shared.find("a", "0"))
        while not read.asked:
            await asyncio.sleep(0.001)
        # "0" again: the query under way began before this caller came, and may not serve it.
        later = [asyncio.create_task(shared.find("a", key)) for key in ("0", "1", "none", *map(str, range(2, 100)))]
        other = asyncio.create_task(shared.find("b", "0"))
        while len(read.asked) < 2:
            await asyncio.sleep(0.001)
        later[1].cancel()
        read.may_answer.set()
        assert await first == "a:0"
        assert await other == "b:0", "another group waits for no query of this one"
        found = await asyncio.gather(*later, return_exceptions=True)
        assert found[:1] == ["a:0"] and isinstance(found[1], asyncio.CancelledError) and found[2] is None
        assert found[3:] == [f"a:{number}" for number in range(2, 100)]
        of_a = [keys for keys in read.asked if len(keys) > 1]
        assert [len(keys) for keys in of_a] == [MOST_TOGETHER, 101 - MOST_TOGETHER]

    asyncio.run(run())


def test_a_query_that_fails_fails_for_all_who_asked_and_for_no_one_after(remote: Engine) -> None:
    async def run() -> None:
        read = Gated()
        read.fails = True
        read.may_answer.set()
        shared = SharedReads(remote, read)
        failed = await asyncio.gather(*(shared.find("a", str(key)) for key in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [StoreError] * 3
        read.fails = False
        assert await shared.find("a", "0") == "a:0"

    asyncio.run(run())
