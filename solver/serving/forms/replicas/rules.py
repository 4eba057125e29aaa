"""The cases in which replicas are planned, and those in which they are refused."""

from __future__ import annotations

from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.request import ServingRequest


def refuse(request: ServingRequest) -> None:
    """Refuse what replicas that draft tokens are not planned for.

    Raises WorkloadError, or ModelError for a model with recurrent states.
    """
    search = request.search
    if request.workload.speculation is None:
        return
    if search.frontier is FrontierScope.SWEPT:
        raise WorkloadError(
            "throughput against interactivity is not drawn with speculative decoding",
            given=search.frontier.value,
            allowed=f"search.frontier {FrontierScope.VISITED.value}; or no workload.speculation",
        )
    if search.pp and 1 not in search.pp:
        raise WorkloadError(
            "speculative decoding is planned without pipeline stages, as vLLM runs it",
            given=f"search.pp {list(search.pp)}",
            allowed="search.pp with 1; or no workload.speculation",
        )
    if search.cp and 1 not in search.cp:
        raise WorkloadError(
            "speculative decoding is planned without ranks that share prompts",
            given=f"search.cp {list(search.cp)}",
            allowed="search.cp with 1; or no workload.speculation",
        )
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                raise ModelError(
                    "speculative decoding is not planned for recurrent states, which rejected tokens would have to leave again",
                    given=f"{block.name}/{operator.name}",
                    allowed="models of attention alone; or no workload.speculation",
                )


def space(request: ServingRequest) -> str:
    """Return the words of a certificate on what the form adds to a request's space: none, its proof says it."""
    return ""
