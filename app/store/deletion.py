"""Deleting what a tenant keeps: what depends on it is found first, and named where it stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Select, delete, or_, select

from meshwright.app.base.errors import FieldError, InUseError, PlanNotFoundError
from meshwright.app.store.fleet import RegisteredKind
from meshwright.app.store.replans import RUNNING
from meshwright.app.store.statements import owned
from meshwright.app.store.tables import (
    answers,
    idempotency_keys,
    jobs,
    plan_calibrations,
    plans,
    question_calibrations,
    questions,
    registered,
    replan_items,
    replans,
    runs,
    tenant_bytes,
)

MOST_NAMED = 20
"""Dependents of one kind that a problem names; a reader wants to know what they are, not all of them."""

WAIT = "wait until they have ended, or cancel them"


def delete_registered(
    connection: Connection, tenant: str, kind: RegisteredKind, name: str, *, with_dependents: bool = False
) -> None:
    """Delete every version of a registered model or cluster. ``with_dependents`` deletes the questions that name it as well;
    plans stay. Raises InUseError while there are such questions, or jobs and re-plans that answer them.
    """
    _lock_count(connection, tenant)
    column = questions.c.model if kind is RegisteredKind.MODEL else questions.c.cluster
    about = owned(select(questions.c.id), questions, tenant).where(column == name)
    _refuse(f"the {kind} {name!r} is in use", _at_work(connection, tenant, about))
    if with_dependents:
        _delete_questions(connection, tenant, about)
    else:
        current = owned(select(questions.c.plan), questions, tenant).where(column == name).order_by(questions.c.id)
        remedy = "leave them as they are, but forget that they follow it: ?with_dependents=true"
        _refuse(f"the {kind} {name!r} is in use", _named("plans", connection.execute(current).scalars().all(), remedy))
    mine = owned(delete(registered), registered, tenant)
    connection.execute(mine.where(registered.c.kind == kind.value, registered.c.name == name))


def delete_plan(connection: Connection, tenant: str, digest: str, *, with_dependents: bool = False) -> None:
    """Delete a plan, and the idempotency keys that lead to it. ``with_dependents`` deletes the questions that it answers now as
    well; measured runs of it stay. Raises PlanNotFoundError, and InUseError while there are such questions or runs, or jobs and
    re-plans that need it.
    """
    _lock_count(connection, tenant)
    # Locked, so that nobody finds it meanwhile and takes it for an answer.
    held = owned(select(plans.c.id), plans, tenant).where(plans.c.digest == digest).with_for_update()
    if connection.execute(held).scalar_one_or_none() is None:
        raise PlanNotFoundError("no plan is stored under this digest", given=digest)
    problem, answered = "the plan is in use", owned(select(questions.c.id), questions, tenant).where(questions.c.plan == digest)
    _refuse(problem, _at_work(connection, tenant, answered, digest))
    if with_dependents:
        _delete_questions(connection, tenant, answered)
    else:
        _refuse(problem, _resting_on(connection, tenant, digest))
    made = owned(select("job:" + jobs.c.id), jobs, tenant).where(jobs.c.digest == digest)
    leads = or_(idempotency_keys.c.target == f"plan:{digest}", idempotency_keys.c.target.in_(made))
    connection.execute(owned(delete(idempotency_keys), idempotency_keys, tenant).where(leads))
    for table, column in ((answers, answers.c.plan), (plan_calibrations, plan_calibrations.c.plan), (plans, plans.c.digest)):
        connection.execute(owned(delete(table), table, tenant).where(column == digest))


def _lock_count(connection: Connection, tenant: str) -> None:
    """Take the count of a tenant's bytes first, as whoever stores a plan does: who locks the same rows waits in one order."""
    connection.execute(owned(select(tenant_bytes.c.bytes), tenant_bytes, tenant).with_for_update())


def _resting_on(connection: Connection, tenant: str, digest: str) -> list[FieldError]:
    """The questions that a plan answers now, and the runs that were measured of it."""
    asked = owned(select(questions.c.digest), questions, tenant).where(questions.c.plan == digest).order_by(questions.c.id)
    measured = owned(select(runs.c.digest), runs, tenant).where(runs.c.plan == digest).order_by(runs.c.id)
    forget, keep = "forget them as well: ?with_dependents=true", "they stay, without their plan: ?with_dependents=true"
    return [
        *_named("questions", connection.execute(asked).scalars().all(), forget),
        *_named("runs", connection.execute(measured).scalars().all(), keep),
    ]


def _at_work(connection: Connection, tenant: str, about: Select[tuple[int]], *made: str) -> list[FieldError]:
    """The jobs and re-plans that are about to answer these questions, or make or compare these plans."""
    awaited = owned(select(questions.c.pending), questions, tenant).where(
        questions.c.id.in_(about), questions.c.pending.is_not(None)
    )
    active = owned(select(jobs.c.id), jobs, tenant).where(
        or_(jobs.c.active_digest.in_(awaited), jobs.c.active_digest.in_(made))
    )
    is_met: ColumnElement[bool] = or_(
        replan_items.c.question.in_(about), replan_items.c.old_plan.in_(made), replan_items.c.digest.in_(made)
    )
    items = owned(select(replan_items.c.replan), replan_items, tenant).where(is_met)
    batches = owned(select(replans.c.id), replans, tenant).where(replans.c.status == RUNNING, replans.c.id.in_(items))
    return [
        *_named("jobs", connection.execute(active.order_by(jobs.c.row)).scalars().all(), WAIT),
        *_named("replans", connection.execute(batches.order_by(replans.c.row)).scalars().all(), WAIT),
    ]


def _delete_questions(connection: Connection, tenant: str, about: Select[tuple[int]]) -> None:
    """Delete questions with what became of them; the batches that asked them have ended."""
    for table in (answers, question_calibrations, replan_items):
        connection.execute(owned(delete(table), table, tenant).where(table.c.question.in_(about)))
    connection.execute(owned(delete(questions), questions, tenant).where(questions.c.id.in_(about)))


def _named(field: str, found: Sequence[str | None], remedy: str) -> list[FieldError]:
    """The dependents of a kind as a fault; nothing where there are none. One that has no name yet counts all the same."""
    if not found:
        return []
    names = list(dict.fromkeys(name or "none yet" for name in found))
    left = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [FieldError(field, "depend on it", ", ".join(names[:MOST_NAMED]) + left, remedy=remedy)]


def _refuse(problem: str, faults: list[FieldError]) -> None:
    if faults:
        raise InUseError(problem, tuple(faults))
