"""The bodies and answers of the plan endpoints, as Pydantic models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.edge.lists import ANSWER, ProblemDocument
from meshwright.app.regression.report import CheckReport
from meshwright.app.requests.document import RequestDocument
from meshwright.app.store.calibrations import CalibrationSummary
from meshwright.app.store.checks import StoredCheck
from meshwright.app.store.fleet import Registered, RegisteredKind
from meshwright.app.store.jobs import Job, JobKind, JobStatus
from meshwright.app.store.plans import PlanSummary
from meshwright.app.store.questions import Question
from meshwright.app.store.runs import RUN_SCHEMA, RunOutcome, StoredRun
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD
from meshwright.solver.answer.plan_record import PlanRecord


@dataclass(frozen=True, kw_only=True)
class PlanDocument(PlanRecord):
    """A plan with the resolved request it answers."""

    request: RequestDocument


class PlanItem(BaseModel):
    """A plan in a list."""

    model_config = ANSWER

    digest: str
    created_at: datetime
    model: str
    kind: str
    feasible: bool
    status: str = Field(description="Of the certificate: optimal, feasible, infeasible or undecided.")
    devices: int
    tokens_per_s: float | None
    stale_since: datetime | None = Field(description="When a newer calibration of one of its devices was stored; else null.")


class PlanPage(BaseModel):
    """A page of plans, newest first."""

    model_config = ANSWER

    plans: list[PlanItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def plan_item(summary: PlanSummary, stale_since: datetime | None) -> PlanItem:
    """A row as an item of a list."""
    fields = {name: getattr(summary, name) for name in PlanItem.model_fields if name != "stale_since"}
    return PlanItem(**fields, stale_since=stale_since)


# The answers of the job endpoints, as Pydantic models.


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


# The answers of the endpoints of runs, as Pydantic models, and examples of their bodies.

_PLAN = "sha256:" + "0f" * 32

RUN_EXAMPLES: dict[str, Any] = {
    "completed": {
        "summary": "A training run that completed",
        "value": {
            "schema": RUN_SCHEMA,
            "plan": _PLAN,
            "step_time_s": 7.1,
            "peak_memory_bytes": 76235669504,
            "label": "job 811",
        },
    },
    "out_of_memory": {
        "summary": "A run that went out of memory",
        "value": {"schema": RUN_SCHEMA, "plan": _PLAN, "outcome": "out_of_memory"},
    },
    "serving": {
        "summary": "A benchmark of a deployment",
        "value": {"schema": RUN_SCHEMA, "plan": _PLAN, "tokens_per_s": 3603.2, "ttft_p95_s": 0.41, "tpot_p95_s": 0.018},
    },
}


class RunItem(BaseModel):
    """A stored run."""

    model_config = ANSWER

    id: str = Field(description="sha256:HEX of the run: the same run reported twice has one.")
    created_at: datetime
    cluster: str = Field(description="The hardware that it ran on: its node types, and a digest of what they are.")
    profile: str = Field(description="The framework's profile that the request states, else its launcher or engine.")
    model: str
    plan: str = Field(description="Digest of the plan that ran.")
    kind: str
    outcome: RunOutcome
    measured: dict[str, float] = Field(description="Figures of the run, by name.")
    predicted: dict[str, float] = Field(description="The same figures as predicted before anything was learned from runs.")
    software: str
    label: str


class RunAnswer(RunItem):
    """The answer to a POST of a run."""

    calibration: str | None = Field(description="Name of the calibration that was learned with it, if any was.")
    stale: int = Field(description="Questions whose current plan became stale by it.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class RunPage(BaseModel):
    """A page of runs, newest first."""

    model_config = ANSWER

    runs: list[RunItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def run_item(stored: StoredRun) -> RunItem:
    """Return the run as the endpoints show it."""
    run, predicted = json.loads(stored.run), json.loads(stored.predicted)
    figures = {name: value for name, value in run.items() if isinstance(value, int | float)}
    said = {name: value for name, value in predicted.items() if isinstance(value, int | float)}
    return RunItem(
        id=stored.digest,
        created_at=stored.created_at,
        cluster=stored.cluster,
        profile=stored.profile,
        model=stored.model,
        plan=stored.plan,
        kind=stored.kind,
        outcome=RunOutcome(stored.outcome),
        measured=figures,
        predicted=said,
        software=run.get("software", ""),
        label=run.get("label", ""),
    )


# The answers of the calibration endpoints, as Pydantic models.


class CalibrationItem(BaseModel):
    """A stored calibration in a list."""

    model_config = ANSWER

    name: str = Field(description="KEY@sha256:HEX, the digest being that of its document.")
    key: str = Field(description="The device key that it is for.")
    version: int = Field(description="Counts from 1 within its key.")
    created_at: datetime
    source: str = Field(description="Where its measurements come from.")
    samples: int = Field(description="Measured rows that it was fitted to.")
    samples_digest: str


class CalibrationDocument(CalibrationItem):
    """A stored calibration with its document."""

    document: dict[str, Any]


class CalibrationAnswer(CalibrationItem):
    """The answer to a POST of a calibration."""

    stale: int = Field(description="Questions whose current plan became stale by it.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class CalibrationPage(BaseModel):
    """A page of calibrations, newest first."""

    model_config = ANSWER

    calibrations: list[CalibrationItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def item_fields(row: CalibrationSummary) -> dict[str, Any]:
    """Return the fields of a calibration that every answer holds."""
    return {name: getattr(row, name) for name in CalibrationItem.model_fields}


# The answers of the fleet endpoints, as Pydantic models.


class RegisteredItem(BaseModel):
    """A version of a registered model or cluster, in a list."""

    model_config = ANSWER

    name: str
    version: int
    digest: str = Field(description="sha256 over the canonical form of the document.")
    created_at: datetime


class RegisteredDocument(RegisteredItem):
    """A version of a registered model or cluster, every reference in it resolved."""

    document: dict[str, Any]


class PutAnswer(RegisteredItem):
    """The answer to a PUT."""

    stale: int = Field(description="Questions whose current plan became stale by this version.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class RegisteredPage(BaseModel):
    """A page of registered models or clusters, or of versions of one."""

    model_config = ANSWER

    items: list[RegisteredItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class QuestionItem(BaseModel):
    """A request that names what changes (a registered model or cluster, a newest calibration), and the plan for it now."""

    model_config = ANSWER

    digest: str = Field(description="Of the request document with its names unresolved.")
    cluster: str | None
    model: str | None
    created_at: datetime
    plan: str | None = Field(description="Digest of the current plan; null until there is one.")
    pending: str | None = Field(description="Digest of the plan that is awaited, if one is.")
    stale_since: datetime | None
    stale_reason: str | None


class QuestionPage(BaseModel):
    """A page of questions, newest first."""

    model_config = ANSWER

    questions: list[QuestionItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def registered_item(version: Registered) -> RegisteredItem:
    """A version in a list."""
    return RegisteredItem(**_fields(version))


def registered_document(version: Registered) -> RegisteredDocument:
    """A version with its document."""
    return RegisteredDocument(**_fields(version), document=json.loads(version.document))


def put_answer(version: Registered, *, stale: int, replan: str | None) -> PutAnswer:
    """Return the answer to a PUT."""
    return PutAnswer(**_fields(version), stale=stale, replan=replan)


def question_item(question: Question) -> QuestionItem:
    """A question in a list."""
    return QuestionItem(**{name: getattr(question, name) for name in QuestionItem.model_fields})


def address(kind: RegisteredKind, name: str) -> str:
    """Where a registered model or cluster is."""
    return f"/v1/{kind}s/{name}"


def _fields(version: Registered) -> dict[str, Any]:
    return {name: getattr(version, name) for name in RegisteredItem.model_fields}


# The bodies and answers of the endpoints of checks.

CHECK_ANSWER = ConfigDict(extra="forbid", frozen=True)
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class NewCheck:
    """A report of ``meshwright check`` and the project whose history it joins."""

    __pydantic_config__ = STRICT_RECORD

    project: str
    report: CheckReport

    def __post_init__(self) -> None:
        if not 1 <= len(self.project) <= MAX_NAME or not self.project.isprintable():
            allowed = f"1 to {MAX_NAME} printable characters"
            raise InvalidInputError("this is no name of a project", given=self.project[:MAX_NAME], allowed=allowed)


class CheckItem(BaseModel):
    """A check in a list."""

    model_config = CHECK_ANSWER

    id: str
    project: str
    created_at: datetime
    passed: bool
    exit_code: int
    folder: str
    counts: dict[str, int] = Field(description="How many plans have each verdict.")
    meshwright_changes: dict[str, int] = Field(description="Changes of versions and calibrations; how many plans each touches.")


class CheckPage(BaseModel):
    """A page of checks, newest first."""

    model_config = CHECK_ANSWER

    checks: list[CheckItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class TrendPoint(BaseModel):
    """A plan as one check found it."""

    model_config = CHECK_ANSWER

    check: str
    created_at: datetime
    verdict: str
    figures: dict[str, float] = Field(description="As planned then: tokens_per_s, memory_headroom_bytes and others.")
    findings: list[str]


class Trend(BaseModel):
    """The course of a plan over the checks of a project, newest first."""

    model_config = CHECK_ANSWER

    project: str
    plan: str
    points: list[TrendPoint]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get older points; null on the last page.")


def check_item(stored: StoredCheck) -> CheckItem:
    """A check without its plans."""
    report = json.loads(stored.report)
    return CheckItem(
        id=stored.id,
        project=stored.project,
        created_at=stored.created_at,
        passed=stored.exit_code == EXIT_GOOD,
        exit_code=stored.exit_code,
        folder=report["folder"],
        counts=report["counts"],
        meshwright_changes=report["meshwright_changes"],
    )


def trend_point(stored: StoredCheck, plan: str) -> TrendPoint | None:
    """Return the point that a check adds to the trend of a plan; None when it had no such plan."""
    found: Mapping[str, Any] | None
    found = next((item for item in json.loads(stored.report)["plans"] if item["name"] == plan), None)
    if found is None:
        return None
    messages = [finding["message"] for finding in found["findings"]]
    figures = found["now"] or {}
    return TrendPoint(
        check=stored.id, created_at=stored.created_at, verdict=found["verdict"], figures=figures, findings=messages
    )
