"""The parts that all tables share: the naming of constraints, the type of row ids, and the tenant column."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String

DEFAULT_TENANT = "default"
"""Tenant of the command line, of a service without authentication, and of what was stored before there were tenants."""

MAX_TENANT = 64

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

UtcTime = DateTime(timezone=True)
Digest = String(71)
Name = String(200)


def tenant_column() -> Column[str]:
    """Who owns the row. Queries see it only through ``app.db.scope``."""
    return Column("tenant", String(MAX_TENANT), nullable=False)
