"""PostgreSQL that is frozen, and comes back: who asks is told to come again, at once, and nothing must be restarted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, text

from meshwright.app.base.errors import StoreError
from meshwright.app.service.engine import migrate_queue
from meshwright.app.store.engine import HELD_S, Deadlines, Pause, open_engine, reading, writing
from meshwright.app.store.migrate import upgrade
from tests.attacks.served import served, watching
from tests.attacks.stalled_database import frozen
from tests.crash.databases import Database, postgresql_cluster, postgresql_programs

pytestmark = pytest.mark.skipif(
    postgresql_programs() is None, reason="needs PostgreSQL's programs, and root to become another user"
)


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with postgresql_cluster("-c fsync=off") as cluster:
        engine = open_engine(cluster.url)
        upgrade(engine)
        engine.dispose()
        migrate_queue(cluster.url)
        yield cluster


@pytest.mark.slow
def test_a_frozen_database_holds_nobody_up(database: Database, tmp_path: Path) -> None:
    port = database.url.rsplit(":", 1)[1].split("/")[0]
    statuses: Counter[int] = Counter()
    with served(database.url, tmp_path) as service, httpx.Client(base_url=service.url, timeout=60) as client:
        assert client.get("/v1/plans").status_code == 200

        def ask() -> None:
            statuses[httpx.get(f"{service.url}/v1/plans", timeout=60).status_code] += 1

        with frozen(port), watching(f"{service.url}/healthz") as watch:
            askers = [threading.Thread(target=ask) for _ in range(60)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            later = client.get("/v1/plans")
            assert later.status_code == 503
            assert int(later.headers["retry-after"]) > 0
            assert client.get("/readyz").status_code == 503
        assert set(statuses) == {503}
        assert watch.statuses == {200}
        assert watch.slowest_s() < HELD_S, "the process was silent for as long as the database"
        for _ in range(100):
            if client.get("/v1/plans").status_code == 200:
                break
            time.sleep(0.2)
        else:
            pytest.fail("it does not recover")


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = open_engine(database.url)
    yield engine
    engine.dispose()


def test_a_statement_that_takes_too_long_is_ended(engine: Engine) -> None:
    with pytest.raises(StoreError), reading(engine) as connection:
        connection.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": 4 * HELD_S})
    for _ in range(50):
        try:
            with writing(engine) as connection:
                assert connection.execute(text("SELECT 1")).scalar_one() == 1
            break
        except StoreError:
            time.sleep(0.2)
    else:
        pytest.fail("it does not recover")


def test_a_connection_that_is_held_too_long_is_ended(engine: Engine) -> None:
    Deadlines(engine, Pause(), held_s=0.5)
    with pytest.raises(StoreError):
        _hold(engine, 10.0)


def _hold(engine: Engine, for_s: float) -> None:
    with writing(engine) as connection:
        for _ in range(int(10 * for_s)):
            connection.execute(text("SELECT 1"))
            time.sleep(0.1)


def test_of_a_database_that_does_not_answer_one_asks_at_a_time() -> None:
    now_s = 0.0
    pause = Pause(lambda: now_s)
    assert pause.may_try() and pause.may_try()
    pause.missed()
    assert not pause.may_try()
    now_s = 1.5
    assert pause.may_try()
    assert not pause.may_try()
    pause.answered()
    assert pause.may_try() and pause.may_try()
