"""Deleting what a tenant keeps: what depends on it is found first, and named where it stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Select, delete, select

from meshwright.app.base.errors import FieldError, InUseError
from meshwright.app.store.fleet import RegisteredKind
from meshwright.app.store.replans import RUNNING
from meshwright.app.store.statements import owned
from meshwright.app.store.tables import answers, jobs, question_calibrations, questions, registered, replan_items, replans

MOST_NAMED = 20
"""Dependents of one kind that a problem names; a reader wants to know what they are, not all of them."""

WAIT = "wait until they have ended, or cancel them"


def delete_registered(
    connection: Connection, tenant: str, kind: RegisteredKind, name: str, *, with_dependents: bool = False
) -> None:
    """Delete every version of a registered model or cluster. ``with_dependents`` deletes the questions that name it as well;
    plans stay. Raises InUseError while there are such questions, or jobs and re-plans that answer them.
    """
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


def _at_work(connection: Connection, tenant: str, about: Select[tuple[int]]) -> list[FieldError]:
    """The jobs and re-plans that are about to answer these questions."""
    awaited = owned(select(questions.c.pending), questions, tenant).where(
        questions.c.id.in_(about), questions.c.pending.is_not(None)
    )
    active = owned(select(jobs.c.id), jobs, tenant).where(jobs.c.active_digest.in_(awaited))
    items = owned(select(replan_items.c.replan), replan_items, tenant).where(replan_items.c.question.in_(about))
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
