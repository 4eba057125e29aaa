"""The cases in which switching layouts between prompts and answers is planned, and those in which it is refused."""

from __future__ import annotations

from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals

_WITHOUT = f"or search.modes without {ServingMode.SWITCHED.value}"


def refuse(request: ServingRequest) -> None:
    """Refuse requests that ask for switched layouts beside what they are not planned for."""
    if ServingMode.SWITCHED in request.search.modes:
        require_switchable(request)


def require_switchable(request: ServingRequest) -> None:
    """Refuse what layouts that switch are not planned for, whether or not a request asks for them.

    Raises WorkloadError, or ModelError for a model with recurrent states.
    """
    workload, search = request.workload, request.search
    if isinstance(workload.arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated with layouts that switch",
            given=workload.arrivals.process,
            allowed=f"poisson, gamma, trace; {_WITHOUT}",
        )
    if workload.speculation is not None:
        raise WorkloadError("drafted tokens are not planned with layouts that switch", allowed=f"no speculation; {_WITHOUT}")
    if workload.prefix_hit_ratio > 0.0 or workload.hits_by_request:
        raise WorkloadError(
            "a prefix cache does not outlive a change of layout",
            given="hits of the prefix cache in the workload",
            allowed=f"none; {_WITHOUT}",
        )
    if request.objective is Objective.ENERGY:
        raise WorkloadError(
            "layouts that switch are not searched for the least energy",
            given=request.objective.value,
            allowed=f"throughput, devices, cost; {_WITHOUT}",
        )
    if search.worker_kinds > 1:
        raise WorkloadError(
            "several kinds of workers are not planned with layouts that switch",
            given=f"search.worker_kinds {search.worker_kinds}",
            allowed=f"1; {_WITHOUT}",
        )
    if search.frontier is FrontierScope.SWEPT:
        raise WorkloadError(
            "throughput against interactivity is not drawn with layouts that switch",
            given=search.frontier.value,
            allowed=f"search.frontier {FrontierScope.VISITED.value}; {_WITHOUT}",
        )
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                raise ModelError(
                    "recurrent states are not moved between layouts that switch",
                    given=f"{block.name}/{operator.name}",
                    allowed=f"models of attention alone; {_WITHOUT}",
                )


_SPACE = (
    "; with layouts that switch: every pair of different ones on the same devices, whose number divides a node, without "
    "attention groups and kvp; steps of prompts and sequences of answers limited as above, as many prompts at once as steps "
    "can end; layouts change when no prompt waits or host memory is full, and when all of it is answered"
)


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space."""
    return _SPACE if ServingMode.SWITCHED in request.search.modes else ""
