"""Jobs as their owners see them: submitted, read, listed and cancelled, each within one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import Connection, Engine, RowMapping, func, select, update

from meshwright.app.store.engine import is_sqlite, reading
from meshwright.app.store.statements import TENANT, compiled_if_absent, in_utc, owned
from meshwright.app.store.tables import jobs

# A job, and the states it goes through.

DEFAULT_URGENCY = 3
"""Urgency of a request without a Priority header (RFC 9218, section 4.1)."""
REPLAN_URGENCY = 6
"""Re-planning lets what people wait for go first."""
LEAST_URGENT = 7


class JobStatus(StrEnum):
    """Where a job stands: the first two are active, the others final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if the job will not change any more."""
        return self not in ACTIVE


ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


class JobKind(StrEnum):
    """The work of a job: it makes a plan for a caller, or for a re-plan batch, or finds out what a batch has to plan."""

    PLAN = "plan"
    REPLAN = "replan"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted: ``request`` is the JSON text of the resolved request, ``digest`` that of its plan.

    trace    where its spans belong, if any are recorded
    """

    id: str
    owner: str
    kind: JobKind
    digest: str
    urgency: int
    model: str
    request: str
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job without its request: what its owner sees.

    row        place in the order of submission
    revision   grows with every change
    progress, problem, answer   JSON texts; null where there are none
    """

    row: int
    id: str
    kind: JobKind
    status: JobStatus
    digest: str
    urgency: int
    model: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    worker: str | None
    revision: int
    progress: str | None
    problem: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class BegunJob:
    """A job in a worker's hands: ``attempt`` says whether it still is when something is written for it.

    hand_backs   attempts before this one that ended because their worker was told to stop
    forgiven     attempts that were lost before the last one that got on
    best         document of the best plan that attempts before this one found, if any did
    """

    id: str
    tenant: str
    kind: JobKind
    digest: str
    request: str
    attempt: int
    trace: str | None = None
    hand_backs: int = 0
    forgiven: int = 0
    best: str | None = None

    @property
    def losses(self) -> int:
        """Attempts before this one that ended without a word."""
        return self.attempt - 1 - self.hand_backs

    @property
    def losses_in_a_row(self) -> int:
        """Those of them since the last attempt that got on, itself included."""
        return self.losses - self.forgiven


JOB_COLUMNS = tuple(jobs.c[name] for name in Job.__dataclass_fields__)
_WAITING = owned(select(func.count()), jobs, TENANT).where(jobs.c.status == JobStatus.QUEUED, jobs.c.kind == JobKind.PLAN)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The jobs that a list holds; None does not filter."""

    model: str | None = None
    status: JobStatus | None = None


class JobRepository:
    """Reads and writes of one tenant's jobs. Every method raises StoreError when the database can't serve it."""

    def __init__(self, engine: Engine, tenant: str):
        self._engine, self._tenant = engine, tenant

    def find(self, job_id: str) -> Job | None:
        """The job under an id."""
        query = owned(select(*JOB_COLUMNS), jobs, self._tenant).where(jobs.c.id == job_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else job_of(row)

    def best(self, job_id: str) -> str | None:
        """Text of the best plan so far of a job; None when it has found none."""
        query = owned(select(jobs.c.best), jobs, self._tenant).where(jobs.c.id == job_id)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar_one_or_none()

    def find_all(self, job_ids: Sequence[str]) -> tuple[Job, ...]:
        """Those of the jobs that there are."""
        query = owned(select(*JOB_COLUMNS), jobs, self._tenant).where(jobs.c.id.in_(job_ids))
        with reading(self._engine) as connection:
            return tuple(job_of(row) for row in connection.execute(query).mappings())

    def hold_active(self, connection: Connection, digest: str) -> Job | None:
        """The queued or running job that makes the plan of a digest; it stays so until the transaction ends.

        On PostgreSQL the row is locked against the end of the job, which changes a key of it (FOR KEY SHARE), not against signs
        of life. SQLite has one writer at a time.
        """
        query = owned(select(*JOB_COLUMNS), jobs, self._tenant).where(jobs.c.active_digest == digest)
        row = connection.execute(query.with_for_update(read=True, key_share=True)).mappings().one_or_none()
        return None if row is None else job_of(row)

    def waiting(self, connection: Connection) -> int:
        """Jobs that callers asked for and that are queued."""
        return int(connection.execute(_WAITING, {"tenant": self._tenant}).scalar_one())

    def add(self, connection: Connection, job: NewJob) -> Job | None:
        """Add a queued job unless its digest has an active one; the job that was added."""
        values = {
            "id": job.id,
            "tenant": self._tenant,
            "owner": job.owner,
            "kind": job.kind.value,
            "status": JobStatus.QUEUED.value,
            "digest": job.digest,
            "active_digest": job.digest,
            "urgency": job.urgency,
            "model": job.model,
            "request": job.request,
            "trace": job.trace,
            "created_at": datetime.now(UTC),
            "workflow": job.id,
            "attempt": 0,
            "revision": 1,
        }
        key, names = ("tenant", "active_digest"), tuple(values)
        insert = compiled_if_absent(JOB_COLUMNS, key, names, clocks=("beat_s",), is_sqlite=is_sqlite(self._engine))
        row = connection.execute(insert, values).mappings().one_or_none()
        return None if row is None else job_of(row)

    def cancel(self, connection: Connection, job_id: str, *, kind: JobKind | None = None) -> str | None:
        """Mark an active job, of this kind if one is given, as cancelled. Return its workflow; None when it was no such job."""
        cancelled = owned(update(jobs), jobs, self._tenant).where(
            jobs.c.id == job_id, jobs.c.status.in_([status.value for status in ACTIVE])
        )
        if kind is not None:
            cancelled = cancelled.where(jobs.c.kind == kind.value)
        values = {"status": JobStatus.CANCELLED.value, "active_digest": None, "finished_at": datetime.now(UTC)}
        ended = cancelled.values(revision=jobs.c.revision + 1, **values).returning(jobs.c.workflow)
        return connection.execute(ended).scalar_one_or_none()

    def page(self, wanted: JobFilter, *, before: int | None, limit: int) -> tuple[Job, ...]:
        """Newest jobs first: at most ``limit`` of those submitted before row ``before``."""
        query = owned(select(*JOB_COLUMNS), jobs, self._tenant).order_by(jobs.c.row.desc()).limit(limit)
        if before is not None:
            query = query.where(jobs.c.row < before)
        if wanted.model is not None:
            query = query.where(jobs.c.model == wanted.model)
        if wanted.status is not None:
            query = query.where(jobs.c.status == wanted.status.value)
        with reading(self._engine) as connection:
            return tuple(job_of(row) for row in connection.execute(query).mappings())


def job_of(row: RowMapping) -> Job:
    """The row as a record."""
    values = in_utc(row)
    return Job(**values | {"kind": JobKind(values["kind"]), "status": JobStatus(values["status"])})
