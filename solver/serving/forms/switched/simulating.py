"""Workers that switch layouts of a plan that was given, simulated."""

from __future__ import annotations

from meshwright.costmodels.errors import InfeasibleError
from meshwright.costmodels.queueing.simulation.replica import pooled
from meshwright.costmodels.queueing.simulation.timeline import timeline
from meshwright.solver.answer.layouts import Switched
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.switched.given import GivenSwitched
from meshwright.solver.serving.workers.simulation import INTERVALS, ServingSimulation, described


def simulate(request: ServingRequest, layout: Switched) -> ServingSimulation:
    """Workers that switch layouts; busy is what stages of either layout do, not the changes between."""
    given = GivenSwitched(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    results = [run.whole for run in given.simulated()]
    alike = 1 if len(results) > 1 else given.share.replicas
    return described(given.evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike=alike)
