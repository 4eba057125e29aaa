"""Webhook secrets in the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select, text, update

from meshwright.app.db.dialects import in_utc
from meshwright.app.db.engine import reading
from meshwright.app.db.scope import owned
from meshwright.app.db.tables.security import webhook_secrets

_POSTGRESQL_LOCK = 0x6D657368_686F6F6B


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret's row; the fields are described at the table."""

    id: str
    tenant: str
    salt: str
    sha256: str
    created_at: datetime
    ends_at: datetime | None

    def is_valid_at(self, moment: datetime) -> bool:
        """Return True if calls of that moment are signed with it."""
        return self.ends_at is None or moment < self.ends_at


class WebhookSecretRepository:
    """Reads and writes of the ``webhook_secrets`` table. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def find(self, secret_id: str) -> StoredSecret | None:
        """The secret under an identifier, whosever it is."""
        with reading(self.engine) as connection:
            row = connection.execute(select(webhook_secrets).where(webhook_secrets.c.id == secret_id)).mappings().one_or_none()
        return None if row is None else StoredSecret(**in_utc(row))

    def list(self, tenant: str | None) -> tuple[StoredSecret, ...]:
        """The secrets of a tenant, or of all, oldest first."""
        with reading(self.engine) as connection:
            return self.all_with(connection, tenant)

    def all_with(self, connection: Connection, tenant: str | None) -> tuple[StoredSecret, ...]:
        """As ``list``, in the caller's transaction."""
        query = select(webhook_secrets).order_by(webhook_secrets.c.created_at, webhook_secrets.c.id)
        if tenant is not None:
            query = owned(query, webhook_secrets, tenant)
        return tuple(StoredSecret(**in_utc(row)) for row in connection.execute(query).mappings())

    def lock(self, connection: Connection) -> None:
        """Let one process rotate at a time: SQLite's BEGIN IMMEDIATE does, PostgreSQL needs an advisory lock."""
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRESQL_LOCK})

    def add(self, connection: Connection, secret: StoredSecret) -> None:
        """Store a new secret."""
        values = {name: getattr(secret, name) for name in StoredSecret.__dataclass_fields__}
        connection.execute(insert(webhook_secrets).values(values))

    def end(self, connection: Connection, secret_id: str, *, tenant: str, at: datetime) -> None:
        """Sign nothing with a secret from a moment on, unless it ends before."""
        mine = owned(update(webhook_secrets), webhook_secrets, tenant).where(webhook_secrets.c.id == secret_id)
        later = webhook_secrets.c.ends_at.is_(None) | (webhook_secrets.c.ends_at > at)
        connection.execute(mine.where(later).values(ends_at=at))
