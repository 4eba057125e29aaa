"""The table of measured runs of plans."""

from __future__ import annotations

from sqlalchemy import Column, Index, String, Table, Text, UniqueConstraint

from meshwright.app.db.tables.metadata import Digest, Name, RowId, UtcTime, metadata, tenant_column

runs = Table(
    "runs",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("digest", Digest, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("profile", Name, nullable=False),
    Column("model", Name, nullable=False),
    Column("plan", Digest, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("run", Text, nullable=False),
    Column("predicted", Text, nullable=False),
    UniqueConstraint("tenant", "digest", name="uq_runs_tenant_digest"),
    Index("ix_runs_tenant_cluster_profile_id", "tenant", "cluster", "profile", "id"),
    Index("ix_runs_tenant_plan_id", "tenant", "plan", "id"),
    sqlite_autoincrement=True,
)
"""Measured runs, append-only: triggers of the database refuse updates and deletes.

digest           sha256:<hex> of the canonical run: the same run reported twice is one row
cluster, profile the hardware that it ran on, and the framework's profile or the launcher that ran it
plan             digest of the plan that ran
run              JSON of what was measured (meshwright.run/1)
predicted        JSON of what the cost model said of the plan without any correction from runs
"""
