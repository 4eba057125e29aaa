"""The choice of the job that a worker takes: fair from tenant to tenant, and within a tenant the most urgent first.

The queue hands out workflows, each of which carries the id of a job. A workflow is a ticket for a turn, no more. The job is
chosen when the turn comes; where it is not the ticket's own, both jobs swap their tickets. So a tenant that comes late waits
for no long queue of another's, and nothing has to be counted when jobs are submitted.

Source of the order: max-min fairness of slots (Bertsekas and Gallager, Data Networks, 6.5.2), ties by round robin.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, RowMapping, case, func, select, update

from meshwright.app.db.tables.jobs import jobs
from meshwright.app.jobs.job import ACTIVE, JobStatus

_LOOKS = 2
"""On PostgreSQL a ticket may be swapped while this worker waits for its row: the second look finds the job that has it now."""


def take_turn(connection: Connection, workflow: str) -> str | None:
    """Return the id of the job to work on at a workflow's turn, which the workflow belongs to from now on.

    None when its job is final already.
    """
    ticket = _holder(connection, workflow)
    if ticket is None:
        return None
    if ticket["status"] != JobStatus.QUEUED.value:
        # Its worker was lost or told to stop. The job has had its turn.
        return str(ticket["id"])
    first = _first_of(connection, _tenant_in_turn(connection))
    if first is None or first["id"] == ticket["id"]:
        return str(ticket["id"])
    _swap(connection, ticket, first)
    return str(first["id"])


def _holder(connection: Connection, workflow: str) -> RowMapping | None:
    """Return the job that has a ticket, its row locked."""
    active = [status.value for status in ACTIVE]
    held = select(jobs.c.id, jobs.c.status, jobs.c.workflow).where(jobs.c.workflow == workflow, jobs.c.status.in_(active))
    for _ in range(_LOOKS):
        found = connection.execute(held.with_for_update()).mappings().one_or_none()
        if found is not None:
            return found
    return None


def _tenant_in_turn(connection: Connection) -> str:
    """Return the tenant with the fewest running jobs among those that wait; of several, the one served longest ago."""
    waiting = select(jobs.c.tenant).where(jobs.c.status == JobStatus.QUEUED.value).distinct().subquery()
    mine = jobs.alias()
    running = (
        select(func.count())
        .select_from(mine)
        .where(mine.c.tenant == waiting.c.tenant, mine.c.status == JobStatus.RUNNING.value)
        .scalar_subquery()
    )
    served = select(func.max(mine.c.started_at)).where(mine.c.tenant == waiting.c.tenant).scalar_subquery()
    never_first: ColumnElement[int] = case((served.is_(None), 0), else_=1)
    order = (running, never_first, served, waiting.c.tenant)
    return str(connection.execute(select(waiting.c.tenant).order_by(*order).limit(1)).scalar_one())


def _first_of(connection: Connection, tenant: str) -> RowMapping | None:
    """Return a tenant's most urgent job, the oldest of several; one that another worker is about to take is passed over."""
    first = (
        select(jobs.c.id, jobs.c.workflow)
        .where(jobs.c.tenant == tenant, jobs.c.status == JobStatus.QUEUED.value)
        .order_by(jobs.c.urgency, jobs.c.row)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return connection.execute(first).mappings().one_or_none()


def _swap(connection: Connection, one: RowMapping, other: RowMapping) -> None:
    for job, workflow in ((one, other["workflow"]), (other, one["workflow"])):
        connection.execute(update(jobs).where(jobs.c.id == job["id"]).values(workflow=workflow))
