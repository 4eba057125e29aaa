"""From several kinds of workers to the Plan that is handed out: each kind as a plan of its own, and what all requests see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from meshwright.costmodels.queueing.load import WeightedObservations, mixture_percentile
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.replica import SimulationResult, pooled
from meshwright.solver.answer.layouts import Kinds, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Predicted, SearchStats
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.calibrations import calibrations_used
from meshwright.solver.serving.promise.candidates import P95, Measured, room_note
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import promised_of, with_latencies
from meshwright.solver.serving.promise.question import Found
from meshwright.solver.serving.workers.answer import decode_point, feasible_plan, prompt_point, replicas_of


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
