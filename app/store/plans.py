"""Plans kept and found again: documents on this side, rows on the other."""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, bindparam, select

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import PlanNotFoundError
from meshwright.app.requests.digests import DIGEST_PATTERN, SHORT_DIGEST_PATTERN, KeyedRequest
from meshwright.app.requests.plan_documents import join_texts, plan_document
from meshwright.app.store.calibrations import CalibrationRepository, StaleUse, Standing, note_calibrations
from meshwright.app.store.engine import is_sqlite, read_soon, reading, writing
from meshwright.app.store.shared_reads import SharedReads
from meshwright.app.store.statements import TENANT, in_utc, insert_if_absent, owned
from meshwright.app.store.tables import DEFAULT_TENANT, answers, plans, questions
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.units import MIB
from meshwright.solver.answer.plan import Plan

# Plans in the database: written once under their digest, read back byte for byte, listed page by page.


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

    def hold(self, connection: Connection, digest: str) -> bool:
        """Return True if a plan is stored; it stays so until the transaction ends."""
        held = owned(select(plans.c.id), plans, self._tenant).where(plans.c.digest == digest)
        locked = held.with_for_update(read=True, key_share=True)
        return connection.execute(locked).scalar_one_or_none() is not None

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
        # Deleted since, within a moment: it was stored, and that its owner does not want it is known.
        return first or plan, False

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


def plan_row(plan: Plan, key: KeyedRequest) -> StoredPlan:
    """The row of a plan that is stored now."""
    return StoredPlan(
        digest=key.digest,
        created_at=datetime.now(UTC),
        model=plan.model,
        kind=plan.kind,
        feasible=plan.feasible,
        status=plan.certificate.status.value,
        devices=plan.devices,
        tokens_per_s=plan.predicted.tokens_per_s if plan.predicted else None,
        plan=compact_json(plan_document(replace(plan, digest=key.digest))),
        request=key.text,
    )


def check_digest(digest: str) -> None:
    """Refuse what is no digest; raises PlanFileError."""
    if not DIGEST_PATTERN.fullmatch(digest):
        raise PlanFileError("this is no digest", given=digest, allowed="sha256: and 64 hexadecimal digits")


class PlanStore:
    """One tenant's plan documents by digest. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str = DEFAULT_TENANT):
        self._plans = PlanRepository(engine, tenant)
        self._calibrations = CalibrationRepository(engine, tenant)

    def find(self, digest: str) -> str | None:
        """Text of the plan document stored under a digest."""
        stored = self._plans.find(digest)
        return None if stored is None else join_texts(stored.plan, stored.request)

    def get(self, digest: str) -> str:
        """As ``find``; raises PlanNotFoundError when there is none, PlanFileError when this is no digest."""
        check_digest(digest)
        text = self.find(digest)
        if text is None:
            raise PlanNotFoundError("no plan is stored under this digest", given=digest)
        return text

    def get_by_short_digest(self, short: str) -> str:
        """The one plan whose digest starts so; raises PlanNotFoundError, or PlanFileError when several do."""
        if not SHORT_DIGEST_PATTERN.fullmatch(short):
            allowed = "sha256: and at least 8 hexadecimal digits"
            raise PlanFileError("this is no digest", given=short, allowed=allowed)
        found = self._plans.find_by_prefix(short, limit=2)
        if not found:
            raise PlanNotFoundError("no plan is stored under this digest", given=short)
        if len(found) > 1:
            raise PlanFileError("several plans have a digest that starts so", given=short, remedy="give more digits")
        return self.get(found[0])

    def keep(self, plan: Plan, key: KeyedRequest) -> tuple[str, bool]:
        """Store a plan unless one is stored already: text of the document that is stored now, and whether it is new."""
        stored, is_new = self._plans.add(plan_row(plan, key))
        return join_texts(stored.plan, stored.request), is_new

    def page(self, wanted: PlanFilter, *, before: int | None, limit: int) -> tuple[PlanSummary, ...]:
        """Newest plans first, at most ``limit`` of those that arrived before row ``before``."""
        return self._plans.page(wanted, before=before, limit=limit)

    def stale_uses(self, *digests: str) -> tuple[StaleUse, ...]:
        """Calibrations that these plans rest on and that newer ones, stored after the plan, replace."""
        return self._calibrations.stale_uses(digests)

    def stale_since(self, *digests: str) -> dict[str, datetime]:
        """When plans became stale, by digest; fresh plans are left out."""
        since: dict[str, datetime] = {}
        for use in self.stale_uses(*digests):
            since[use.plan_digest] = min(use.since, since.get(use.plan_digest, use.since))
        return since


# Stored plans as callers on the event loop read them, with as few queries as that takes.


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The text of a stored plan's document, and since when it is stale; None for one that is not."""

    text: str
    stale_since: datetime | None


