"""Every table of the database, known to one metadata: what migrations and their test compare with."""

from __future__ import annotations

from meshwright.app.db.tables import calibrations, checks, fleet, jobs, plans, runs, security
from meshwright.app.db.tables.metadata import metadata

__all__ = ["calibrations", "checks", "fleet", "jobs", "metadata", "plans", "runs", "security"]
