"""Where SQLite and PostgreSQL differ in what our queries need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    RowMapping,
    Table,
    TextualSelect,
    bindparam,
    func,
    literal_column,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert


def insert_if_absent(table: Table, key: Sequence[str], *, is_sqlite: bool) -> SqliteInsert | PostgresqlInsert:
    """An insert that does nothing when a row with this unique key is there."""
    if is_sqlite:
        return sqlite_insert(table).on_conflict_do_nothing(index_elements=list(key))
    return postgresql_insert(table).on_conflict_do_nothing(index_elements=list(key))


@cache
def compiled_if_absent(
    returned: tuple[Column[Any], ...], key: tuple[str, ...], names: tuple[str, ...], *, clocks: tuple[str, ...], is_sqlite: bool
) -> TextualSelect:
    """As ``insert_if_absent`` of values bound to ``names``, with ``now_s`` in ``clocks``, into the table whose
    columns it returns.

    Compiled once: SQLAlchemy compiles an insert with a conflict clause anew at every call, a tenth of a submission's time.
    """
    table, clock = returned[0].table, _clock_s(is_sqlite=is_sqlite)
    assert isinstance(table, Table), "columns of a table"
    values: dict[str, Any] = {name: bindparam(name) for name in names} | dict.fromkeys(clocks, clock)
    insert = insert_if_absent(table, key, is_sqlite=is_sqlite).values(values).returning(*returned)
    named = (sqlite if is_sqlite else postgresql).dialect(paramstyle="named")
    bound = (bindparam(name, type_=table.c[name].type) for name in names)
    return text(str(insert.compile(dialect=named))).bindparams(*bound).columns(*returned)


def now_s(connection: Connection) -> ColumnElement[float]:
    """The database's clock in seconds of the epoch: machines that share a database agree on it, their own clocks may not."""
    return _clock_s(is_sqlite=connection.dialect.name == "sqlite")


def _clock_s(*, is_sqlite: bool) -> ColumnElement[float]:
    if is_sqlite:
        # Julian day of 1970-01-01T00:00Z (SQLite's documentation, date and time functions).
        return literal_column("(julianday('now') - 2440587.5) * 86400.0", Float)
    return func.extract("epoch", func.clock_timestamp()).cast(Float)


def in_utc(row: RowMapping | Mapping[str, Any]) -> dict[str, Any]:
    """The row with its times in UTC: SQLite gives them back without a zone."""
    return {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
