"""The cases in which several kinds of workers are planned, and those in which they are refused."""

from __future__ import annotations

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import PoissonArrivals


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for several kinds of workers beside what these are not searched for. Raises WorkloadError."""
    search, workload = request.search, request.workload
    if search.worker_kinds == 1:
        return
    refused = (
        (not isinstance(workload.arrivals, PoissonArrivals), workload.arrivals.process, "poisson"),
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
