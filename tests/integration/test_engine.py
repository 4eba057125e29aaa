"""Connections to PostgreSQL: how reads use them, and what becomes of those that the database has closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from meshwright.app.store import engine as engines
from meshwright.app.store.engine import open_engine, reading, writing

OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def engine(postgresql: Engine) -> Iterator[Engine]:
    engine = open_engine(postgresql.url.render_as_string(hide_password=False))
    yield engine
    engine.dispose()


def test_an_idle_connection_that_was_closed_is_replaced(
    engine: Engine, postgresql: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_AFTER_S", 0.0)
    query = text("SELECT pg_backend_pid()")
    with reading(engine) as connection:
        before = connection.execute(query).scalar_one()
    with writing(postgresql) as connection:
        connection.execute(text(f"SELECT pg_terminate_backend(pid) {OTHERS}"))
    with reading(engine) as connection:
        assert connection.execute(query).scalar_one() != before


def test_a_read_holds_no_transaction_and_a_write_does(engine: Engine) -> None:
    moments = text("SELECT now()")
    with reading(engine) as connection:
        assert connection.execute(moments).scalar_one() < connection.execute(moments).scalar_one()
    # The same connection, from the pool.
    with writing(engine) as connection:
        assert connection.execute(moments).scalar_one() == connection.execute(moments).scalar_one()
