"""Inserts that are compiled once: SQLAlchemy compiles those with a conflict clause anew at every call, a millisecond each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

from sqlalchemy import Column, Connection, CursorResult, Insert, Table, TextClause, TextualSelect, bindparam, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import SchemaTranslateMapType

from meshwright.app.db.dialects import clock_s, insert_if_absent

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
