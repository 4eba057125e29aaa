"""The tables of calibrations, and of what plans rest on."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text, UniqueConstraint

from meshwright.app.db.tables.metadata import Digest, Name, RowId, UtcTime, metadata, tenant_column

CalibrationName = String(272)
"""A key, "@" and a digest."""

calibrations = Table(
    "calibrations",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("name", CalibrationName, nullable=False),
    Column("key", Name, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("source", Text, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("samples_digest", Digest, nullable=False),
    Column("document", Text, nullable=False),
    UniqueConstraint("tenant", "name", name="uq_calibrations_tenant_name"),
    UniqueConstraint("tenant", "key", "version", name="uq_calibrations_tenant_key_version"),
    sqlite_autoincrement=True,
)
"""Calibrations, append-only: triggers of the database refuse updates and deletes.

name            <key>@sha256:<hex> of the canonical document: a name never means another content
key             the device's calibration key ("h100_sxm"); version counts from 1 within a tenant's key
samples         measured rows that it was fitted to; samples_digest is theirs
document        JSON (meshwright.calibration/1)
"""

plan_calibrations = Table(
    "plan_calibrations",
    metadata,
    Column("id", RowId, primary_key=True),
    tenant_column(),
    Column("plan", Digest, nullable=False),
    Column("key", Name, nullable=False),
    Column("calibration", CalibrationName, nullable=False),
    UniqueConstraint("tenant", "plan", "key", name="uq_plan_calibrations_tenant_plan_key"),
    Index("ix_plan_calibrations_tenant_key", "tenant", "key"),
    sqlite_autoincrement=True,
)
"""The calibrations that each plan rests on: by device key, the calibration used (the key itself: the one that Meshwright
ships)."""
