"""Several kinds of workers, as a form of a serving plan."""

from __future__ import annotations

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.layouts import Kinds
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import PoissonArrivals, ScheduleArrivals
from meshwright.solver.serving.forms.form import Form
from meshwright.solver.serving.forms.kinds.given import predict
from meshwright.solver.serving.forms.kinds.planning import search
from meshwright.solver.serving.forms.kinds.simulating import simulate

# The cases in which several kinds of workers are planned, and those in which they are refused.


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for several kinds of workers beside what these are not searched for. Raises WorkloadError."""
    search, workload = request.search, request.workload
    if search.worker_kinds == 1:
        return
    refused = (
        (not isinstance(workload.arrivals, PoissonArrivals | ScheduleArrivals), workload.arrivals.process, "poisson, schedule"),
        (request.objective is Objective.ENERGY, "objective energy", "devices, cost, throughput"),
        (ServingMode.AGGREGATED not in search.modes, "search.modes [disaggregated]", "search.modes with aggregated"),
        (search.frontier is FrontierScope.SWEPT, "search.frontier swept", FrontierScope.VISITED.value),
    )
    for is_so, given, allowed in refused:
        if is_so:
            raise WorkloadError(
                "plans of several kinds of workers are not searched for this",
                given=given,
                allowed=f"{allowed}; or search.worker_kinds 1",
            )


_SPACE = (
    "; up to {kinds} kinds of workers at once, each of which keeps the targets by itself at its share of the arrivals, drawn "
    "at random, its replicas at rates of a grid of 1% that one of them sustains (simulated down to half); kinds of a node "
    "group lie one after another, widest stages first, and the best numbers of replicas are those of an exact knapsack"
)


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space."""
    return _SPACE.format(kinds=request.search.worker_kinds) if request.search.worker_kinds > 1 else ""


FORM = Form("kinds", Kinds, refuse=refuse, space=space, search=search, predict=predict, simulate=simulate)
