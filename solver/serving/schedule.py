"""A plan under a schedule: what requests see at each of its rates, and the replicas that would do there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import PoissonArrivals, ScheduleArrivals
from meshwright.solver.serving.promise.question import measurements
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.serving.workers.simulation import RateSimulation, ServingSimulation


def simulate_schedule(
    request: ServingRequest, layout: object, simulate: Callable[[ServingRequest], ServingSimulation]
) -> ServingSimulation:
    """Simulate the busiest interval of a request's schedule, and every rate by itself; equal rates once, in order of time."""
    arrivals = request.workload.arrivals
    assert isinstance(arrivals, ScheduleArrivals), "the caller asks"
    seconds: dict[float, float] = {}
    for interval in arrivals.intervals:
        seconds[interval.requests_per_s] = seconds.get(interval.requests_per_s, 0.0) + interval.seconds
    simulated = {rate: simulate(_at(request, rate)) for rate in seconds if rate > 0.0}
    rates = tuple(_told(request, layout, rate, lasting_s, simulated.get(rate)) for rate, lasting_s in seconds.items())
    missed = tuple(dict.fromkeys(name for rate in rates for name in rate.missed))
    return replace(simulated[arrivals.requests_per_s], missed=missed, rates=rates)


def _told(
    request: ServingRequest, layout: object, rate: float, seconds: float, simulated: ServingSimulation | None
) -> RateSimulation:
    if simulated is None:
        return RateSimulation(seconds, rate, None, None, (), 0 if isinstance(layout, Replicas) else None)
    tpot_s = None if simulated.tpot is None else simulated.tpot.p95.value
    replicas = fewest_replicas(_at(request, rate), layout) if isinstance(layout, Replicas) else None
    return RateSimulation(seconds, rate, simulated.ttft.p95.value, tpot_s, simulated.missed, replicas)


def fewest_replicas(request: ServingRequest, layout: Replicas) -> int | None:
    """Return the fewest of a plan's replicas, with its batch limits, that keep the targets at a request's rate; as for plans
    more replicas are taken never to be worse. None where all are too few."""
    evaluator, candidate, share = given_candidate(request, layout.workers)

    def keeps(replicas: int) -> bool:
        return any(found.keeps for found in measurements(evaluator, [candidate], replace(share, replicas=replicas)))

    least = max(1, math.ceil(share.load / evaluator.rate_bound(candidate) * (1.0 - 1e-12)))
    low, high = least, share.replicas
    if low > high or not keeps(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle + 1, high)
    return low


def _at(request: ServingRequest, rate: float) -> ServingRequest:
    return replace(request, workload=replace(request.workload, arrivals=PoissonArrivals("poisson", rate)))
