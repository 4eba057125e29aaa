"""Questions: requests that name what changes, which plan answers each now, and which did before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, delete, or_, select, update

from meshwright.app.store.engine import is_sqlite, reading
from meshwright.app.store.statements import in_utc, insert_if_absent, owned
from meshwright.app.store.tables import answers, question_calibrations, questions, replans


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is asked: its document (JSON text) with names unresolved, and the versions that the names stand for.

    follows    device keys whose newest stored calibration it is planned with
    """

    digest: str
    document: str
    cluster: str | None
    model: str | None
    cluster_version: int | None
    model_version: int | None
    follows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question's row."""

    id: int
    digest: str
    document: str
    cluster: str | None
    model: str | None
    created_at: datetime
    plan: str | None
    pending: str | None
    stale_since: datetime | None
    stale_reason: str | None

    def is_answered_by(self, plan: str) -> bool:
        """Return True if a plan is the answer of now to the question: neither stale, nor about to be replaced."""
        return self.plan == plan and self.stale_since is None and self.pending is None


@dataclass(frozen=True, slots=True)
class QuestionFilter:
    """The questions that a list holds; None does not filter. ``calibration`` is the key of a device whose newest they
    follow."""

    cluster: str | None = None
    model: str | None = None
    stale: bool | None = None
    calibration: str | None = None


COLUMNS = tuple(questions.c[name] for name in Question.__dataclass_fields__)


class QuestionRepository:
    """One tenant's questions. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant

    def find(self, connection: Connection, digest: str) -> Question | None:
        """The question of a digest, in the caller's transaction."""
        query = owned(select(*COLUMNS), questions, self._tenant).where(questions.c.digest == digest)
        row = connection.execute(query).mappings().one_or_none()
        return None if row is None else question_of(row)

    def ask(self, connection: Connection, asked: Asked, *, plan: str, is_there: bool) -> None:
        """Note that a plan answers a question: at once when it is there, else when it arrives."""
        insert = insert_if_absent(questions, ["tenant", "digest"], is_sqlite=is_sqlite(self._engine))
        connection.execute(
            insert.values(
                tenant=self._tenant,
                digest=asked.digest,
                document=asked.document,
                cluster=asked.cluster,
                model=asked.model,
                created_at=datetime.now(UTC),
            )
        )
        question = connection.execute(
            owned(select(questions.c.id), questions, self._tenant).where(questions.c.digest == asked.digest)
        ).scalar_one()
        self.answer(connection, question, asked, plan=plan, replan=None)
        changed = owned(update(questions), questions, self._tenant).where(questions.c.id == question)
        awaited = {"pending": plan, "stale_since": None, "stale_reason": None}
        connection.execute(changed.values(_now_answered_by(plan) if is_there else awaited))

    def answer(self, connection: Connection, question: int, asked: Asked, *, plan: str, replan: str | None) -> None:
        """Add to a question's history that a plan answers it, under which versions; note which calibrations it follows."""
        connection.execute(
            answers.insert().values(
                tenant=self._tenant,
                question=question,
                plan=plan,
                cluster_version=asked.cluster_version,
                model_version=asked.model_version,
                replan=replan,
                created_at=datetime.now(UTC),
            )
        )
        self._follow(connection, question, asked.follows)

    def page(self, wanted: QuestionFilter, *, before: int | None, limit: int) -> tuple[Question, ...]:
        """Newest questions first: at most ``limit`` of those before row ``before``."""
        query = owned(select(*COLUMNS), questions, self._tenant).where(*self._conditions(wanted))
        if before is not None:
            query = query.where(questions.c.id < before)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(questions.c.id.desc()).limit(limit)).mappings()
            return tuple(question_of(row) for row in rows)

    def select_with(self, connection: Connection, wanted: QuestionFilter) -> tuple[Question, ...]:
        """All questions that a filter holds, oldest first, in the caller's transaction."""
        query = owned(select(*COLUMNS), questions, self._tenant).where(*self._conditions(wanted))
        return tuple(question_of(row) for row in connection.execute(query.order_by(questions.c.id)).mappings())

    def mark_stale(self, connection: Connection, wanted: QuestionFilter, reason: str) -> int:
        """Mark the current plans of questions as stale; how many are."""
        marked = owned(update(questions), questions, self._tenant).where(
            or_(questions.c.plan.is_not(None), questions.c.pending.is_not(None)), *self._conditions(wanted)
        )
        return connection.execute(marked.values(stale_since=datetime.now(UTC), stale_reason=reason)).rowcount

    def point_to(self, connection: Connection, question: int, plan: str, *, replan: str) -> None:
        """Make a plan the current one of a question; it is fresh unless the fleet has changed since its batch began."""
        changed = owned(update(questions), questions, self._tenant).where(questions.c.id == question)
        connection.execute(changed.values(plan=plan, pending=None))
        began = owned(select(replans.c.created_at), replans, self._tenant).where(replans.c.id == replan).scalar_subquery()
        connection.execute(changed.where(questions.c.stale_since <= began).values(stale_since=None, stale_reason=None))

    def _follow(self, connection: Connection, question: int, keys: Iterable[str]) -> None:
        """Replace what a question follows."""
        mine = owned(delete(question_calibrations), question_calibrations, self._tenant)
        connection.execute(
            mine.where(question_calibrations.c.question == question, question_calibrations.c.key.not_in(list(keys)))
        )
        unique = ["tenant", "question", "key"]
        insert = insert_if_absent(question_calibrations, unique, is_sqlite=is_sqlite(self._engine))
        for key in keys:
            connection.execute(insert.values(tenant=self._tenant, question=question, key=key))

    def _conditions(self, wanted: QuestionFilter) -> Iterator[ColumnElement[bool]]:
        if wanted.cluster is not None:
            yield questions.c.cluster == wanted.cluster
        if wanted.model is not None:
            yield questions.c.model == wanted.model
        if wanted.stale is not None:
            yield questions.c.stale_since.is_not(None) if wanted.stale else questions.c.stale_since.is_(None)
        if wanted.calibration is not None:
            following = owned(select(question_calibrations.c.question), question_calibrations, self._tenant)
            yield questions.c.id.in_(following.where(question_calibrations.c.key == wanted.calibration))


def plan_arrived(connection: Connection, tenant: str, digest: str) -> None:
    """Point the questions that waited for a plan to it."""
    waiting = owned(update(questions), questions, tenant).where(questions.c.pending == digest)
    # The fleet may have changed since it was asked for: staleness is what ``ask`` and ``mark_stale`` said last.
    connection.execute(waiting.values(plan=digest, pending=None))


def question_of(row: RowMapping) -> Question:
    """The row as a record."""
    return Question(**in_utc(row))


def _now_answered_by(plan: str) -> dict[str, Any]:
    return {"plan": plan, "pending": None, "stale_since": None, "stale_reason": None}
