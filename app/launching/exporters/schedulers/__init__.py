"""Schedulers of clusters: one file that asks for a plan's nodes and starts the launcher's command on each.

Which devices take part and in which order is the plan's; what the command is, the launcher's (`app.launching.exporters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from meshwright.app.launching.exporters.schedulers import (
    dynamo,
    jobset,
    kserve,
    kubernetes,
    llm_d,
    ray_serve,
    skypilot,
    slurm,
)
from meshwright.app.launching.exporters.schedulers import serving as service
from meshwright.app.launching.exporters.schedulers.job import Job, JobFile, job_of
from meshwright.app.launching.parts.export import Export
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.problem.request import PlanRequest

__all__ = ["JobFile", "Scheduler", "job_file", "schedulers_of"]


class Scheduler(StrEnum):
    """A scheduler that a job can be written for."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    JOBSET = "jobset"
    SKYPILOT = "skypilot"
    KSERVE = "kserve"
    RAY_SERVE = "ray-serve"
    DYNAMO = "dynamo"
    LLM_D = "llm-d"


def _of_ranks(write: Callable[[Job], JobFile]) -> Callable[[Export, Plan, Any], JobFile]:
    return lambda launched, plan, request: write(job_of(launched, plan, request))


def _of_servers(write: Callable[[Export, AnsweredRequest], JobFile]) -> Callable[[Export, Plan, Any], JobFile]:
    return lambda launched, plan, request: write(launched, AnsweredRequest(plan, request))


@dataclass(frozen=True, slots=True)
class KindJobs:
    """The schedulers that have a file for plans of a kind of workload, and what by hand means beside exporting without one."""

    files: Mapping[Scheduler, Callable[[Export, Plan, Any], JobFile]]
    by_hand: str


JOBS: Mapping[str, KindJobs] = MappingProxyType(
    {
        "training": KindJobs(
            {
                Scheduler.SLURM: _of_ranks(slurm.job_file),
                Scheduler.KUBERNETES: _of_ranks(kubernetes.job_file),
                Scheduler.JOBSET: _of_ranks(jobset.job_file),
                Scheduler.SKYPILOT: _of_ranks(skypilot.job_file),
            },
            by_hand="",
        ),
        "serving": KindJobs(
            {
                Scheduler.KUBERNETES: _of_servers(service.service_file),
                Scheduler.SKYPILOT: _of_servers(skypilot.service_file),
                Scheduler.KSERVE: _of_servers(kserve.service_file),
                Scheduler.RAY_SERVE: _of_servers(ray_serve.service_file),
                Scheduler.DYNAMO: _of_servers(dynamo.service_file),
                Scheduler.LLM_D: _of_servers(llm_d.service_file),
            },
            by_hand=" and start each server of the script where the plan has it",
        ),
    }
)
"""Schedulers by the kind of workload."""


def schedulers_of(request: PlanRequest) -> tuple[Scheduler, ...]:
    """Return the schedulers that have a file for plans of a request, in their order."""
    able = JOBS[request.workload.kind].files
    return tuple(each for each in Scheduler if each in able)


def job_file(launched: Export, answered: AnsweredRequest, scheduler: Scheduler) -> JobFile:
    """Return the scheduler's file that launches a plan; raises ExportError for a plan that it can't place."""
    plan, request = answered.plan, answered.request
    jobs = JOBS[request.workload.kind]
    if scheduler not in jobs.files:
        raise ExportError(
            f"{scheduler.value} jobs are written for {' and '.join(k for k, j in JOBS.items() if scheduler in j.files)} plans",
            given=f"a {request.workload.kind} plan",
            allowed=", ".join(schedulers_of(request)),
            remedy=f"name one of those with --on, or export without it{jobs.by_hand}",
        )
    return jobs.files[scheduler](launched, plan, request)