class PlanReader:
    """Reads plans by digest. For callers on one event loop.

    texts   those that the process remembers: they never change. Whether they are stored still, and stale, is always asked for.
    """

    def __init__(self, engine: Engine, texts: RememberedTexts):
        self._engine, self._texts = engine, texts
        self._standings = SharedReads(engine, self._standing)

    async def get(self, tenant: str, digest: str) -> ReadPlan:
        """The plan stored under a digest; raises PlanNotFoundError, PlanFileError, StoreError."""
        text = self._texts.find(tenant, digest)
        if text is None:
            text = await read_soon(self._engine, PlanStore(self._engine, tenant).get, digest)
            self._texts.keep(tenant, digest, text)
        standing = await self._standings.find(tenant, digest)
        if standing is None:
            self._texts.forget(tenant, digest)
            raise PlanNotFoundError("no plan is stored under this digest", given=digest)
        return ReadPlan(text, standing.stale_since)

    def _standing(self, tenant: str, digests: Sequence[str]) -> dict[str, Standing]:
        return CalibrationRepository(self._engine, tenant).standings(digests)


# Texts of stored plans that this process has read, kept while there is room: a stored plan never changes.

MOST_BYTES = 64 * MIB
"""A plan's document takes tens of thousands: about a thousand plans."""


class RememberedTexts:
    """Plan documents by tenant and digest, those used last. Threads may share it.

    Where room is wanted, the tenant that takes most of it forgets first: who reads many plans does not push out another's few.
    """

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most = most_bytes
        self._texts: dict[str, OrderedDict[str, str]] = {}
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def find(self, tenant: str, digest: str) -> str | None:
        """The text of a tenant's plan; None when it is not remembered."""
        with self._lock:
            texts = self._texts.get(tenant, OrderedDict())
            text = texts.get(digest)
            if text is not None:
                texts.move_to_end(digest)
            return text

    def keep(self, tenant: str, digest: str, text: str) -> None:
        """Remember a text, and forget those that were not asked for longest."""
        with self._lock:
            texts = self._texts.setdefault(tenant, OrderedDict())
            if digest in texts:
                return
            texts[digest] = text
            self._held[tenant] += sys.getsizeof(text)
            while self._held.total() > self._most:
                self._forget_one()

    def forget(self, tenant: str, digest: str) -> None:
        """Forget a text that is stored no more."""
        with self._lock:
            if digest in self._texts.get(tenant, ()):
                self._texts[tenant].move_to_end(digest, last=False)
                self._forget_oldest(tenant)

    def _forget_one(self) -> None:
        """Forget the text that the tenant with the most bytes has not asked for longest."""
        self._forget_oldest(max(self._held, key=self._held.__getitem__))

    def _forget_oldest(self, tenant: str) -> None:
        _, oldest = self._texts[tenant].popitem(last=False)
        self._held[tenant] -= sys.getsizeof(oldest)
        if not self._texts[tenant]:
            del self._texts[tenant], self._held[tenant]
