"""The table of checks: what continuous integration found, run by run."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text

from meshwright.app.db.tables.metadata import Name, RowId, UtcTime, metadata, tenant_column

checks = Table(
    "checks",
    metadata,
    Column("row", RowId, primary_key=True),
    Column("id", String(36), nullable=False, unique=True),
    tenant_column(),
    Column("project", Name, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("exit_code", Integer, nullable=False),
    Column("report", Text, nullable=False),
    Index("ix_checks_tenant_row", "tenant", "row"),
    Index("ix_checks_tenant_project_row", "tenant", "project", "row"),
    sqlite_autoincrement=True,
)
"""Reports of checks (meshwright.check/1), never changed once written."""
