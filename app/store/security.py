"""API keys in the database. What is stored of a key lets nobody use it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, insert, select, text, update

from meshwright.app.base.errors import KeyNotFoundError
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.statements import QuickRows, in_utc, owned
from meshwright.app.store.tables import api_keys, audit, webhook_secrets

# API keys: ``mwk_<prefix>_<secret>``. The prefix names a key in lists and logs; of the rest only a hash is kept.
#
# A key holds 256 random bits, so that one round of SHA-256 is as good as a slow hash and costs a request nothing.

KEY_PATTERN = re.compile(r"mwk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
PREFIX_PATTERN = re.compile(r"[0-9a-f]{12}")
PREFIX_BYTES = 6
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made: the only moment at which its text is known."""

    text: str
    prefix: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored.

    prefix       names it
    sha256       of its whole text, hexadecimal
    expires_at   from when it is refused; None for never
    revoked_at   since when it is refused; None while it is not
    """

    prefix: str
    sha256: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def principal(self) -> Principal:
        """The caller that shows this key."""
        return Principal(self.tenant, f"key:{self.prefix}", self.scopes)

    def is_valid_at(self, moment: datetime) -> bool:
        """Return True if the key is neither expired nor revoked."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)

    def matches(self, text: str) -> bool:
        """Return True if a text is this key, compared in constant time."""
        return hmac.compare_digest(self.sha256, sha256_of(text))


def make_key() -> NewKey:
    """A key of random bits."""
    prefix = secrets.token_hex(PREFIX_BYTES)
    text = f"mwk_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(text, prefix, sha256_of(text))


def prefix_of(text: str) -> str | None:
    """The prefix in a key's text; None for what is no key."""
    found = KEY_PATTERN.fullmatch(text)
    return None if found is None else found[1]


def sha256_of(text: str) -> str:
    """Hexadecimal SHA-256 of a key's text."""
    return hashlib.sha256(text.encode()).hexdigest()


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


# Webhook secrets in the database.

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


# The audit log: who changed what, and who was refused. Rows are only ever added here.


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
