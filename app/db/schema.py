"""Every table of the database, known to one metadata: what migrations and their test compare with."""

from __future__ import annotations

from app.db import calibration_tables, check_tables, fleet_tables, job_tables, security_tables, tables
from app.db.metadata import metadata

TABLES = (
    tables.plans,
    job_tables.jobs,
    fleet_tables.registered,
    calibration_tables.calibrations,
    security_tables.audit,
    check_tables.checks,
)

__all__ = ["TABLES", "metadata"]
