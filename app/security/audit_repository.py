"""The audit log: who changed what, and who was refused. Rows are only ever added here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, insert, select

from meshwright.app.db.dialects import in_utc
from meshwright.app.db.engine import reading, writing
from meshwright.app.db.scope import owned
from meshwright.app.db.tables.security import audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that was asked and what was answered.

    tenant, principal   of the caller; empty for one that could not be authenticated
    action              method and route: "DELETE /v1/keys/{prefix}"
    target              path that was asked
    status              of the answer
    """

    at: datetime
    tenant: str
    principal: str
    action: str
    target: str
    status: int
    request_id: str


@dataclass(frozen=True, slots=True)
class StoredAuditEntry(AuditEntry):
    """An entry with its place in the order of arrival."""

    id: int = 0


class AuditRepository:
    """Reads and writes of the ``audit`` table. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def add(self, entry: AuditEntry) -> None:
        """Add an entry."""
        with writing(self._engine) as connection:
            connection.execute(insert(audit).values({name: getattr(entry, name) for name in AuditEntry.__dataclass_fields__}))

    def page(self, tenant: str, *, before: int | None, limit: int) -> tuple[StoredAuditEntry, ...]:
        """A tenant's entries, newest first: at most ``limit`` of those that came before row ``before``."""
        query = owned(select(audit), audit, tenant).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(StoredAuditEntry(**in_utc(row)) for row in rows)
