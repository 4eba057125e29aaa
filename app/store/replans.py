"""Re-plan batches and their items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row, Update, and_, func, insert, or_, select, update

from meshwright.app.store.engine import reading
from meshwright.app.store.questions import Question
from meshwright.app.store.statements import in_utc, is_silent, now_s, owned
from meshwright.app.store.tables import questions, replan_items, replans

# The outcome of a plan that was made again.

SAME_VALUE = 1e-9
"""Relative difference below which two objectives are one: what is left of rounding in doubles."""


class Outcome(StrEnum):
    """The new plan compared with the old one; the first value is not yet known."""

    WAITING = "waiting"
    BETTER = "better"
    WORSE = "worse"
    UNCHANGED = "unchanged"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PlanValue:
    """The value by which a plan is compared: its objective (smaller is better), or why there is no plan."""

    feasible: bool
    objective: float | None
    unit: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class JudgedReplan:
    """The outcome, and why, in words."""

    outcome: Outcome
    reason: str
    old_value: float | None
    new_value: float | None


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """The data that going from the old plan to the new one moves.

    moved_bytes     bytes that devices receive
    storage_bytes   those of them that no device holds any more: they come from a checkpoint
    least_s         the least time that the links take
    """

    moved_bytes: int
    storage_bytes: int
    least_s: float


def plan_value(plan_text: str) -> PlanValue:
    """Return the value by which the plan in a JSON text is compared."""
    plan = json.loads(plan_text)
    certificate, reason = plan["certificate"], plan["reason"]
    return PlanValue(plan["feasible"], certificate["objective"], certificate["unit"], reason["message"] if reason else None)


def compare_values(old: PlanValue | None, new: PlanValue) -> JudgedReplan:
    """Compare a new plan with the old one; without an old one that was feasible, a feasible one is better."""
    old_value = old.objective if old else None
    if not new.feasible:
        return JudgedReplan(Outcome.INFEASIBLE, new.reason or "nothing fits", old_value, None)
    if old is None or not old.feasible or old_value is None or new.objective is None:
        return JudgedReplan(Outcome.BETTER, "there was no feasible plan", old_value, new.objective)
    change = (new.objective - old_value) / old_value if old_value else new.objective - old_value
    if abs(change) <= SAME_VALUE:
        return JudgedReplan(Outcome.UNCHANGED, "the objective is the same", old_value, new.objective)
    said = f"{old_value:.6g} -> {new.objective:.6g} {new.unit} ({change:+.2%}; smaller is better)"
    return JudgedReplan(Outcome.BETTER if change < 0 else Outcome.WORSE, said, old_value, new.objective)


@dataclass(frozen=True, slots=True)
class Replan:
    """A batch's row; the fields are described at the table."""

    row: int
    id: str
    cluster: str | None
    version: int | None
    cause: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    revision: int
    webhook: str | None
    webhook_status: str | None


@dataclass(frozen=True, slots=True)
class ReplanItem:
    """One question of a batch, with what its question names."""

    id: int
    question: int
    question_digest: str
    cluster: str | None
    model: str | None
    job: str | None
    digest: str | None
    old_plan: str | None
    outcome: str
    reason: str | None
    old_value: float | None
    new_value: float | None
    switch_bytes: int | None
    switch_storage_bytes: int | None
    switch_s: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a batch: how many items have each outcome, and the bytes that move if every new plan is switched to."""

    counts: Mapping[Outcome, int]
    switch_bytes: int


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """An item that is not planned yet, and its question's document (JSON text)."""

    id: int
    question: int
    document: str
    old_plan: str | None


@dataclass(frozen=True, slots=True)
class AwaitingItem:
    """An item that waits for a plan."""

    id: int
    replan: str
    question: int
    old_plan: str | None


RUNNING, FINISHED, CANCELLED = "running", "finished", "cancelled"
WEBHOOK_PENDING, WEBHOOK_SENDING = "pending", "sending"

COLUMNS = tuple(replans.c[name] for name in Replan.__dataclass_fields__)
_ITEM_COLUMNS = (
    *(replan_items.c[name] for name in ReplanItem.__dataclass_fields__ if name in replan_items.c),
    questions.c.digest.label("question_digest"),
    questions.c.cluster,
    questions.c.model,
)
_WAITING_COLUMNS = (
    replan_items.c.id,
    replan_items.c.question,
    replan_items.c.old_plan,
    questions.c.document,
)


