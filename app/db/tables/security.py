"""The tables of who may do what, and who did."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table

from meshwright.app.db.tables.metadata import Name, RowId, UtcTime, metadata, tenant_column

api_keys = Table(
    "api_keys",
    metadata,
    Column("prefix", String(12), primary_key=True),
    Column("sha256", String(64), nullable=False),
    tenant_column(),
    Column("name", Name, nullable=False),
    Column("scopes", String(200), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=True),
    Column("revoked_at", UtcTime, nullable=True),
)
"""API keys: of a key's text only the prefix and a hash of the whole. ``scopes`` are separated by spaces."""

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("at", UtcTime, nullable=False),
    tenant_column(),
    Column("principal", String(300), nullable=False),
    Column("action", String(200), nullable=False),
    Column("target", String(1000), nullable=False),
    Column("status", Integer, nullable=False),
    Column("request_id", String(128), nullable=False),
    Index("ix_audit_tenant_id", "tenant", "id"),
    sqlite_autoincrement=True,
)
"""Who changed what, and who was refused; rows are only ever added, and deleted once they are old (`app.worker.retention`)."""

webhook_secrets = Table(
    "webhook_secrets",
    metadata,
    Column("id", String(12), primary_key=True),
    tenant_column(),
    Column("salt", String(64), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("ends_at", UtcTime, nullable=True),
    Index("ix_webhook_secrets_tenant", "tenant"),
)
"""Secrets that webhook calls of a tenant are signed with. A row alone gives no secret: the service's own is needed too.

salt     random; the secret is made of it and of the service's own secret
sha256   of the secret's text, hexadecimal: whether it is still the one that was shown
ends_at  from when nothing is signed with it; null for never
"""
