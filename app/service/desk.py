"""Jobs as workers see them, those of all tenants: begun, kept alive, finished, and found when nobody works on them.

A worker may lose a job to another one while it is frozen or cut off. Every write names the attempt it belongs to, and a
write of an attempt that is over changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from types import MappingProxyType

from sqlalchemy import ColumnElement, Connection, Engine, Row, RowMapping, delete, func, select, update

from meshwright.app.store.engine import is_sqlite, reading, writing
from meshwright.app.store.jobs import ACTIVE, BegunJob, JobKind, JobStatus
from meshwright.app.store.plans import PlanRepository, StoredPlan
from meshwright.app.store.statements import insert_if_absent, is_silent, now_s, utc
from meshwright.app.store.tables import jobs, workers

# The choice of the job that a worker takes: fair from tenant to tenant, and within a tenant the most urgent first.
#
# The queue hands out workflows, each of which carries the id of a job. A workflow is a ticket for a turn, no more. The job is
# chosen when the turn comes; where it is not the ticket's own, both jobs swap their tickets. So a tenant that comes late waits
# for no long queue of another's, and nothing has to be counted when jobs are submitted.
#
# A tenant may have a weight: it counts as that many tenants. Source of the order: weighted max-min
# fairness of slots (Bertsekas and Gallager, Data Networks, 6.5.2), in whole slots; ties by weighted
# round robin, for which the last starts of those that wait are counted, one less than their weights
# together.

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


WORKER_BEAT_S = 2.0
WORKER_ALIVE_S = 4 * WORKER_BEAT_S
"""A worker whose last beat is older is not counted as alive."""
FORGET_WORKERS_S = 86_400.0
"""The time for which a worker that is gone is still listed."""

_ACTIVE = [status.value for status in ACTIVE]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job: with a plan to store, with an answer that is given and not stored, or with a problem (JSON texts)."""

    status: JobStatus
    plan: StoredPlan | None = None
    answer: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SilentJob:
    """An active job that gave no sign of life for a while, and the workflow that should run it."""

    id: str
    workflow: str
    urgency: int
    beat_s: float


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of the queue: jobs queued and running, the wait of the oldest queued one, and the workers that are alive."""

    queued: int
    running: int
    oldest_s: float
    workers: int


OnFinished = Callable[[Connection], None]


class JobDesk:
    """Reads and writes of the jobs of all tenants. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, weights: Mapping[str, int] = NO_WEIGHTS):
        self._engine, self._weights = engine, weights

    def begin(self, workflow: str, worker: str) -> BegunJob | None:
        """Take the job in hand whose turn it is, a new attempt; None when the workflow's job is final already."""
        begun = (
            update(jobs)
            .where(jobs.c.status.in_(_ACTIVE))
            .values(
                status=JobStatus.RUNNING.value,
                worker=worker,
                attempt=jobs.c.attempt + 1,
                started_at=datetime.now(UTC),
                revision=jobs.c.revision + 1,
            )
            .returning(*(jobs.c[name] for name in BegunJob.__dataclass_fields__))
        )
        with writing(self._engine) as connection:
            job_id = take_turn(connection, workflow, self._weights)
            mine = begun.where(jobs.c.id == job_id).values(beat_s=now_s(connection))
            row = connection.execute(mine).mappings().one_or_none()
        return None if row is None else BegunJob(**dict(row) | {"kind": JobKind(row["kind"])})

    def beat(self, job: BegunJob, progress: str | None, *, best: str | None = None, forgive: int | None = None) -> bool:
        """Say that the attempt is alive, with news and a new best plan (JSON texts) if there are any.

        ``forgive`` is given where the attempt has got on: how many were lost before it. False when the attempt is over:
        cancelled, or another's.
        """
        alive = update(jobs).where(*_still_ours(job))
        if progress is not None:
            alive = alive.values(progress=progress, revision=jobs.c.revision + 1)
        if best is not None:
            alive = alive.values(best=best)
        if forgive is not None:
            alive = alive.values(forgiven=forgive)
        with writing(self._engine) as connection:
            return connection.execute(alive.values(beat_s=now_s(connection))).rowcount > 0

    def is_planned(self, job: BegunJob) -> bool:
        """Return True if the job's plan is stored."""
        return PlanRepository(self._engine, job.tenant).find(job.digest) is not None

    def finish(self, job: BegunJob, end: JobEnd, *, then: OnFinished) -> bool:
        """Store what came out and close the job, all or nothing; False when the attempt was over.

        The plan is stored even then: it is as good as the one that the other attempt will make, and the first stays. What
        waits for it has it. An attempt that was over and made none says nothing to them: another attempt may.
        """
        with writing(self._engine) as connection:
            if end.plan is not None:
                PlanRepository(self._engine, job.tenant).add_with(connection, end.plan)
            closed = connection.execute(
                update(jobs)
                .where(*_still_ours(job))
                .values(
                    status=end.status.value,
                    active_digest=None,
                    finished_at=datetime.now(UTC),
                    revision=jobs.c.revision + 1,
                    answer=end.answer,
                    problem=end.problem,
                )
            )
            is_ours = closed.rowcount > 0
            if is_ours or end.plan is not None:
                then(connection)
            return is_ours

    def silent(self, *, for_s: float, limit: int) -> tuple[SilentJob, ...]:
        """Active jobs without a sign of life for a time: those that a worker began first, then the longest silent.

        Of those that wait for their turn there may be thousands, which nobody is to keep alive.
        """
        with reading(self._engine) as connection:
            found = connection.execute(
                select(jobs.c.id, jobs.c.workflow, jobs.c.urgency, jobs.c.beat_s)
                .where(jobs.c.status.in_(_ACTIVE), is_silent(jobs.c.beat_s, connection, for_s=for_s))
                .order_by(jobs.c.status != JobStatus.RUNNING.value, jobs.c.beat_s)
                .limit(limit)
            ).all()
        return tuple(SilentJob(*row) for row in found)

    def claim_silent(self, connection: Connection, job: SilentJob, *, workflow: str | None = None) -> bool:
        """Be the one who deals with a silent job, its workflow replaced if another is given; False when someone else is."""
        claimed = update(jobs).where(
            jobs.c.id == job.id, jobs.c.status.in_(_ACTIVE), jobs.c.beat_s == job.beat_s, jobs.c.workflow == job.workflow
        )
        if workflow is not None:
            claimed = claimed.values(workflow=workflow)
        return connection.execute(claimed.values(beat_s=now_s(connection))).rowcount > 0

    def note_waiting(self, found: Sequence[SilentJob], *, for_s: float) -> None:
        """Note that silent jobs were seen to wait for their turn, all in one transaction."""
        with writing(self._engine) as connection:
            # Those that another reaper notes at this moment are passed over: two that wait for one another's rows never end.
            mine = (
                select(jobs.c.row)
                .where(
                    jobs.c.id.in_([job.id for job in found]),
                    jobs.c.status.in_(_ACTIVE),
                    is_silent(jobs.c.beat_s, connection, for_s=for_s),
                )
                .with_for_update(skip_locked=True)
            )
            rows = connection.execute(mine).scalars().all()
            connection.execute(update(jobs).where(jobs.c.row.in_(rows)).values(beat_s=now_s(connection)))

    def state(self, *, worker_alive_s: float) -> QueueState:
        """The state of the queue and its workers."""
        with reading(self._engine) as connection:
            counted = connection.execute(
                select(jobs.c.status, func.count().label("n")).where(jobs.c.status.in_(_ACTIVE)).group_by(jobs.c.status)
            ).all()
            oldest = connection.execute(
                select(func.min(jobs.c.created_at)).where(jobs.c.status == JobStatus.QUEUED.value)
            ).scalar_one()
            alive = connection.execute(
                select(func.count()).select_from(workers).where(workers.c.beat_s > now_s(connection) - worker_alive_s)
            ).scalar_one()
        counts = {row.status: row.n for row in counted}
        oldest_s = 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - utc(oldest)).total_seconds())
        return QueueState(counts.get(JobStatus.QUEUED.value, 0), counts.get(JobStatus.RUNNING.value, 0), oldest_s, int(alive))

    def worker_beat(self, name: str, *, version: str, slots: int, draining: bool) -> None:
        """Say that a worker is alive; forget those that are long gone."""
        with writing(self._engine) as connection:
            now = now_s(connection)
            new = insert_if_absent(workers, ["name"], is_sqlite=is_sqlite(self._engine)).values(
                name=name, version=version, slots=slots, started_at=datetime.now(UTC), beat_s=now, draining=draining
            )
            connection.execute(new)
            connection.execute(update(workers).where(workers.c.name == name).values(beat_s=now, draining=draining))
            connection.execute(delete(workers).where(workers.c.beat_s < now - FORGET_WORKERS_S))

    def worker_gone(self, name: str) -> None:
        """Forget a worker that ends on purpose."""
        with writing(self._engine) as connection:
            connection.execute(delete(workers).where(workers.c.name == name))

    def note_hand_back(self, workflows: Sequence[str]) -> None:
        """Note that the worker of these workflows was told to stop: their jobs' attempts end in order, and are no losses."""
        handed_back = update(jobs).where(jobs.c.workflow.in_(workflows), jobs.c.status == JobStatus.RUNNING.value)
        with writing(self._engine) as connection:
            connection.execute(handed_back.values(hand_backs=jobs.c.hand_backs + 1))

    def show_waiting(self, workflows: Sequence[str], worker: str) -> None:
        """Say that jobs wait again which a worker had in hand, but for those that another has begun meanwhile."""
        given_back = update(jobs).where(
            jobs.c.workflow.in_(workflows), jobs.c.status == JobStatus.RUNNING.value, jobs.c.worker == worker
        )
        with writing(self._engine) as connection:
            connection.execute(given_back.values(status=JobStatus.QUEUED.value, revision=jobs.c.revision + 1))


def _still_ours(job: BegunJob) -> tuple[ColumnElement[bool], ...]:
    return (jobs.c.id == job.id, jobs.c.status == JobStatus.RUNNING.value, jobs.c.attempt == job.attempt)
