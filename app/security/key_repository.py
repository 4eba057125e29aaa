"""API keys in the database. What is stored of a key lets nobody use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, RowMapping, insert, select, update

from meshwright.app.db.dialects import in_utc
from meshwright.app.db.engine import reading, writing
from meshwright.app.db.quick_rows import QuickRows
from meshwright.app.db.scope import owned
from meshwright.app.db.tables.security import api_keys
from meshwright.app.errors import KeyNotFoundError
from meshwright.app.security.api_keys import ApiKey
from meshwright.app.security.principal import Scope

_BY_PREFIX = QuickRows(select(api_keys), api_keys.c.prefix, "prefixes")


class KeyRepository:
    """Reads and writes of the ``api_keys`` table. Every method raises StoreError when the database can't serve it.

    All but ``find`` and ``find_all`` see one tenant's keys, or every tenant's where ``tenant`` is None.
    """

    def __init__(self, engine: Engine):
        self.engine = engine

    def find(self, prefix: str) -> ApiKey | None:
        """The key of that prefix, whosever it is: who shows it is not known before."""
        return self.find_all((prefix,)).get(prefix)

    def find_all(self, prefixes: Sequence[str]) -> dict[str, ApiKey]:
        """The keys of these prefixes, as ``find``; a prefix without a key is left out."""
        rows = _BY_PREFIX.find(self.engine, {"prefixes": list(prefixes)})
        return {row["prefix"]: _key(row) for row in rows}

    def add(self, key: ApiKey) -> None:
        """Store a new key."""
        values = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
        with writing(self.engine) as connection:
            connection.execute(insert(api_keys).values({**values, "scopes": " ".join(sorted(key.scopes))}))

    def list(self, tenant: str | None) -> tuple[ApiKey, ...]:
        """Keys, oldest first."""
        query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.prefix)
        if tenant is not None:
            query = owned(query, api_keys, tenant)
        with reading(self.engine) as connection:
            return tuple(_key(row) for row in connection.execute(query).mappings())

    def get(self, prefix: str, *, tenant: str | None) -> ApiKey:
        """A key; raises KeyNotFoundError, for one of another tenant as well."""
        key = self.find(prefix)
        if key is None or tenant not in (None, key.tenant):
            raise KeyNotFoundError("no API key has this prefix", given=prefix)
        return key

    def revoke(self, prefix: str, *, tenant: str | None, at: datetime) -> ApiKey:
        """Refuse a key from now on; one that was revoked before stays as it was. Raises KeyNotFoundError."""
        return self._end(prefix, tenant, "revoked_at", at)

    def expire(self, prefix: str, *, tenant: str | None, at: datetime) -> ApiKey:
        """Refuse a key from a moment on, unless it ends before. Raises KeyNotFoundError."""
        key = self.get(prefix, tenant=tenant)
        return key if key.expires_at is not None and key.expires_at <= at else self._end(prefix, tenant, "expires_at", at)

    def _end(self, prefix: str, tenant: str | None, column: str, at: datetime) -> ApiKey:
        self.get(prefix, tenant=tenant)
        where = api_keys.c.prefix == prefix
        if column == "revoked_at":
            where &= api_keys.c.revoked_at.is_(None)
        with writing(self.engine) as connection:
            connection.execute(update(api_keys).where(where).values({column: at}))
        return self.get(prefix, tenant=tenant)


def _key(row: RowMapping | Mapping[str, Any]) -> ApiKey:
    values = in_utc(row)
    return ApiKey(**{**values, "scopes": frozenset(Scope(name) for name in values["scopes"].split())})