class ReplanRepository:
    """One tenant's batches. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant

    def add(self, connection: Connection, batch: Replan, asked: Iterable[Question]) -> None:
        """Add a running batch of questions; its ``row`` is chosen here."""
        fields = {name: getattr(batch, name) for name in Replan.__dataclass_fields__ if name != "row"}
        connection.execute(insert(replans).values(tenant=self._tenant, **fields))
        rows = [
            {
                "tenant": self._tenant,
                "replan": batch.id,
                "question": question.id,
                "old_plan": question.plan,
                "outcome": Outcome.WAITING.value,
            }
            for question in asked
        ]
        if rows:
            connection.execute(insert(replan_items), rows)

    def find(self, replan_id: str) -> Replan | None:
        """The batch under an id."""
        query = owned(select(*COLUMNS), replans, self._tenant).where(replans.c.id == replan_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else Replan(**in_utc(row))

    def page(self, *, before: int | None, limit: int, cluster: str | None = None) -> tuple[Replan, ...]:
        """Newest batches first; only those of a cluster where it is named."""
        query = owned(select(*COLUMNS), replans, self._tenant).order_by(replans.c.row.desc()).limit(limit)
        if cluster is not None:
            query = query.where(replans.c.cluster == cluster)
        if before is not None:
            query = query.where(replans.c.row < before)
        with reading(self._engine) as connection:
            return tuple(Replan(**in_utc(row)) for row in connection.execute(query).mappings())

    def totals(self, replan_id: str) -> Totals:
        """Return the totals of a batch's items."""
        moved = func.sum(replan_items.c.switch_bytes).label("moved")
        query = owned(select(replan_items.c.outcome, func.count().label("n"), moved), replan_items, self._tenant)
        query = query.where(replan_items.c.replan == replan_id).group_by(replan_items.c.outcome)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return Totals({Outcome(row.outcome): row.n for row in rows}, sum(int(row.moved or 0) for row in rows))

    def items(self, replan_id: str, outcome: Outcome | None, *, after: int | None, limit: int) -> tuple[ReplanItem, ...]:
        """A batch's items in order, at most ``limit`` of those after row ``after``."""
        query = owned(select(*_ITEM_COLUMNS), replan_items, self._tenant).where(replan_items.c.replan == replan_id)
        query = query.join(questions, questions.c.id == replan_items.c.question)
        if outcome is not None:
            query = query.where(replan_items.c.outcome == outcome.value)
        if after is not None:
            query = query.where(replan_items.c.id > after)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(replan_items.c.id).limit(limit)).mappings()
            return tuple(ReplanItem(**in_utc(row)) for row in rows)

    def unplanned(self, replan_id: str, *, limit: int) -> tuple[WaitingItem, ...]:
        """Items whose plan has not been looked for yet."""
        query = owned(select(*_WAITING_COLUMNS), replan_items, self._tenant)
        query = query.join(questions, questions.c.id == replan_items.c.question).where(
            replan_items.c.replan == replan_id,
            replan_items.c.outcome == Outcome.WAITING.value,
            replan_items.c.digest.is_(None),
        )
        with reading(self._engine) as connection:
            return tuple(
                WaitingItem(**row) for row in connection.execute(query.order_by(replan_items.c.id).limit(limit)).mappings()
            )

    def assign(self, connection: Connection, item: int, *, digest: str, job: str | None) -> None:
        """Note which plan will answer an item, and the job that makes it."""
        changed = owned(update(replan_items), replan_items, self._tenant).where(replan_items.c.id == item)
        connection.execute(changed.values(digest=digest, job=job))

    def settle(self, connection: Connection, item: int, compared: JudgedReplan, switch: SwitchCost | None = None) -> None:
        """Note what became of an item, and what it costs to switch to its new plan."""
        changed = owned(update(replan_items), replan_items, self._tenant).where(replan_items.c.id == item)
        connection.execute(
            changed.values(
                outcome=compared.outcome.value,
                reason=compared.reason,
                old_value=compared.old_value,
                new_value=compared.new_value,
                switch_bytes=None if switch is None else switch.moved_bytes,
                switch_storage_bytes=None if switch is None else switch.storage_bytes,
                switch_s=None if switch is None else switch.least_s,
            )
        )

    def awaiting(self, connection: Connection, digest: str) -> tuple[AwaitingItem, ...]:
        """The items that wait for a plan."""
        columns = (replan_items.c.id, replan_items.c.replan, replan_items.c.question, replan_items.c.old_plan)
        query = owned(select(*columns), replan_items, self._tenant).where(
            replan_items.c.digest == digest, replan_items.c.outcome == Outcome.WAITING.value
        )
        return tuple(AwaitingItem(**row) for row in connection.execute(query).mappings())

    def close_if_done(self, connection: Connection, replan_id: str) -> bool:
        """Finish a batch that waits for nothing any more; whether it is finished by this call."""
        batch = self._locked(connection, replan_id)
        left = owned(select(func.count()), replan_items, self._tenant).where(
            replan_items.c.replan == replan_id, replan_items.c.outcome == Outcome.WAITING.value
        )
        if batch is None or connection.execute(left).scalar_one():
            return False
        self._end(connection, replan_id, FINISHED, WEBHOOK_PENDING if batch.webhook else None)
        return True

    def cancel(self, connection: Connection, replan_id: str) -> tuple[str, ...] | None:
        """Cancel a running batch; the jobs that nothing else waits for, to be cancelled as well. None when it has ended."""
        if self._locked(connection, replan_id) is None:
            return None
        waiting = owned(update(replan_items), replan_items, self._tenant).where(
            replan_items.c.replan == replan_id, replan_items.c.outcome == Outcome.WAITING.value
        )
        connection.execute(waiting.values(outcome=Outcome.CANCELLED.value, reason="the batch was cancelled"))
        self._end(connection, replan_id, CANCELLED, None)
        by_others = owned(select(replan_items.c.job), replan_items, self._tenant).where(
            replan_items.c.outcome == Outcome.WAITING.value, replan_items.c.job.is_not(None)
        )
        by_callers = owned(select(questions.c.pending), questions, self._tenant).where(questions.c.pending.is_not(None))
        idle = owned(select(replan_items.c.job), replan_items, self._tenant).where(
            replan_items.c.replan == replan_id,
            replan_items.c.outcome == Outcome.CANCELLED.value,
            replan_items.c.job.is_not(None),
            replan_items.c.job.not_in(by_others),
            replan_items.c.digest.not_in(by_callers),
        )
        return tuple(str(job) for job in connection.execute(idle.distinct()).scalars())

    def _locked(self, connection: Connection, replan_id: str) -> Row[Any] | None:
        """A running batch, its row locked: of two that would end it at once, the second finds that it has ended."""
        running = owned(select(replans.c.webhook), replans, self._tenant).where(
            replans.c.id == replan_id, replans.c.status == RUNNING
        )
        return connection.execute(running.with_for_update()).one_or_none()

    def _end(self, connection: Connection, replan_id: str, status: str, webhook_status: str | None) -> None:
        ended = owned(update(replans), replans, self._tenant).where(replans.c.id == replan_id)
        connection.execute(
            ended.values(
                status=status, finished_at=datetime.now(UTC), revision=replans.c.revision + 1, webhook_status=webhook_status
            )
        )


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """A call that a finished batch owes its caller, as it was last seen; ``beat_s`` is None until a worker has begun it."""

    tenant: str
    replan_id: str
    status: str
    beat_s: float | None


