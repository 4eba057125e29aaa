"""Jobs as workers see them, those of all tenants: begun, kept alive, finished, and found when nobody works on them.

A worker may lose a job to another one while it is frozen or cut off. Every write names the attempt it belongs to, and a
write of an attempt that is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, select, update

from meshwright.app.db.dialects import insert_if_absent, is_silent, now_s, utc
from meshwright.app.db.engine import is_sqlite, reading, writing
from meshwright.app.db.tables.jobs import jobs, workers
from meshwright.app.jobs.job import ACTIVE, BegunJob, JobKind, JobStatus
from meshwright.app.jobs.turns import NO_WEIGHTS, take_turn
from meshwright.app.plans.repository import PlanRepository, StoredPlan

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


def _still_ours(job: BegunJob) -> tuple[ColumnElement[bool], ...]:
    return (jobs.c.id == job.id, jobs.c.status == JobStatus.RUNNING.value, jobs.c.attempt == job.attempt)
