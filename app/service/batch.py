"""A worker's part in a batch: finding out what is to be planned, and settling items as their plans arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, Engine

from meshwright.app.edge.observability import current_parent
from meshwright.app.requests.plan_documents import join_texts, read_plan_document
from meshwright.app.service.desk import JobEnd
from meshwright.app.service.engine import JobQueue
from meshwright.app.service.planning import plan_job, submit
from meshwright.app.service.replans import BATCH_PREFIX
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.fleet import FleetNow, ResolvedQuestion, resolve_question
from meshwright.app.store.jobs import REPLAN_URGENCY, BegunJob, JobKind, JobStatus
from meshwright.app.store.plans import PlanRepository, StoredPlan
from meshwright.app.store.questions import QuestionRepository, plan_arrived
from meshwright.app.store.replans import (
    JudgedReplan,
    Outcome,
    ReplanRepository,
    SwitchCost,
    WaitingItem,
    compare_values,
    plan_value,
)
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.switching import switch_bytes

# The cost of going from an old plan to the new one, worked out before anything is locked.


class SwitchCosts:
    """Switches that have been worked out, by the digests of the two plans."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], SwitchCost | None] = {}

    def between(self, old: StoredPlan, new: StoredPlan) -> SwitchCost | None:
        """The cost of a switch; None where there is none: a plan that serves or is infeasible, another model or state."""
        key = (old.digest, new.digest)
        if key not in self._known:
            self._known[key] = _cost(old, new) if old.feasible and new.feasible else None
        return self._known[key]


def _cost(old: StoredPlan, new: StoredPlan) -> SwitchCost | None:
    try:
        before, after = (read_plan_document(json.loads(join_texts(plan.plan, plan.request))) for plan in (old, new))
        switch = switch_bytes(before, after)
    except InvalidInputError:
        # Also a plan of an older version that can't be read any more: what it moves is not known.
        return None
    return SwitchCost(round(switch.moved_bytes), round(switch.storage_bytes), switch.time_s)


ITEMS_A_TRANSACTION = 50
OWNER = "replan"


class BatchStarter:
    """Gives every item of a batch the plan that will answer it: one that is stored, or a job's."""

    def __init__(self, engine: Engine, queue: JobQueue):
        self._engine, self._queue = engine, queue

    def __call__(self, job: BegunJob, on_chunk: Callable[[], None]) -> None:
        """Work through the items that have none; safe to repeat. Raises StoreError, and what ``on_chunk`` raises."""
        replan_id = job.digest.removeprefix(BATCH_PREFIX)
        batch = ReplanRepository(self._engine, job.tenant)
        while waiting := batch.unplanned(replan_id, limit=ITEMS_A_TRANSACTION):
            on_chunk()
            fleet = FleetNow(self._engine, job.tenant)
            resolved = [(item, _resolved(fleet, item)) for item in waiting]
            switches = self._switches(job.tenant, resolved)
            with writing(self._engine) as connection:
                for item, question in resolved:
                    self._begin(connection, _Begun(job.tenant, replan_id, item, switches), question)
        with writing(self._engine) as connection:
            batch.close_if_done(connection, replan_id)

    def _switches(
        self, tenant: str, resolved: Sequence[tuple[WaitingItem, ResolvedQuestion | InvalidInputError]]
    ) -> SwitchCosts:
        """The switches to new plans that are stored already."""
        plans, switches = PlanRepository(self._engine, tenant), SwitchCosts()
        for item, question in resolved:
            if item.old_plan is not None and not isinstance(question, InvalidInputError):
                old, new = plans.find(item.old_plan), plans.find(question.key.digest)
                if old is not None and new is not None:
                    switches.between(old, new)
        return switches

    def _begin(self, connection: Connection, begun: _Begun, question: ResolvedQuestion | InvalidInputError) -> None:
        tenant, replan_id, item = begun.tenant, begun.replan_id, begun.item
        batch = ReplanRepository(self._engine, tenant)
        if isinstance(question, InvalidInputError):
            batch.assign(connection, item.id, digest="", job=None)
            batch.settle(connection, item.id, JudgedReplan(Outcome.FAILED, str(question), None, None))
            return
        digest = question.key.digest
        questions = QuestionRepository(self._engine, tenant)
        questions.answer(connection, item.question, question.asked, plan=digest, replan=replan_id)
        if not PlanRepository(self._engine, tenant).hold(connection, digest):
            wanted = plan_job(question.key, owner=OWNER, kind=JobKind.REPLAN, urgency=REPLAN_URGENCY, trace=current_parent())
            active, _ = submit(self._engine, self._queue, connection, tenant, wanted)
            batch.assign(connection, item.id, digest=digest, job=active.id)
        else:
            batch.assign(connection, item.id, digest=digest, job=None)
            settle_plan(self._engine, connection, tenant, digest, begun.switches)