def due_webhooks(connection: Connection, *, silent_s: float, limit: int) -> tuple[WebhookCall, ...]:
    """The first call of each tenant that no worker has begun, or whose worker has said nothing for so long."""
    silent = and_(replans.c.webhook_status == WEBHOOK_SENDING, is_silent(replans.c.webhook_beat_s, connection, for_s=silent_s))
    is_due = or_(replans.c.webhook_status == WEBHOOK_PENDING, silent)
    # A sender makes one call of a tenant at a time: a thousand that one tenant owes are no reason to look at no other's.
    first = select(func.min(replans.c.row)).where(is_due).group_by(replans.c.tenant)
    query = select(replans.c.tenant, replans.c.id, replans.c.webhook_status, replans.c.webhook_beat_s)
    rows = connection.execute(query.where(replans.c.row.in_(first)).order_by(replans.c.row).limit(limit))
    return tuple(WebhookCall(row.tenant, row.id, row.webhook_status, row.webhook_beat_s) for row in rows)


def claim_webhook(connection: Connection, call: WebhookCall) -> WebhookCall | None:
    """Be, or stay, the worker that makes a call: the call as it is now. None when another worker deals with it."""
    beat = replans.c.webhook_beat_s
    claimed = _unchanged(call).values(webhook_status=WEBHOOK_SENDING, webhook_beat_s=now_s(connection)).returning(beat)
    row = connection.execute(claimed).one_or_none()
    return None if row is None else replace(call, status=WEBHOOK_SENDING, beat_s=row.webhook_beat_s)


def note_webhook(connection: Connection, call: WebhookCall, said: str) -> bool:
    """Note what became of a call; False when another worker has taken it over."""
    return connection.execute(_unchanged(call).values(webhook_status=said)).rowcount > 0


def _unchanged(call: WebhookCall) -> Update:
    as_seen = replans.c.webhook_beat_s.is_(None) if call.beat_s is None else replans.c.webhook_beat_s == call.beat_s
    mine = owned(update(replans), replans, call.tenant).where(replans.c.id == call.replan_id)
    return mine.where(replans.c.webhook_status == call.status, as_seen)
