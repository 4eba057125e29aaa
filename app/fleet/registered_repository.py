"""Models and clusters under their names: append-only, every change a new version."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Select, func, select

from meshwright.app.db.dialects import in_utc, insert_if_absent
from meshwright.app.db.engine import is_sqlite, reading
from meshwright.app.db.scope import owned
from meshwright.app.db.tables.fleet import registered
from meshwright.app.errors import VersionChangedError


class RegisteredKind(StrEnum):
    """The kind of a registered document."""

    MODEL = "model"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of what is registered under a name; ``document`` is JSON text, ``digest`` of its canonical form."""

    id: int
    name: str
    version: int
    digest: str
    document: str
    created_at: datetime


COLUMNS = tuple(registered.c[name] for name in Registered.__dataclass_fields__)


class RegisteredRepository:
    """One tenant's registered models or clusters. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str, kind: RegisteredKind):
        self._engine, self._tenant, self._kind = engine, tenant, kind

    def find(self, name: str, version: int | None = None) -> Registered | None:
        """A version under a name, the newest unless told."""
        with reading(self._engine) as connection:
            return self.find_with(connection, name, version)

    def find_with(self, connection: Connection, name: str, version: int | None = None) -> Registered | None:
        """As ``find``, in the caller's transaction."""
        query = owned(select(*COLUMNS), registered, self._tenant).where(
            registered.c.kind == self._kind.value, registered.c.name == name
        )
        if version is not None:
            query = query.where(registered.c.version == version)
        row = connection.execute(query.order_by(registered.c.version.desc()).limit(1)).mappings().one_or_none()
        return None if row is None else Registered(**in_utc(row))

    def put(
        self, connection: Connection, name: str, *, digest: str, document: str, expected: str | None
    ) -> tuple[Registered, bool]:
        """Make this the newest version unless it is already; the newest, and whether it is new.

        expected    digest that the newest version must have; None for any. Raises VersionChangedError.
        """
        newest = self.find_with(connection, name)
        if expected is not None and (newest is None or newest.digest != expected):
            given = "none" if newest is None else f"version {newest.version}, {newest.digest}"
            raise VersionChangedError(f"the {self._kind} {name!r} is at another version", given=given, allowed=expected)
        if newest is not None and newest.digest == digest:
            return newest, False
        version = 1 if newest is None else newest.version + 1
        key = ["tenant", "kind", "name", "version"]
        insert = insert_if_absent(registered, key, is_sqlite=is_sqlite(self._engine)).values(
            tenant=self._tenant,
            kind=self._kind.value,
            name=name,
            version=version,
            digest=digest,
            document=document,
            created_at=datetime.now(UTC),
        )
        if connection.execute(insert.returning(registered.c.id)).scalar_one_or_none() is None:
            raise VersionChangedError(f"the {self._kind} {name!r} was changed at the same time", remedy="read it and try again")
        stored = self.find_with(connection, name, version)
        assert stored is not None, "a row that this transaction wrote"
        return stored, True

    def page(self, *, before: int | None, limit: int) -> tuple[Registered, ...]:
        """The newest version of every name, last changed first: at most ``limit`` of those before row ``before``."""
        mine = owned(select(func.max(registered.c.id)), registered, self._tenant).where(registered.c.kind == self._kind.value)
        query = select(*COLUMNS).where(registered.c.id.in_(mine.group_by(registered.c.name)))
        return self._rows(query, before, limit)

    def versions(self, name: str, *, before: int | None, limit: int) -> tuple[Registered, ...]:
        """The versions under a name, newest first."""
        query = owned(select(*COLUMNS), registered, self._tenant).where(
            registered.c.kind == self._kind.value, registered.c.name == name
        )
        return self._rows(query, before, limit)

    def _rows(self, query: Select[Any], before: int | None, limit: int) -> tuple[Registered, ...]:
        if before is not None:
            query = query.where(registered.c.id < before)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(registered.c.id.desc()).limit(limit)).mappings()
            return tuple(Registered(**in_utc(row)) for row in rows)
