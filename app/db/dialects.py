"""Where SQLite and PostgreSQL differ in what our queries need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, RowMapping, Table, func, literal_column, or_
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert


def insert_if_absent(table: Table, key: Sequence[str], *, is_sqlite: bool) -> SqliteInsert | PostgresqlInsert:
    """An insert that does nothing when a row with this unique key is there."""
    if is_sqlite:
        return sqlite_insert(table).on_conflict_do_nothing(index_elements=list(key))
    return postgresql_insert(table).on_conflict_do_nothing(index_elements=list(key))


def now_s(connection: Connection) -> ColumnElement[float]:
    """The database's clock in seconds of the epoch: machines that share a database agree on it, their own clocks may not."""
    return clock_s(is_sqlite=connection.dialect.name == "sqlite")


def is_silent(beat_s: ColumnElement[float], connection: Connection, *, for_s: float) -> ColumnElement[bool]:
    """The condition that a beat is older than that, or as far in the future: then the clock was set back, and it says nothing.

    Whoever is alive beats again at once.
    """
    return or_(beat_s < now_s(connection) - for_s, beat_s > now_s(connection) + for_s)


def clock_s(*, is_sqlite: bool) -> ColumnElement[float]:
    """As ``now_s``, for statements that are made before there is a connection."""
    if is_sqlite:
        # Julian day of 1970-01-01T00:00Z (SQLite's documentation, date and time functions).
        return literal_column("(julianday('now') - 2440587.5) * 86400.0", Float)
    return func.extract("epoch", func.clock_timestamp()).cast(Float)


def in_utc(row: RowMapping | Mapping[str, Any]) -> dict[str, Any]:
    """The row with its times in UTC: SQLite gives them back without a zone."""
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in row.items()}


def utc(moment: datetime) -> datetime:
    """The moment in UTC: SQLite gives it back without a zone, PostgreSQL in the zone that its server is set to."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
