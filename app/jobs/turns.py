"""The choice of the job that a worker takes: fair from tenant to tenant, and within a tenant the most urgent first.

The queue hands out workflows, each of which carries the id of a job. A workflow is a ticket for a turn, no more. The job is
chosen when the turn comes; where it is not the ticket's own, both jobs swap their tickets. So a tenant that comes late waits
for no long queue of another's, and nothing has to be counted when jobs are submitted.

A tenant may have a weight: it counts as that many tenants. Source of the order: weighted max-min fairness of slots (Bertsekas
and Gallager, Data Networks, 6.5.2), in whole slots; ties by weighted round robin, for which the last starts of those that wait
are counted, one less than their weights together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from math import inf
from types import MappingProxyType

from sqlalchemy import Connection, Row, RowMapping, func, select, update

from meshwright.app.db.dialects import utc
from meshwright.app.db.tables.jobs import jobs
from meshwright.app.jobs.job import ACTIVE, JobStatus

_LOOKS = 2
"""On PostgreSQL a ticket may be swapped while this worker waits for its row: the second look finds the job that has it now."""


NO_WEIGHTS: Mapping[str, int] = MappingProxyType({})
"""Every tenant weighs 1."""


def take_turn(connection: Connection, workflow: str, weights: Mapping[str, int] = NO_WEIGHTS) -> str | None:
    """Return the id of the job to work on at a workflow's turn, which the workflow belongs to from now on.

    None when its job is final already.
    """
    ticket = _holder(connection, workflow)
    if ticket is None:
        return None
    if ticket["status"] != JobStatus.QUEUED.value:
        # Its worker was lost or told to stop. The job has had its turn.
        return str(ticket["id"])
    first = _first_of(connection, _tenant_in_turn(connection, weights))
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


def _tenant_in_turn(connection: Connection, weights: Mapping[str, int]) -> str:
    """Return the tenant whose turn it is among those that wait."""
    waiting = select(jobs.c.tenant).where(jobs.c.status == JobStatus.QUEUED.value).distinct().subquery()
    mine = jobs.alias()
    running = (
        select(func.count())
        .select_from(mine)
        .where(mine.c.tenant == waiting.c.tenant, mine.c.status == JobStatus.RUNNING.value)
        .scalar_subquery()
    )
    served = select(func.max(mine.c.started_at)).where(mine.c.tenant == waiting.c.tenant).scalar_subquery()
    found = connection.execute(select(waiting.c.tenant, running.label("running"), served.label("served"))).all()
    weight_of = {row.tenant: weights.get(row.tenant, 1) for row in found}
    counts = _last_starts(connection, weight_of)

    def place(row: Row[tuple[str, int, datetime | None]]) -> tuple[int, float, float, str]:
        weight = weight_of[row.tenant]
        served_s = -inf if row.served is None else utc(row.served).timestamp()
        return row.running // weight, (counts[row.tenant] + 1) / weight, served_s, row.tenant

    return str(min(found, key=place).tenant)


def _last_starts(connection: Connection, weight_of: Mapping[str, int]) -> Counter[str]:
    """Return how many of the last starts were each tenant's; none where all weigh the same: then the last one says it all."""
    if len(set(weight_of.values())) == 1:
        return Counter()
    starts: list[tuple[datetime, str]] = []
    for tenant, weight in weight_of.items():
        # A tenant with as many as its weight is not next: more of its starts change nothing.
        mine = select(jobs.c.started_at).where(jobs.c.tenant == tenant, jobs.c.started_at.is_not(None))
        last = connection.execute(mine.order_by(jobs.c.started_at.desc()).limit(weight)).scalars()
        starts.extend((started, tenant) for started in last)
    starts.sort(reverse=True)
    return Counter(tenant for _, tenant in starts[: sum(weight_of.values()) - 1])


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
