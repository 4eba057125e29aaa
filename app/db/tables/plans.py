"""The table of plans. ``migrations/`` creates the tables; a test compares the two."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, String, Table, Text, UniqueConstraint

from meshwright.app.db.tables.metadata import Digest, Name, RowId, UtcTime, metadata, tenant_column

plans = Table(
    "plans",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("digest", Digest, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("model", Name, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("feasible", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("tokens_per_s", Float(53), nullable=True),
    Column("plan", Text, nullable=False),
    Column("request", Text, nullable=False),
    UniqueConstraint("tenant", "digest", name="uq_plans_tenant_digest"),
    Index("ix_plans_tenant_model_id", "tenant", "model", "id"),
    sqlite_autoincrement=True,
)
"""Plans, never changed once written: the row that comes first for a tenant and digest stays.

id             order of arrival, what list cursors count
digest         sha256:<hex> of the canonical request
status         of the certificate
plan, request  JSON of the plan (meshwright.plan/1) and of the resolved request (meshwright.request/1)
"""
