"""The tables. ``migrations/`` creates them; a test compares the two."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Float, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    }
)

# SQLite numbers rows by itself only in a column of exactly the type INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")

plans = Table(
    "plans",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("digest", String(71), nullable=False, unique=True),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("model", String(200), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("feasible", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("devices", BigInteger, nullable=False),
    Column("tokens_per_s", Float(53), nullable=True),
    Column("plan", Text, nullable=False),
    Column("request", Text, nullable=False),
    Index("ix_plans_model_id", "model", "id"),
    sqlite_autoincrement=True,
)
"""Plans, never changed once written: the row that comes first for a digest stays.

id             order of arrival, what list cursors count
digest         sha256:<hex> of the canonical request
status         of the certificate
plan, request  JSON of the plan (meshwright.plan/1) and of the resolved request (meshwright.request/1)
"""
