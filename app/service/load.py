"""A stored serving plan under loads around its own: percentiles over the load, and at its own load their whole distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from meshwright.app.base.plan_words import mean_output
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.costmodels.errors import InfeasibleError, WorkloadError
from meshwright.costmodels.queueing.results import CONFIDENCE
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.api import simulate
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals, ScheduleArrivals, TraceArrivals
from meshwright.solver.serving.workers.simulation import PROBABILITIES, SPREAD, Distribution, ServingSimulation

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


# The simulation of a plan as a JSON document.

SIMULATION_SCHEMA = "meshwright.simulation/1"


def simulation_document(simulated: ServingSimulation) -> dict[str, Any]:
    """The simulation as a JSON document; times in seconds."""
    document = {"schema": SIMULATION_SCHEMA, **_figures(simulated)}
    if simulated.kinds:
        document["kinds"] = [{"name": k.name, "share": k.share, **_figures(k.simulated)} for k in simulated.kinds]
    if simulated.rates:
        document["rates"] = [asdict(rate) | {"missed": list(rate.missed)} for rate in simulated.rates]
    return document


def _figures(simulated: ServingSimulation) -> dict[str, Any]:
    line = simulated.timeline
    over_time = None
    if line is not None:
        over_time = {
            "interval_s": line.end_s / len(line.busy),
            "waiting": line.waiting.tolist(),
            "decoding": line.decoding.tolist(),
            "busy": line.busy.tolist(),
        }
    return {
        "keeps_targets": not simulated.missed,
        "missed": list(simulated.missed),
        "requests": simulated.requests,
        "counted": simulated.counted,
        "requests_per_s": simulated.requests_per_s,
        "output_tokens_per_s": simulated.output_tokens_per_s,
        "confidence": CONFIDENCE,
        "ttft_s": _distribution(simulated.ttft),
        "tpot_s": None if simulated.tpot is None else _distribution(simulated.tpot),
        "end_to_end_s": _distribution(simulated.end_to_end),
        "busy": simulated.busy,
        "mean_batch": simulated.mean_batch,
        "peak_running": simulated.peak_running,
        "evictions": simulated.evictions,
        "timeline": over_time,
    }


def _distribution(found: Distribution) -> dict[str, Any]:
    names = [f"p{probability * 100:g}" for probability in PROBABILITIES]
    percentiles = {name: _finite(asdict(percentile)) for name, percentile in zip(names, found.percentiles, strict=True)}
    return {"mean": found.mean_s} | percentiles


def _finite(percentile: dict[str, float]) -> dict[str, float | None]:
    """An end that the run is too short to bound is null."""
    return {name: value if abs(value) < float("inf") else None for name, value in percentile.items()}
