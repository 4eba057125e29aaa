"""Putting a job into the queue, in the caller's transaction."""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, Engine

from meshwright.app.db.tables.jobs import MAX_OWNER
from meshwright.app.jobs.job import Job, JobKind, NewJob
from meshwright.app.jobs.queue import JobQueue
from meshwright.app.jobs.repository import JobRepository
from meshwright.app.plans.keyed import RequestKey


def plan_job(key: RequestKey, *, owner: str, kind: JobKind, urgency: int, trace: str | None) -> NewJob:
    """A job that makes the plan of a request; ``trace`` as in `NewJob`."""
    return NewJob(
        id=str(uuid.uuid4()),
        owner=owner[:MAX_OWNER],
        kind=kind,
        digest=key.digest,
        urgency=urgency,
        model=key.model,
        request=key.text,
        trace=trace,
    )


def submit(engine: Engine, queue: JobQueue, connection: Connection, tenant: str, job: NewJob) -> tuple[Job, bool]:
    """Queue a job unless one of its digest is active: the active one, and whether it is this.

    An active one ends no sooner than the transaction: whatever the caller writes to wait for it is there when it ends.
    """
    jobs = JobRepository(engine, tenant)
    while True:
        added = jobs.add(connection, job)
        if added is not None:
            queue.enqueue(connection, workflow=job.id, job_id=job.id, urgency=job.urgency)
            return added, True
        active = jobs.hold_active(connection, job.digest)
        if active is not None:
            return active, False
        # It has ended since: this one is added, and whoever takes it finds the plan stored.
