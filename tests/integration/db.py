"""Shared by the tests of db and others: ROW, numbered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from meshwright.app.store.plans import StoredPlan

ROW = StoredPlan(
    digest="sha256:" + "a" * 64,
    created_at=datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    model="llama",
    kind="training",
    feasible=True,
    status="optimal",
    devices=8,
    tokens_per_s=61_000.5,
    plan='{"schema":"meshwright.plan/1","note":"ü"}',
    request="{}",
)


def numbered(number: int, **changes: object) -> StoredPlan:
    return replace(ROW, digest=f"sha256:{number:064x}", **changes)  # type: ignore[arg-type]
