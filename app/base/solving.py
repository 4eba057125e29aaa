"""Running the solver in this process, and what every way of running it looks like to its caller."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Progress, ignore_progress
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import PlanRequest, ServingRequest, Slo, TrainingRequest
from meshwright.solver.problem.search import DEFAULT_MEMORY_LIMIT_BYTES, Search
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals, ScheduleArrivals, TraceArrivals

if TYPE_CHECKING:
    from numba.core.event import TimingListener

    from meshwright.solver.serving.trials import ServingPlan, ServingTrial
    from meshwright.solver.training.report.trials import Trial

# Seconds that this process has spent compiling functions: a fresh installation's first solve, which no limit counts.

_COMPILING = "numba:compile"


def compiled_s() -> float:
    """Return the seconds spent compiling since this was first asked; what is under way is counted when it is done."""
    listener = _listener()
    return listener.duration if listener.done else 0.0


@cache
def _listener() -> TimingListener:
    from numba.core.event import TimingListener, register

    listener = TimingListener()  # type: ignore[no-untyped-call]
    register(_COMPILING, listener)  # type: ignore[no-untyped-call]
    return listener


# The memory that a search may take, measured as what its process has grown by since the search began.
#
# Measured is resident memory, as the kernel counts it: what the search keeps, and what is loaded and compiled for it
# meanwhile.

MEASURED_EVERY_S = 0.05
"""Time between two measurements: one takes some tens of microseconds, and searches ask thousands of times a second."""

_STATM = Path("/proc/self/statm")
"""Sizes of this process in pages, the second of them resident (proc(5))."""


@dataclass(slots=True)
class MemoryLimit:
    """Ends a search once this process has grown by more than ``limit_bytes``; once reached, it stays so."""

    limit_bytes: int
    held_bytes: int
    measured_s: float = -MEASURED_EVERY_S
    reached: bool = False

    @staticmethod
    def of(search: Search) -> MemoryLimit:
        """The limit of a search that begins now."""
        return MemoryLimit(search.memory_limit_bytes or DEFAULT_MEMORY_LIMIT_BYTES, resident_bytes())

    def __call__(self) -> bool:
        """Return True if the limit is reached."""
        now_s = time.monotonic()
        if not self.reached and now_s - self.measured_s >= MEASURED_EVERY_S:
            self.measured_s = now_s
            self.reached = resident_bytes() - self.held_bytes > self.limit_bytes
        return self.reached


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def said_of_memory(plan: Plan, limit: MemoryLimit) -> Plan:
    """The answer of a search, with a note if its memory limit left it a gap, or undecided, and what to try."""
    if not limit.reached or plan.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return plan
    remedy = f"raise search.memory_limit_bytes, now {limit.limit_bytes}"
    reason = plan.reason
    if reason is not None and not plan.feasible:
        reason = replace(reason, remedies=(remedy, *reason.remedies))
    note = f"the search was ended by its memory limit, not by its time: {remedy}, for a smaller gap"
    return replace(plan, reason=reason, notes=(*plan.notes, note))


class OnBeat(Protocol):
    """Called about once a second while a solve runs, with its latest progress or None; what it raises ends the solve."""

    def __call__(self, progress: Progress | None) -> None:
        """Take note that the solve is alive."""
        ...


class SolveFunction(Protocol):
    """Makes a plan in the process it is called in."""

    def __call__(self, request: PlanRequest, on_progress: OnProgress, /) -> Plan:
        """The plan, its digest still empty."""
        ...


class Solver(Protocol):
    """Makes plans, their digests still empty; may be called by several threads at once."""

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ..., /) -> Plan:
        """The plan; raises InvalidInputError, SolveTimeoutError, SolveMemoryError, SolverCrashError or PlanRejectedError."""
        ...

    def close(self) -> None:
        """End the solves that are running; their callers get a SolverCrashError."""
        ...


def ignore_beat(progress: Progress | None) -> None:
    """The listener of a caller that only waits."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Ends a search at a moment of a clock that stands still while functions are compiled."""

    deadline_s: float

    @staticmethod
    def after(limit_s: float) -> TimeLimit:
        """The limit of a search that begins now."""
        return TimeLimit(_counted_s() + limit_s)

    def __call__(self) -> bool:
        """Return True if the moment has come."""
        return _counted_s() >= self.deadline_s

    def part(self, share: float) -> TimeLimit:
        """The limit of a part of the search that may take this share of the time left."""
        now_s = _counted_s()
        return TimeLimit(now_s + share * max(0.0, self.deadline_s - now_s))


