"""The figures of a log in the log's own terms, and as figures of a run of a plan."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from meshwright.app.evidence.logs.stated import NOTHING_STATED, Stated
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.problem.request import ServingRequest, TrainingRequest

WARM_UP_STEPS = 1
"""Steps at the start of a log that are left out where there are more: the first holds compilation and first allocations."""

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU|XPU) (?:error: )?out of memory|RESOURCE_EXHAUSTED: Out of memory|hipErrorOutOfMemory"
    r"|No available memory for the cache blocks"
)
"""The words of PyTorch (``torch.OutOfMemoryError``, ``torch.cuda.OutOfMemoryError``, older
``RuntimeError: CUDA out of memory``), of drivers and of XLA when a device has no memory left, and of vLLM when weights and the
largest step leave none to the cache, so that it does not start."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The content of a log: a training log gives the time of a step in one of three ways, a benchmark gives figures.

    step_times_s                 seconds of steps, or means of several
    tokens_per_s_per_device      training throughput of a device, step by step
    sequences_per_s              sequences that all devices train on in a second, step by step
    peak_memory_bytes            of the fullest device that the log names
    figures                      serving figures by the names of a run's fields
    served_tokens_per_s          tokens that the engines of a server's log generate in a second together
    engines                      how many engines these are
    stated                       the workload that it says it is of
    unread                       words of a rate that it has and that can't be read as a time; empty without such
    others                       other results in the same file, each with its workload
    """

    step_times_s: Sequence[float] = ()
    tokens_per_s_per_device: Sequence[float] = ()
    sequences_per_s: Sequence[float] = ()
    peak_memory_bytes: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    served_tokens_per_s: float = 0.0
    engines: int = 0
    stated: Stated = NOTHING_STATED
    unread: str = ""
    others: tuple[Logged, ...] = ()

    @property
    def has_times(self) -> bool:
        """True if the log says how fast the run was."""
        told = self.step_times_s or self.tokens_per_s_per_device or self.sequences_per_s or self.figures
        return bool(told or self.served_tokens_per_s)


def highest_bytes(sizes: Iterable[float]) -> int | None:
    """Return the highest of the sizes that a log names, in bytes. Digits that make no finite number are passed over, and 0,
    which is what programs print of a device whose memory they can't ask."""
    return max((round(size) for size in sizes if 0.0 < size < math.inf), default=None)


def ran_out_of_memory(lines: Sequence[str]) -> bool:
    """Return True if a device ran out of memory in a log."""
    return any(_OUT_OF_MEMORY.search(line) for line in lines)


def figures_of(logged: Logged, answered: AnsweredRequest) -> dict[str, float | int]:
    """Return the figures of a run from its log and its plan; raises InvalidInputError for a log of another kind of plan."""
    request = answered.request
    figures: dict[str, float | int] = dict(logged.figures)
    if logged.peak_memory_bytes is not None:
        figures["peak_memory_bytes"] = logged.peak_memory_bytes
    return _FIGURES_OF[request.workload.kind](figures, logged, answered.plan, request)


def _figures_of_serving(
    figures: dict[str, float | int], logged: Logged, plan: Plan, request: ServingRequest
) -> dict[str, float | int]:
    if logged.step_times_s or logged.tokens_per_s_per_device or logged.sequences_per_s:
        raise InvalidInputError("this is the log of a training run, the plan is of serving", given="steps of training")
    if logged.served_tokens_per_s:
        figures["tokens_per_s"] = _served_tokens_per_s(logged, plan)
    return figures


def _figures_of_training(
    figures: dict[str, float | int], logged: Logged, plan: Plan, request: TrainingRequest
) -> dict[str, float | int]:
    if logged.served_tokens_per_s:
        raise InvalidInputError("this is the log of a server, the plan is of training", given=f"{logged.engines} engines")
    if logged.figures:
        raise InvalidInputError("this is a serving benchmark, the plan is of training", given=", ".join(logged.figures))
    step_time_s = _step_time_s(logged, request, devices=plan.devices)
    return figures if step_time_s is None else {"step_time_s": step_time_s, **figures}


_FIGURES_OF: Mapping[str, Callable[[dict[str, float | int], Logged, Plan, Any], dict[str, float | int]]] = {
    "training": _figures_of_training,
    "serving": _figures_of_serving,
}
"""What takes the figures of a run from a log, by the kind of workload."""


def _served_tokens_per_s(logged: Logged, plan: Plan) -> float:
    """Return what all replicas of a plan generate, from the log of all of them or of one server: requests are split evenly."""
    if not isinstance(plan.layout, Replicas):
        raise InvalidInputError(
            "the log of a server says nothing of workers that differ",
            given=type(plan.layout).__name__.lower(),
            allowed="a plan of replicas alike",
            remedy="give the result of a benchmark, which all workers answered",
        )
    replicas, groups = plan.layout.load.replicas, plan.layout.axes.attention_dp
    if logged.engines == replicas * groups:
        return logged.served_tokens_per_s
    if logged.engines == groups:
        return logged.served_tokens_per_s * replicas
    allowed = str(groups) if replicas == 1 else f"{groups}, those of one replica, or {replicas * groups}, those of all"
    raise InvalidInputError("the log's engines are not those of the plan", given=f"{logged.engines} engines", allowed=allowed)


def _step_time_s(logged: Logged, request: TrainingRequest, *, devices: int) -> float | None:
    sequences = request.workload.global_batch
    if logged.step_times_s:
        return _typical(logged.step_times_s)
    if logged.tokens_per_s_per_device:
        return sequences * request.workload.seq_len / (_typical(logged.tokens_per_s_per_device) * devices)
    if logged.sequences_per_s:
        return sequences / _typical(logged.sequences_per_s)
    return None


def _typical(values: Sequence[float]) -> float:
    """The median without the first steps."""
    return median(values[WARM_UP_STEPS:] or values)
