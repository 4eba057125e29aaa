"""What follows from the end of a job, in the transaction that ends it."""

from __future__ import annotations

from sqlalchemy import Connection

from app.db.job_desk import JobEnd
from app.db.question_repository import plan_arrived
from app.jobs.job import BegunJob, JobStatus


def settle(connection: Connection, job: BegunJob, end: JobEnd) -> None:
    """Point the questions that waited for this plan to it."""
    if end.status is JobStatus.SUCCEEDED and end.answer is None:
        plan_arrived(connection, job.tenant, job.digest)
