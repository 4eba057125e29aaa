"""simulate_serving: what requests see of a given plan, percentile by percentile and over time."""

from __future__ import annotations

from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ScheduleArrivals
from meshwright.solver.serving.given import form_and_layout
from meshwright.solver.serving.schedule import simulate_schedule
from meshwright.solver.serving.workers.simulation import ServingSimulation


def simulate_serving(request: ServingRequest, plan: Plan) -> ServingSimulation:
    """Simulate a plan under the request's load, to the end whatever it misses; under a schedule at each of its rates.

    Raises PlanFileError when the plan does not belong to the request, InfeasibleError
    when it does not fit in memory.
    """
    form, layout = form_and_layout(request, plan)
    if isinstance(request.workload.arrivals, ScheduleArrivals):
        return simulate_schedule(request, layout, lambda at_a_rate: form.simulate(at_a_rate, layout))
    return form.simulate(request, layout)
