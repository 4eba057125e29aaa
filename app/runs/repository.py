"""Measured runs in the database: only ever added, each once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, select

from meshwright.app.db.dialects import in_utc, insert_if_absent
from meshwright.app.db.engine import is_sqlite, reading
from meshwright.app.db.scope import owned
from meshwright.app.db.tables.metadata import DEFAULT_TENANT
from meshwright.app.db.tables.runs import runs


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be stored; its fields are described at the table."""

    digest: str
    created_at: datetime
    cluster: str
    profile: str
    model: str
    plan: str
    kind: str
    outcome: str
    run: str
    predicted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun(NewRun):
    """A run's row; ``id`` is its place in the order of arrival."""

    id: int


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs that a list holds; None does not filter."""

    cluster: str | None = None
    profile: str | None = None
    model: str | None = None
    plan: str | None = None


COLUMNS = tuple(runs.c[name] for name in StoredRun.__dataclass_fields__)


class RunRepository:
    """Reads and additions of one tenant's runs. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant

    def add_with(self, connection: Connection, run: NewRun) -> tuple[StoredRun, bool]:
        """Store a run unless it is stored already, in the caller's transaction; the row, and whether it is new."""
        values = {name: getattr(run, name) for name in NewRun.__dataclass_fields__}
        insert = insert_if_absent(runs, ["tenant", "digest"], is_sqlite=is_sqlite(self._engine))
        added = connection.execute(insert.values(tenant=self._tenant, **values).returning(runs.c.id)).scalar_one_or_none()
        mine = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.digest == run.digest)
        return _run(connection.execute(mine).mappings().one()), added is not None

    def find(self, digest: str) -> StoredRun | None:
        """The run of a digest."""
        mine = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.digest == digest)
        with reading(self._engine) as connection:
            row = connection.execute(mine).mappings().one_or_none()
        return None if row is None else _run(row)

    def page(self, wanted: RunFilter, *, before: int | None, limit: int) -> tuple[StoredRun, ...]:
        """Newest runs first: at most ``limit`` of those that arrived before row ``before``."""
        query = owned(select(*COLUMNS), runs, self._tenant).order_by(runs.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(runs.c.id < before)
        for name in RunFilter.__dataclass_fields__:
            value = getattr(wanted, name)
            if value is not None:
                query = query.where(runs.c[name] == value)
        with reading(self._engine) as connection:
            return tuple(_run(row) for row in connection.execute(query).mappings())

    def of_group(self, connection: Connection, cluster: str, profile: str, *, limit: int) -> tuple[StoredRun, ...]:
        """The latest runs of a hardware and a profile, oldest first, in the caller's transaction."""
        query = owned(select(*COLUMNS), runs, self._tenant).where(runs.c.cluster == cluster, runs.c.profile == profile)
        found = connection.execute(query.order_by(runs.c.id.desc()).limit(limit)).mappings().all()
        return tuple(_run(row) for row in reversed(found))


def _run(row: RowMapping) -> StoredRun:
    return StoredRun(**in_utc(row))
