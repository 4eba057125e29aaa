"""Reports of checks in the database, a tenant's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, insert, select

from meshwright.app.store.engine import reading, writing
from meshwright.app.store.statements import in_utc, owned
from meshwright.app.store.tables import checks


@dataclass(frozen=True, slots=True)
class StoredCheck:
    """A report with when it came, of which project.

    report   JSON of the report (meshwright.check/1)
    """

    id: str
    project: str
    created_at: datetime
    exit_code: int
    report: str


COLUMNS = tuple(checks.c[name] for name in StoredCheck.__dataclass_fields__)


class CheckRepository:
    """Reads and writes of a tenant's rows of ``checks``. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant

    def add(self, check: StoredCheck) -> None:
        """Store a report."""
        values = {name: getattr(check, name) for name in StoredCheck.__dataclass_fields__}
        with writing(self._engine) as connection:
            connection.execute(insert(checks).values(tenant=self._tenant, **values))

    def find(self, check_id: str) -> StoredCheck | None:
        """The report of that id."""
        query = owned(select(*COLUMNS), checks, self._tenant).where(checks.c.id == check_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else StoredCheck(**in_utc(row))

    def page(self, project: str | None, *, before: int | None, limit: int) -> tuple[tuple[int, StoredCheck], ...]:
        """Newest reports first, each with its row: at most ``limit`` of those that arrived before row ``before``."""
        query = owned(select(checks.c.row, *COLUMNS), checks, self._tenant).order_by(checks.c.row.desc()).limit(limit)
        if project is not None:
            query = query.where(checks.c.project == project)
        if before is not None:
            query = query.where(checks.c.row < before)
        with reading(self._engine) as connection:
            rows = [in_utc(row) for row in connection.execute(query).mappings()]
        return tuple((row.pop("row"), StoredCheck(**row)) for row in rows)