def _counted_s() -> float:
    """Return the time of the clock without what this process has spent compiling."""
    return time.monotonic() - compiled_s()


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Ends a search at the first of its limits; a part of it may take a share of the time, and all of the memory."""

    time: TimeLimit
    memory: MemoryLimit

    @staticmethod
    def of(request: PlanRequest) -> SearchLimits:
        """The limits of a search that begins now."""
        return SearchLimits(TimeLimit.after(request.search.time_limit_s), MemoryLimit.of(request.search))

    def __call__(self) -> bool:
        """Return True if a limit is reached."""
        return self.time() or self.memory()

    def part(self, share: float) -> SearchLimits:
        """The limits of a part of the search that may take this share of the time left."""
        return SearchLimits(self.time.part(share), self.memory)


def solve_here(request: PlanRequest, on_progress: OnProgress = ignore_progress) -> Plan:
    """Solve in this process until the request's limits, and note the CPU time it took, and the memory if that ended it."""
    from meshwright.solver.api import solve

    began_s, limits = time.process_time(), SearchLimits.of(request)
    plan = said_of_memory(solve(request, stop=limits, progress=on_progress), limits.memory)
    return replace(plan, search=replace(plan.search, seconds=time.process_time() - began_s))


def trials_here(request: TrainingRequest, plan: Plan, *, most: int) -> tuple[Trial, ...]:
    """Plans to run one after another, found in this process until the request's limits."""
    from meshwright.solver.api import trials

    return trials(request, plan, most=most, stop=SearchLimits.of(request), progress=ignore_progress)


def serving_trials_here(
    request: ServingRequest, plan: Plan, *, most: int, has_kept: Callable[[ServingPlan], bool | None]
) -> tuple[ServingTrial, ...]:
    """Serving plans to run one after another, found in this process until the request's limits."""
    from meshwright.solver.api import serving_trials

    return serving_trials(request, plan, most=most, has_kept=has_kept, stop=SearchLimits.of(request))


def predict_here(request: PlanRequest, plan: Plan) -> Plan:
    """The plan with its figures predicted anew and no digest: it is not what was planned.

    Raises InvalidInputError when it does not fit the request.
    """
    from meshwright.solver.api import predict

    return replace(predict(request, plan), digest="")


def predict_at_rate(request: ServingRequest, plan: Plan, requests_per_s: float | None = None) -> Plan:
    """The plan predicted at the rate that its request asks for, or at another, whatever objective and targets are: a plan for
    throughput has its own figures at the highest rate that it keeps up with. Of a schedule the rate is that of one interval.

    Raises InvalidInputError as ``predict_here`` does, and for another rate of clients or of a trace, whose load is their own.
    """
    workload, arrivals = request.workload, request.workload.arrivals
    if requests_per_s is not None:
        if isinstance(arrivals, ClosedArrivals | TraceArrivals):
            raise WorkloadError("a load of clients or of a trace has no other rate", given=requests_per_s, allowed="none")
        if isinstance(arrivals, ScheduleArrivals):
            workload = replace(workload, arrivals=PoissonArrivals("poisson", requests_per_s))
        else:
            workload = replace(workload, arrivals=replace(arrivals, requests_per_s=requests_per_s))
    return predict_here(replace(request, workload=workload, objective=Objective.DEVICES, slo=Slo()), plan)
