"""Schedulers of clusters: one file that asks for a plan's nodes and starts the launcher's command on each.

Which devices take part and in which order is the plan's; what the command is, the launcher's (`app.launching.exporters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

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
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.request import PlanRequest, ServingRequest

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


_TRAINING: Mapping[Scheduler, Callable[[Job], JobFile]] = MappingProxyType(
    {
        Scheduler.SLURM: slurm.job_file,
        Scheduler.KUBERNETES: kubernetes.job_file,
        Scheduler.JOBSET: jobset.job_file,
        Scheduler.SKYPILOT: skypilot.job_file,
    }
)
_SERVING: Mapping[Scheduler, Callable[[Export, AnsweredRequest], JobFile]] = MappingProxyType(
    {
        Scheduler.KUBERNETES: service.service_file,
        Scheduler.SKYPILOT: skypilot.service_file,
        Scheduler.KSERVE: kserve.service_file,
        Scheduler.RAY_SERVE: ray_serve.service_file,
        Scheduler.DYNAMO: dynamo.service_file,
        Scheduler.LLM_D: llm_d.service_file,
    }
)


def schedulers_of(request: PlanRequest) -> tuple[Scheduler, ...]:
    """Return the schedulers that have a file for plans of a request, in their order."""
    able = _SERVING if isinstance(request, ServingRequest) else _TRAINING
    return tuple(each for each in Scheduler if each in able)


def job_file(launched: Export, answered: AnsweredRequest, scheduler: Scheduler) -> JobFile:
    """Return the scheduler's file that launches a plan; raises ExportError for a plan that it can't place."""
    request = answered.request
    able = schedulers_of(request)
    if scheduler not in able:
        serves = isinstance(request, ServingRequest)
        raise ExportError(
            f"{scheduler.value} jobs are written for {'training' if serves else 'serving'} plans",
            given=f"a {'serving' if serves else 'training'} plan",
            allowed=", ".join(able),
            remedy="name one of those with --on, or export without it"
            + (" and start each server of the script where the plan has it" if serves else ""),
        )
    if isinstance(request, ServingRequest):
        return _SERVING[scheduler](launched, answered)
    return _TRAINING[scheduler](job_of(launched, answered))
