"""The answers of the job endpoints, as Pydantic models."""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import BaseModel, Field

from meshwright.app.http.answers import ANSWER, ProblemDocument
from meshwright.app.jobs.job import Job, JobKind, JobStatus


class BestPlan(BaseModel):
    """The best plan so far of a search, in short; the checker has passed it."""

    model_config = ANSWER

    digest: str = Field(description="sha256 of its document, which is at the job's 'best_plan'.")
    objective: float | None
    unit: str
    bound: float | None = Field(description="Proven bound of the objective when it was found.")
    gap: float | None
    devices: int
    tokens_per_s: float
    peak_memory_bytes: float
    axes: dict[str, int | None] = Field(description="Degrees of the mesh axes; null where one follows from the others.")
    microbatch: dict[str, int] | None = Field(description="Size and count of a training plan's micro-batches.")
    schedule: str | None


class JobProgress(BaseModel):
    """A moment of a job's search."""

    model_config = ANSWER

    done: int
    total: int
    best: float | None = Field(description="Objective of the best plan so far.")
    bound: float | None = Field(description="Proven bound of the objective over all plans.")
    gap: float | None = Field(description="How far the best may be from the optimum: |best - bound| / |best|.")
    note: str
    best_plan: BestPlan | None = Field(None, description="The best plan so far; null until one is found.")


class JobDocument(BaseModel):
    """A job: the plan that it makes, and how far it is."""

    model_config = ANSWER

    id: str
    kind: JobKind
    status: JobStatus
    digest: str = Field(description="Digest of the request, under which the plan will be stored.")
    model: str
    urgency: int = Field(description="0 is served first, 7 last.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int = Field(description="How often a worker has begun it.")
    progress: JobProgress | None
    problem: ProblemDocument | None = Field(description="Why it failed.")
    plan: str | None = Field(description="Where its plan is, once it has succeeded.")
    best_plan: str = Field(description="Where the best plan so far can be had.")
    events: str = Field(description="Where its progress can be followed.")


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    model_config = ANSWER

    jobs: list[JobDocument]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def job_document(job: Job) -> JobDocument:
    """A job as its document."""
    return JobDocument(
        id=job.id,
        kind=job.kind,
        status=job.status,
        digest=job.digest,
        model=job.model,
        urgency=job.urgency,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        attempt=job.attempt,
        progress=None if job.progress is None else JobProgress(**json.loads(job.progress)),
        problem=None if job.problem is None else ProblemDocument(**json.loads(job.problem)),
        plan=f"{job_address(job)}/plan" if job.status is JobStatus.SUCCEEDED and job.kind is not JobKind.BATCH else None,
        best_plan=f"{job_address(job)}/best-plan",
        events=f"{job_address(job)}/events",
    )


def job_address(job: Job) -> str:
    """Where a job is."""
    return f"/v1/jobs/{job.id}"
