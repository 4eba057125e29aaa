"""Jobs as their owners see them: submitted, read, listed and cancelled, each within one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, RowMapping, func, select, update

from meshwright.app.db.compiled import compiled_if_absent
from meshwright.app.db.dialects import in_utc
from meshwright.app.db.engine import is_sqlite, reading
from meshwright.app.db.scope import TENANT, owned
from meshwright.app.db.tables.jobs import jobs
from meshwright.app.jobs.job import ACTIVE, Job, JobKind, JobStatus, NewJob

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
