"""Schedulers of clusters: one file that asks for a training plan's nodes and starts the launcher's command on each.

Which devices take part and in which order is the plan's; what the command is, the launcher's (`app.exporters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.schedulers import kubernetes, slurm
from meshwright.app.exporters.schedulers.job import Job, JobFile, job_of
from meshwright.solver.answer.plan import AnsweredRequest

__all__ = ["JobFile", "Scheduler", "job_file"]


class Scheduler(StrEnum):
    """A scheduler that a job can be written for."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


_WRITERS: Mapping[Scheduler, Callable[[Job], JobFile]] = MappingProxyType(
    {Scheduler.SLURM: slurm.job_file, Scheduler.KUBERNETES: kubernetes.job_file}
)


def job_file(launched: Export, answered: AnsweredRequest, scheduler: Scheduler) -> JobFile:
    """Return the scheduler's file that launches a training plan; raises ExportError for a plan that it can't place."""
    return _WRITERS[scheduler](job_of(launched, answered, scheduler.value))
