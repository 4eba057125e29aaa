"""A stored serving plan under loads around its own: percentiles over the load, and at its own load their whole distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.app.plans.documents import read_plan_document
from meshwright.app.plans.simulations import simulation_document
from meshwright.app.text.load import mean_output
from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.api import simulate
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals, ScheduleArrivals, TraceArrivals
from meshwright.solver.serving.workers.simulation import SPREAD, Distribution, ServingSimulation

SHARES = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5)
"""Loads that are simulated, as shares of the plan's own."""


def load_course(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what requests see of the serving plan in a plan document under loads from a tenth to one and a half of its own.

    The plan's own load is that of its request; of a plan for throughput the rate that its figures are at. Times in seconds.
    Raises WorkloadError for a training plan, InfeasibleError where there is no plan.
    """
    answered = read_plan_document(document["plan"])
    request = answered.request
    if not isinstance(request, ServingRequest):
        raise WorkloadError("only serving has a load", given="a training plan", allowed="a serving plan")
    if not answered.plan.feasible:
        raise InfeasibleError("there is no plan: nothing can be put under load")
    own = own_load(answered, request)
    told = [(share * own, simulate(_under(request, share * own), answered.plan)) for share in _shares(request, own)]
    at_own = simulate(_under(request, own), answered.plan)
    return {
        "unit": _unit(request),
        "own": own,
        "targets_s": {
            "ttft": None if request.slo.p95_ttft_ms is None else request.slo.p95_ttft_ms / 1e3,
            "tpot": None if request.slo.p95_tpot_ms is None else request.slo.p95_tpot_ms / 1e3,
        },
        "course": [_point(load, simulated) for load, simulated in told],
        "simulation": simulation_document(at_own),
        "percentiles": list(SPREAD),
        "spread_s": {
            "ttft": _spread(at_own.ttft),
            "tpot": _spread(at_own.tpot),
            "end_to_end": _spread(at_own.end_to_end),
        },
    }


def own_load(answered: AnsweredRequest, request: ServingRequest) -> float:
    """Return the load that a plan's figures are at: requests a second, clients, or times the rate of a trace."""
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        return float(arrivals.concurrency)
    if isinstance(arrivals, TraceArrivals):
        return 1.0
    if request.objective is Objective.THROUGHPUT and answered.plan.predicted is not None:
        return answered.plan.predicted.tokens_per_s / mean_output(request.workload)
    return float(arrivals.requests_per_s)


def _shares(request: ServingRequest, own: float) -> tuple[float, ...]:
    """Shares that give loads of their own: clients are whole numbers."""
    if not isinstance(request.workload.arrivals, ClosedArrivals):
        return SHARES
    counts = dict.fromkeys(max(1, round(share * own)) for share in SHARES)
    return tuple(count / own for count in counts)


def _under(request: ServingRequest, load: float) -> ServingRequest:
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        arrivals = replace(arrivals, concurrency=max(1, round(load)))
    elif isinstance(arrivals, TraceArrivals):
        arrivals = replace(arrivals, times_s=tuple(time_s / load for time_s in arrivals.times_s))
    elif isinstance(arrivals, ScheduleArrivals):
        arrivals = PoissonArrivals("poisson", load)
    else:
        arrivals = replace(arrivals, requests_per_s=load)
    return replace(request, workload=replace(request.workload, arrivals=arrivals))


def _unit(request: ServingRequest) -> str:
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        return "clients"
    return "times the trace" if isinstance(arrivals, TraceArrivals) else "requests/s"


def _point(load: float, simulated: ServingSimulation) -> dict[str, Any]:
    return {
        "load": load,
        "ttft_p95_s": simulated.ttft.p95.value,
        "tpot_p95_s": None if simulated.tpot is None else simulated.tpot.p95.value,
        "output_tokens_per_s": simulated.output_tokens_per_s,
        "busy": simulated.busy,
        "missed": list(simulated.missed),
    }


def _spread(found: Distribution | None) -> list[float] | None:
    return None if found is None else list(found.spread_s)
