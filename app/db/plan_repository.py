"""Plans in the database: written once under their digest, read back byte for byte, listed page by page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Insert, RowMapping, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from app.db.engine import is_sqlite, reading, writing
from app.db.tables import plans


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan's row: what lists and filters need, and the two JSON texts.

    created_at      when it was stored (UTC)
    plan, request   JSON of the plan and of the request it answers
    """

    digest: str
    created_at: datetime
    model: str
    kind: str
    feasible: bool
    status: str
    devices: int
    tokens_per_s: float | None
    plan: str
    request: str


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan's row without its JSON; ``id`` is its place in the order of arrival."""

    id: int
    digest: str
    created_at: datetime
    model: str
    kind: str
    feasible: bool
    status: str
    devices: int
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """Which plans a list holds; None does not filter."""

    model: str | None = None
    feasible: bool | None = None


SUMMARY_COLUMNS = tuple(plans.c[name] for name in PlanSummary.__dataclass_fields__)
STORED_COLUMNS = tuple(plans.c[name] for name in StoredPlan.__dataclass_fields__)


class PlanRepository:
    """Reads and writes of the ``plans`` table. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def find(self, digest: str) -> StoredPlan | None:
        """The plan stored under a digest."""
        with reading(self._engine) as connection:
            row = connection.execute(select(*STORED_COLUMNS).where(plans.c.digest == digest)).mappings().one_or_none()
        return None if row is None else StoredPlan(**_in_utc(row))

    def find_by_prefix(self, prefix: str, *, limit: int) -> tuple[str, ...]:
        """At most ``limit`` digests that start with a prefix, in order."""
        with reading(self._engine) as connection:
            found = connection.execute(
                select(plans.c.digest)
                .where(plans.c.digest >= prefix, plans.c.digest < prefix + "~")
                .order_by(plans.c.digest)
                .limit(limit)
            )
            return tuple(found.scalars())

    def add(self, plan: StoredPlan) -> tuple[StoredPlan, bool]:
        """Store a plan unless its digest is stored already; the plan that is stored now, and whether it is this one."""
        with writing(self._engine) as connection:
            values = {name: getattr(plan, name) for name in StoredPlan.__dataclass_fields__}
            insert = self._insert_if_absent().values(values).returning(plans.c.id)
            added = connection.execute(insert).scalar_one_or_none()
        if added is not None:
            return plan, True
        first = self.find(plan.digest)
        assert first is not None, "a plan that was there a moment ago; plans are never deleted"
        return first, False

    def page(self, wanted: PlanFilter, *, before: int | None, limit: int) -> tuple[PlanSummary, ...]:
        """Newest plans first: at most ``limit`` of those that arrived before row ``before``."""
        query = select(*SUMMARY_COLUMNS).order_by(plans.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(plans.c.id < before)
        if wanted.model is not None:
            query = query.where(plans.c.model == wanted.model)
        if wanted.feasible is not None:
            query = query.where(plans.c.feasible.is_(wanted.feasible))
        with reading(self._engine) as connection:
            return tuple(PlanSummary(**_in_utc(row)) for row in connection.execute(query).mappings())

    def _insert_if_absent(self) -> Insert:
        if is_sqlite(self._engine):
            return sqlite_insert(plans).on_conflict_do_nothing(index_elements=["digest"])
        return postgresql_insert(plans).on_conflict_do_nothing(index_elements=["digest"])


def _in_utc(row: RowMapping | Mapping[str, Any]) -> dict[str, Any]:
    """The row with its time in UTC: SQLite gives it back without a zone."""
    values = dict(row)
    moment: datetime = values["created_at"]
    values["created_at"] = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return values
