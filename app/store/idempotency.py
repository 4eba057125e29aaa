"""Calls that must happen once, by the key their caller gave them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, select

from meshwright.app.base.errors import KeyReusedError
from meshwright.app.store.engine import is_sqlite, reading
from meshwright.app.store.statements import insert_if_absent, owned
from meshwright.app.store.tables import idempotency_keys


class IdempotencyRepository:
    """One tenant's idempotency keys. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant

    def target(self, key: str, fingerprint: str) -> str | None:
        """Return the target that the call of a key led to; None for a new key. Raises KeyReusedError when the call was
        another."""
        with reading(self._engine) as connection:
            return self._target(connection, key, fingerprint)

    def note(self, connection: Connection, key: str, fingerprint: str, target: str) -> str:
        """Note what a call leads to, in the caller's transaction; what it led to before, if it was made already."""
        insert = insert_if_absent(idempotency_keys, ["tenant", "key"], is_sqlite=is_sqlite(self._engine))
        connection.execute(
            insert.values(tenant=self._tenant, key=key, fingerprint=fingerprint, target=target, created_at=datetime.now(UTC))
        )
        return self._target(connection, key, fingerprint) or target

    def _target(self, connection: Connection, key: str, fingerprint: str) -> str | None:
        columns = (idempotency_keys.c.fingerprint, idempotency_keys.c.target)
        query = owned(select(*columns), idempotency_keys, self._tenant).where(idempotency_keys.c.key == key)
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        if row.fingerprint != fingerprint:
            raise KeyReusedError("the idempotency key was used for another call", given=key, remedy="use a new key")
        return str(row.target)
