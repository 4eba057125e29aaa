"""A job, and the states it goes through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
