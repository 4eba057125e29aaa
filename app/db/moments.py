"""Moments in the database."""

from __future__ import annotations

from datetime import UTC, datetime


def in_utc(moment: datetime) -> datetime:
    """The moment with its zone, UTC: SQLite gives it back without one."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
