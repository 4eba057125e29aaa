"""The cases in which prefill and decode pools are planned, and those in which they are refused."""

from __future__ import annotations

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for pools beside what they are not searched for. Raises WorkloadError."""
    if ServingMode.DISAGGREGATED not in request.search.modes:
        return
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated over prefill and decode pools",
            given=arrivals.process,
            allowed="poisson, gamma, trace; or search.modes [aggregated]",
        )
    if request.objective is Objective.THROUGHPUT and not isinstance(arrivals, PoissonArrivals):
        raise WorkloadError(
            "the goodput of prefill and decode pools is searched for Poisson arrivals only",
            given=arrivals.process,
            allowed="poisson; or search.modes [aggregated]; or another objective",
        )


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space: none, its proof says it."""
    return ""
