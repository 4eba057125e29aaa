"""Two pools of a plan that was given, simulated together."""

from __future__ import annotations

from meshwright.costmodels.errors import InfeasibleError
from meshwright.costmodels.queueing.simulation.timeline import LoadTimeline, timeline
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.pools.given import GivenPools
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described


def simulate(request: ServingRequest, layout: Pools) -> ServingSimulation:
    """Both pools together. The timeline is of a mean decode worker: requests that wait are all those without a first token."""
    given = GivenPools(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    result = given.simulated()
    line, workers = timeline([result.whole], intervals=INTERVALS), len(result.decode)
    busy = timeline(result.decode, intervals=INTERVALS).busy
    per_worker = LoadTimeline(line.end_s, line.waiting / workers, line.decoding / workers, busy)
    return described(given.evaluator, result.whole, per_worker, alike=1)
