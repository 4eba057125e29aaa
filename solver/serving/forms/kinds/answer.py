"""From several kinds of workers to the Plan that is handed out: each kind as a plan of its own, and what all requests see;
and a plan of them that was given, predicted anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.queueing.load import WeightedObservations, mixture_percentile
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.replica import SimulationResult, pooled
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Predicted, Reason, SearchStats, Status
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import Arrivals, ServingRequest
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    GammaArrivals,
    PoissonArrivals,
    ScheduleArrivals,
    TraceArrivals,
)
from meshwright.solver.serving.engines.calibrations import calibrations_used
from meshwright.solver.serving.forms.form import Misfit
from meshwright.solver.serving.promise.candidates import P95, Measured, room_note
from meshwright.solver.serving.promise.certificates import UNITS
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import promised_of, with_latencies
from meshwright.solver.serving.promise.question import Found
from meshwright.solver.serving.workers.answer import decode_point, feasible_plan, prompt_point, replicas_of
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.serving.workers.reasons import memory_shortfall, missed_targets


@dataclass(frozen=True, eq=False)
class KindMeasured:
    """A kind of workers under its load by itself: what it is asked, what simulates it, and the first rank that it has."""

    request: ServingRequest
    evaluator: Evaluator
    measured: Measured
    share: float
    first_rank: int

    @property
    def requests_per_s(self) -> float:
        """Load of all its replicas."""
        return self.measured.share.load


def first_ranks(measured: Sequence[Measured]) -> list[int]:
    """First ranks of kinds that lie one after another on their node groups."""
    firsts = []
    for _, kinds in groupby(measured, key=lambda kind: kind.candidate.engine.layout.group.name):
        taken = 0
        for kind in kinds:
            firsts.append(kind.candidate.engine.layout.first_rank + taken)
            taken += kind.share.replicas * kind.candidate.engine.layout.devices
    return firsts


def kinds_plan(
    request: ServingRequest,
    kinds: Sequence[KindMeasured],
    *,
    certificate: Certificate,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of several kinds of workers, each of which keeps the promise by itself."""
    each = [_worker_kind(kind, certificate, stats) for kind in kinds]
    runs = [(kind.share, _run(kind)) for kind in kinds]
    ttft, tpot = kinds_percentiles(runs, P95)
    points = [point(k.measured, k.evaluator) for k in kinds for point in (decode_point, prompt_point)]
    figures = _added([kind.predicted for kind in each])
    return Plan(
        kind="serving",
        feasible=True,
        certificate=certificate,
        devices=sum(kind.devices for kind in each),
        search=stats,
        calibration=calibrations_used(request, tuple(points)),
        model=request.model.name,
        predicted=with_latencies(figures, promised_of(request), ttft=ttft, tpot=tpot),
        layout=Kinds(tuple(each)),
        notes=(*notes, *(_kind_note(kind) for kind in kinds)),
    )


def kinds_percentiles(runs: Sequence[tuple[float, SimulationResult]], probability: float) -> tuple[Percentile, Percentile]:
    """Percentiles of the times to first token and per token over the requests of all kinds, of shares and simulations."""
    first = mixture_percentile([WeightedObservations(share, run.ttft_s) for share, run in runs], probability)
    several = token_parts(runs)
    return first, mixture_percentile(several, probability) if several else Percentile(0.0, 0.0, 0.0)


def token_parts(runs: Sequence[tuple[float, SimulationResult]]) -> list[WeightedObservations]:
    """Times per token by kind; a kind counts for as many requests as have a second token."""
    return [
        WeightedObservations(share * len(run.tpot_s) / len(run.ttft_s), run.tpot_s) for share, run in runs if len(run.tpot_s)
    ]


def kinds_objective(request: ServingRequest, kinds: Sequence[Measured]) -> float:
    """The figure that the request's objective minimises."""
    if request.objective is Objective.THROUGHPUT:
        return 1.0 / math.fsum(kind.share.load for kind in kinds)
    found = [Found(kind) for kind in kinds]
    if request.objective is Objective.COST:
        return sum(each.devices * (each.engine.layout.group.node.device.price_per_hour or 0.0) for each in found)
    return float(sum(each.devices for each in found))


def _worker_kind(kind: KindMeasured, certificate: Certificate, stats: SearchStats) -> WorkerKind:
    """A kind as the plan has it: its share, and the layout and figures of its replicas by themselves, on its devices."""
    found = Found(kind.measured)
    plan = feasible_plan(kind.request, found, evaluator=kind.evaluator, certificate=certificate, stats=stats, notes=())
    assert plan.predicted is not None, "it is feasible"
    return WorkerKind(
        share=kind.share,
        requests_per_s=kind.requests_per_s,
        devices=plan.devices,
        predicted=plan.predicted,
        replicas=replicas_of(found, kind.evaluator, first_rank=kind.first_rank),
    )


def _run(kind: KindMeasured) -> SimulationResult:
    """The long simulation of a kind, every request's times."""
    measured = kind.measured
    return pooled(kind.evaluator.simulations_of(measured.candidate, measured.share, requests=REQUESTS))


def _added(figures: Sequence[Predicted]) -> Predicted:
    """Figures of all kinds together, but those of percentiles."""
    tokens_per_s = math.fsum(each.tokens_per_s for each in figures)
    power_w = math.fsum(each.power_w or 0.0 for each in figures)
    costs = [each.cost_per_million_tokens for each in figures]
    spent = [cost * each.tokens_per_s for cost, each in zip(costs, figures, strict=True) if cost is not None]
    return Predicted(
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=max(each.peak_memory_bytes for each in figures),
        cost_per_million_tokens=math.fsum(spent) / tokens_per_s if len(spent) == len(figures) else None,
        energy_per_token_j=power_w / tokens_per_s,
        power_w=power_w,
    )


def _kind_note(kind: KindMeasured) -> str:
    measured = kind.measured
    note = room_note(kind.evaluator.promised, ttft=measured.ttft, tpot=measured.tpot, load=measured.utilisation)
    layout = measured.candidate.engine.layout
    return f"{measured.share.replicas} x {layout.name} on {layout.group.name}, {kind.share:.1%} of arrivals: {note}"


# A plan that was given: predicted anew, and each kind as what it is asked.

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
