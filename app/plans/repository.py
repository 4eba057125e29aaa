"""Plans in the database: written once under their digest, read back byte for byte, listed page by page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, bindparam, select

from meshwright.app.calibrations.repository import note_calibrations
from meshwright.app.db.dialects import in_utc, insert_if_absent
from meshwright.app.db.engine import is_sqlite, reading, writing
from meshwright.app.db.scope import TENANT, owned
from meshwright.app.db.tables.fleet import answers, questions
from meshwright.app.db.tables.metadata import DEFAULT_TENANT
from meshwright.app.db.tables.plans import plans


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


class Staleness(StrEnum):
    """The standing of a plan to the registered models and clusters.

    CURRENT      the answer of now to a question that names one of them
    STALE        still the answer of a question whose model or cluster has changed since
    SUPERSEDED   it answered such a question, and another plan does now
    """

    CURRENT = "current"
    STALE = "stale"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class PlanFilter:
    """The plans that a list holds; None does not filter. ``cluster`` is the name of a registered one."""

    model: str | None = None
    feasible: bool | None = None
    cluster: str | None = None
    status: str | None = None
    staleness: Staleness | None = None


SUMMARY_COLUMNS = tuple(plans.c[name] for name in PlanSummary.__dataclass_fields__)
STORED_COLUMNS = tuple(plans.c[name] for name in StoredPlan.__dataclass_fields__)
_FIND = owned(select(*STORED_COLUMNS), plans, TENANT).where(plans.c.digest == bindparam("digest"))


class PlanRepository:
    """Reads and writes of one tenant's rows of ``plans``. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._engine, self._tenant = engine, tenant

    def find(self, digest: str) -> StoredPlan | None:
        """The plan stored under a digest."""
        with reading(self._engine) as connection:
            return self.find_with(connection, digest)

    def find_with(self, connection: Connection, digest: str) -> StoredPlan | None:
        """As ``find``, in the caller's transaction."""
        row = connection.execute(_FIND, {"tenant": self._tenant, "digest": digest}).mappings().one_or_none()
        return None if row is None else StoredPlan(**in_utc(row))

    def find_by_prefix(self, prefix: str, *, limit: int) -> tuple[str, ...]:
        """At most ``limit`` digests that start with a prefix, in order."""
        with reading(self._engine) as connection:
            found = connection.execute(
                owned(select(plans.c.digest), plans, self._tenant)
                .where(plans.c.digest >= prefix, plans.c.digest < prefix + "~")
                .order_by(plans.c.digest)
                .limit(limit)
            )
            return tuple(found.scalars())

    def add(self, plan: StoredPlan) -> tuple[StoredPlan, bool]:
        """Store a plan unless its digest is stored already; the plan that is stored now, and whether it is this one."""
        with writing(self._engine) as connection:
            if self.add_with(connection, plan):
                return plan, True
        first = self.find(plan.digest)
        assert first is not None, "a plan that was there a moment ago; plans are never deleted"
        return first, False

    def add_with(self, connection: Connection, plan: StoredPlan) -> bool:
        """Store a plan unless its digest is stored already, in the caller's transaction; whether it is new."""
        values = {name: getattr(plan, name) for name in StoredPlan.__dataclass_fields__}
        insert = insert_if_absent(plans, ["tenant", "digest"], is_sqlite=is_sqlite(self._engine))
        added = connection.execute(insert.values(tenant=self._tenant, **values).returning(plans.c.id))
        if added.scalar_one_or_none() is None:
            return False
        note_calibrations(connection, plan=plan.digest, request=plan.request, tenant=self._tenant)
        return True

    def page(self, wanted: PlanFilter, *, before: int | None, limit: int) -> tuple[PlanSummary, ...]:
        """Newest plans first: at most ``limit`` of those that arrived before row ``before``."""
        query = owned(select(*SUMMARY_COLUMNS), plans, self._tenant).order_by(plans.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(plans.c.id < before)
        if wanted.model is not None:
            query = query.where(plans.c.model == wanted.model)
        if wanted.feasible is not None:
            query = query.where(plans.c.feasible.is_(wanted.feasible))
        if wanted.status is not None:
            query = query.where(plans.c.status == wanted.status)
        if wanted.cluster is not None:
            query = query.where(plans.c.digest.in_(self._answers_about(wanted.cluster)))
        if wanted.staleness is not None:
            query = query.where(self._stands(wanted.staleness))
        with reading(self._engine) as connection:
            return tuple(PlanSummary(**in_utc(row)) for row in connection.execute(query).mappings())

    def _answers_about(self, cluster: str) -> Select[Any]:
        """Digests of the plans that answer, or once answered, questions about a cluster."""
        about = owned(select(questions.c.id), questions, self._tenant).where(questions.c.cluster == cluster)
        return owned(select(answers.c.plan), answers, self._tenant).where(answers.c.question.in_(about))

    def _stands(self, staleness: Staleness) -> ColumnElement[bool]:
        current = owned(select(questions.c.plan), questions, self._tenant).where(questions.c.plan.is_not(None))
        if staleness is Staleness.SUPERSEDED:
            ever = owned(select(answers.c.plan), answers, self._tenant)
            return and_(plans.c.digest.in_(ever), plans.c.digest.not_in(current))
        is_stale = questions.c.stale_since.is_not(None)
        return plans.c.digest.in_(current.where(is_stale if staleness is Staleness.STALE else ~is_stale))