def _resolved(fleet: FleetNow, item: WaitingItem) -> ResolvedQuestion | InvalidInputError:
    try:
        return resolve_question(fleet, item.document)
    except InvalidInputError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Begun:
    """An item that is given its plan, and the switches that are known."""

    tenant: str
    replan_id: str
    item: WaitingItem
    switches: SwitchCosts


class Settler:
    """A settler: it does what follows from the end of a job, in the transaction that ends the job."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def __call__(self, job: BegunJob, end: JobEnd) -> Callable[[Connection], None]:
        """Return the work that is left for the transaction, after all that takes time is done. Raises StoreError."""
        return partial(self._settle, job, end, self._switches(job, end))

    def _switches(self, job: BegunJob, end: JobEnd) -> SwitchCosts:
        """The switches from the plans of items that wait for this one."""
        switches, plans = SwitchCosts(), PlanRepository(self._engine, job.tenant)
        if job.kind is JobKind.BATCH or end.status is not JobStatus.SUCCEEDED or end.answer is not None:
            return switches
        with reading(self._engine) as connection:
            waiting = ReplanRepository(self._engine, job.tenant).awaiting(connection, job.digest)
            new = (end.plan or plans.find_with(connection, job.digest)) if waiting else None
            olds = [plans.find_with(connection, old) for old in {item.old_plan for item in waiting if item.old_plan}]
        for old in olds:
            if old is not None and new is not None:
                switches.between(old, new)
        return switches

    def _settle(self, job: BegunJob, end: JobEnd, switches: SwitchCosts, connection: Connection) -> None:
        """Point the questions that waited for the plan to it, and settle the items of batches that did."""
        if job.kind is JobKind.BATCH:
            return
        if end.status is JobStatus.SUCCEEDED and end.answer is None:
            plan_arrived(connection, job.tenant, job.digest)
            settle_plan(self._engine, connection, job.tenant, job.digest, switches)
        else:
            undecided = "the search ended at its time limit before it could decide"
            reason = undecided if end.problem is None else str(json.loads(end.problem)["detail"])
            end_items(self._engine, connection, job.tenant, job.digest, JudgedReplan(Outcome.FAILED, reason, None, None))


def end_items(engine: Engine, connection: Connection, tenant: str, digest: str, compared: JudgedReplan) -> None:
    """Settle every item that waits for a plan which will not come."""
    batches = ReplanRepository(engine, tenant)
    waiting = batches.awaiting(connection, digest)
    for item in waiting:
        batches.settle(connection, item.id, compared)
    for replan_id in {item.replan for item in waiting}:
        batches.close_if_done(connection, replan_id)


def settle_plan(engine: Engine, connection: Connection, tenant: str, digest: str, switches: SwitchCosts) -> None:
    """Settle every item that waits for a stored plan, and point its question to the plan."""
    batches, plans = ReplanRepository(engine, tenant), PlanRepository(engine, tenant)
    waiting = batches.awaiting(connection, digest)
    stored = plans.find_with(connection, digest) if waiting else None
    if stored is None:
        return
    new = plan_value(stored.plan)
    for item in waiting:
        old = plans.find_with(connection, item.old_plan) if item.old_plan else None
        compared = compare_values(plan_value(old.plan) if old else None, new)
        batches.settle(connection, item.id, compared, switches.between(old, stored) if old else None)
        QuestionRepository(engine, tenant).point_to(connection, item.question, digest, replan=item.replan)
    for replan_id in {item.replan for item in waiting}:
        batches.close_if_done(connection, replan_id)
