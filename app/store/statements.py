"""Where SQLite and PostgreSQL differ in what our queries need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self, TypeVar

from sqlalchemy import (
    ARRAY,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Engine,
    Float,
    Insert,
    RowMapping,
    Select,
    String,
    Table,
    TextClause,
    TextualSelect,
    Update,
    any_,
    bindparam,
    func,
    literal_column,
    or_,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresqlInsert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.engine.interfaces import SchemaTranslateMapType
from sqlalchemy.exc import DBAPIError

from meshwright.app.store.engine import is_sqlite, reading


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


# Whose rows a query sees. Every query of a table with a ``tenant`` column goes through here, and only through here.
#
# What another tenant owns does not exist for the one who asks: endpoints answer 404, never 403.

Scoped = TypeVar("Scoped", Select[Any], Update, Delete)


TENANT = bindparam("tenant", type_=String)
"""Stands for the tenant in statements that are built once: building one takes longer than running it."""


def owned(statement: Scoped, table: Table, tenant: str | BindParameter[str]) -> Scoped:
    """The statement, seeing only the tenant's rows of the table."""
    return statement.where(table.c.tenant == tenant)


# Inserts that are compiled once: SQLAlchemy compiles those with a conflict clause anew at every call, a millisecond each.

Compiled = TextClause | TextualSelect

SQLITE_SCHEMA = "main"
"""The schema of a connection's own file (SQLite's documentation, ATTACH DATABASE)."""


@cache
def compiled_if_absent(
    returned: tuple[Column[Any], ...], key: tuple[str, ...], names: tuple[str, ...], *, clocks: tuple[str, ...], is_sqlite: bool
) -> Compiled:
    """As ``insert_if_absent`` of values bound to ``names``, with ``now_s`` in ``clocks``, into the table whose
    columns it returns.
    """
    table = returned[0].table
    assert isinstance(table, Table), "columns of a table"
    clock = clock_s(is_sqlite=is_sqlite)
    values: dict[str, Any] = {name: bindparam(name) for name in names} | dict.fromkeys(clocks, clock)
    insert = insert_if_absent(table, key, is_sqlite=is_sqlite).values(values).returning(*returned)
    return _compiled(insert, is_sqlite=is_sqlite)


class CompilingOnce:
    """Stands in for an SQLite connection on which others execute inserts that they build anew each time.

    Inserts into one table with one set of columns are taken for the same statement: ``compiled`` keeps what they are compiled
    to. Options that are set apply to the compilation, and leave the connection as it was.
    """

    def __init__(self, connection: Connection, compiled: dict[tuple[str, tuple[str, ...]], Compiled]):
        self._connection, self._compiled = connection, compiled
        self._options: dict[str, Any] = {}

    def get_execution_options(self) -> Mapping[str, Any]:
        """The connection's options, and those set here."""
        return {**self._connection.get_execution_options(), **self._options}

    def execution_options(self, **options: Any) -> Self:
        """Set options."""
        self._options |= options
        return self

    def execute(self, statement: Insert, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute an insert of one row, compiled at its first use."""
        key = (statement.entity_description["table"].name, tuple(values))
        if key not in self._compiled:
            schemas = self._options.get("schema_translate_map")
            self._compiled[key] = _compiled(statement, list(values), schemas, is_sqlite=True)
        return self._connection.execute(self._compiled[key], values)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the connection's own."""
        return getattr(self._connection, name)


def _compiled(
    insert: Insert, columns: Sequence[str] | None = None, schemas: SchemaTranslateMapType | None = None, *, is_sqlite: bool
) -> Compiled:
    """The insert as text, whose values are bound by name.

    columns    those that values are given for; None where the insert says it itself
    schemas    names to put in place of those of its schemas
    """
    named = (sqlite if is_sqlite else postgresql).dialect(paramstyle="named")
    named.default_schema_name = SQLITE_SCHEMA if is_sqlite else None
    compiled = insert.compile(
        dialect=named, column_keys=columns, schema_translate_map=schemas, render_schema_translate=schemas is not None
    )
    bound = (bindparam(name, bind.value, type_=bind.type) for name, bind in compiled.binds.items())
    statement = text(str(compiled)).bindparams(*bound)
    returned = tuple(insert.exported_columns)
    return statement.columns(*returned) if returned else statement


# Rows by their keys, asked for with every request: on PostgreSQL straight from the driver.
#
# Of the processor time of such a read half is SQLAlchemy's (117 of 234 microseconds for an API key): it makes the statement's
# text anew for each number of keys, and a result around the rows. Connections, deadlines and errors are those of all reads.

Row = Mapping[str, Any]


class QuickRows:
    """A query whose rows are found by a column that has one of some values; all of it is bound by name.

    values   the name of the list of values
    """

    def __init__(self, query: Select[Any], column: Column[Any], values: str):
        self._names = tuple(query.selected_columns.keys())
        self._of_sqlite = query.where(column.in_(bindparam(values, expanding=True)))
        # One form of the statement for any number of values, which the driver prepares.
        self._of_postgresql = query.where(column == any_(bindparam(values, type_=ARRAY(column.type))))
        self._text: str | None = None

    def find(self, engine: Engine, given: Mapping[str, Any]) -> list[Row]:
        """The rows; raises StoreError when the database can't answer."""
        with reading(engine) as connection:
            if is_sqlite(engine):
                return [*connection.execute(self._of_sqlite, given).mappings()]
            return self._of_driver(connection, given)

    def _of_driver(self, connection: Connection, given: Mapping[str, Any]) -> list[Row]:
        if self._text is None:
            self._text = str(self._of_postgresql.compile(dialect=connection.dialect))
        driver, errors = connection.connection, connection.dialect.loaded_dbapi.Error
        cursor = driver.cursor()
        try:
            cursor.execute(self._text, given)
            return [dict(zip(self._names, row, strict=True)) for row in cursor.fetchall()]
        except errors as error:
            is_broken = connection.dialect.is_disconnect(error, driver.driver_connection, cursor)
            if is_broken:
                connection.invalidate(error)
            raise DBAPIError.instance(
                self._text, dict(given), error, errors, connection_invalidated=is_broken, dialect=connection.dialect
            ) from error
        finally:
            cursor.close()
