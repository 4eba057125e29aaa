"""Rows by their keys, asked for with every request: on PostgreSQL straight from the driver.

Of the processor time of such a read half is SQLAlchemy's (117 of 234 microseconds for an API key): it makes the statement's
text anew for each number of keys, and a result around the rows. Connections, deadlines and errors are those of all reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ARRAY, Column, Connection, Engine, Select, any_, bindparam
from sqlalchemy.exc import DBAPIError

from meshwright.app.db.engine import is_sqlite, reading

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
