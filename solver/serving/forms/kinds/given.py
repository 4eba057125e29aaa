"""A plan of several kinds of workers as it was given: predicted anew, and each kind as what it is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Reason, SearchStats, Status
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import Arrivals, ServingRequest
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    GammaArrivals,
    PoissonArrivals,
    ScheduleArrivals,
    TraceArrivals,
)
from meshwright.solver.serving.forms.form import Misfit
from meshwright.solver.serving.forms.kinds.answer import KindMeasured, kinds_objective, kinds_plan
from meshwright.solver.serving.promise.certificates import UNITS
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.serving.workers.reasons import memory_shortfall, missed_targets

_SHARES_ROUNDING = 1e-6
"""The largest distance from 1 of the sum of a plan's shares, as people may write them."""


def given_kinds(
    request: ServingRequest, layout: Kinds, *, loads: list[float] | None = None
) -> list[tuple[WorkerKind, ServingRequest]]:
    """Each kind of a plan and the request of its share of the arrivals, or of a load of its own.

    Raises PlanFileError where shares do not sum to 1.
    """
    shares = [kind.share for kind in layout.kinds]
    if min(shares) <= 0.0 or abs(math.fsum(shares) - 1.0) > _SHARES_ROUNDING:
        raise PlanFileError("shares of the arrivals must be positive and sum to 1", given=shares)
    if loads is None:
        loads = [share * asked_rate(request) for share in shares]
    return list(zip(layout.kinds, kind_requests(request, shares, loads), strict=True))


def predict(request: ServingRequest, plan: Plan, layout: Kinds) -> Plan | Misfit:
    """The plan's kinds with every figure predicted anew; or the reason, when one of them does not fit in memory
    or misses a target by itself. Objective throughput: figures are at the plan's own rates, or at the request's where those
    are missed.

    Raises PlanFileError when the plan does not belong to the request.
    """
    asked = [given_kinds(request, layout)]
    claimed = [kind.requests_per_s for kind in layout.kinds]
    if request.objective is Objective.THROUGHPUT and math.fsum(claimed) >= asked_rate(request):
        asked.insert(0, given_kinds(request, layout, loads=claimed))
    for kinds in asked:
        found = [_measured(kind, own) for kind, own in kinds]
        measured = [each for each in found if isinstance(each, KindMeasured)]
        if len(measured) == len(found):
            break
    stats = SearchStats(candidates=1, evaluated=sum(each.evaluator.simulations for each in measured), seconds=0.0)
    reason = next((each for each in found if isinstance(each, Reason)), None)
    if reason is not None:
        return Misfit(reason, stats)
    objective = kinds_objective(request, [each.measured for each in measured])
    certificate = Certificate(Status.FEASIBLE, objective, None, None, UNITS[request.objective], "this plan only")
    return kinds_plan(request, measured, certificate=certificate, stats=stats, notes=())


def asked_rate(request: ServingRequest) -> float:
    """Requests per second that a request asks for; 0 for clients in a closed loop."""
    arrivals = request.workload.arrivals
    return 0.0 if isinstance(arrivals, ClosedArrivals) else arrivals.requests_per_s


def _measured(kind: WorkerKind, own: ServingRequest) -> KindMeasured | Reason:
    """A kind under its load, or what it lacks to keep its promise."""
    evaluator, candidate, share = given_candidate(own, kind.replicas.workers)
    if candidate.limits.kv_tokens < evaluator.longest_request:
        limits = {"step_tokens": candidate.step_tokens, "sequences": candidate.sequences}
        return memory_shortfall(candidate.engine, **limits, tokens=evaluator.longest_request)
    measured = evaluator.measure_fully(candidate, share)
    if not measured.keeps:
        return missed_targets(evaluator, measured)
    first = min(devices.first for devices in kind.replicas.workers.device_ranges)
    return KindMeasured(own, evaluator, measured, kind.share, first)


# The request of each of several kinds of workers: the whole request with its share of the arrivals.


def kind_requests(request: ServingRequest, shares: Sequence[float], loads: Sequence[float]) -> list[ServingRequest]:
    """The request of each kind of workers that takes a share of the arrivals, ``loads`` requests per second.

    Requests are drawn at random by share: of Poisson arrivals each kind sees Poisson arrivals, of bursts fewer, squared
    variation ``1 + (cv^2 - 1) share``; of a schedule each its share at any time. A trace is dealt out in weighted turn,
    whatever ``loads`` say.

    Raises WorkloadError for clients in a closed loop, who are no arrivals to share.
    """
    workload = request.workload
    # Each kind by itself is a plan of one.
    search = replace(request.search, worker_kinds=1)
    shared = _shared(workload.arrivals, shares, loads)
    return [replace(request, workload=replace(workload, arrivals=each), search=search) for each in shared]


def _shared(arrivals: Arrivals, shares: Sequence[float], loads: Sequence[float]) -> list[Arrivals]:
    match arrivals:
        case PoissonArrivals():
            return [replace(arrivals, requests_per_s=load) for load in loads]
        case GammaArrivals():
            squared = [1.0 + (arrivals.cv**2 - 1.0) * share for share in shares]
            return [replace(arrivals, requests_per_s=load, cv=math.sqrt(s)) for load, s in zip(loads, squared, strict=True)]
        case ScheduleArrivals():
            return [arrivals.at(load) for load in loads]
        case TraceArrivals():
            turns = weighted_turns(shares, len(arrivals.times_s))
            return [_part_of(arrivals, [i for i, kind in enumerate(turns) if kind == own]) for own in range(len(shares))]
        case ClosedArrivals():
            raise WorkloadError(
                "clients in a closed loop are not shared by several kinds of workers",
                given=arrivals.process,
                allowed="poisson, gamma, trace; or search.worker_kinds 1",
            )


def weighted_turns(shares: Sequence[float], requests: int) -> list[int]:
    """Return, for each request, the kind that takes it: the one that its share of those so far leaves furthest behind, of
    equals the first."""
    taken, turns = [0] * len(shares), []
    for count in range(1, requests + 1):
        behind = [share * count - had for share, had in zip(shares, taken, strict=True)]
        kind = behind.index(max(behind))
        taken[kind] += 1
        turns.append(kind)
    return turns


def _part_of(trace: TraceArrivals, requests: list[int]) -> TraceArrivals:
    if len(requests) < 2:
        raise WorkloadError(
            "the trace is too short for a kind of workers that takes so few of its requests",
            given=f"{len(requests)} of {len(trace.times_s)} requests",
            remedy="give a longer trace",
        )
    columns = (trace.times_s, trace.prompt_tokens, trace.output_tokens)
    times_s, prompts, outputs = (tuple(column[i] for i in requests) for column in columns)
    cached = tuple(trace.cached_tokens[i] for i in requests) if trace.cached_tokens else ()
    return replace(trace, times_s=times_s, prompt_tokens=prompts, output_tokens=outputs, cached_tokens=cached)  # type: ignore[arg-type]
