"""The claim of a certificate in words."""

from __future__ import annotations

from typing import assert_never

from meshwright.app.text.figures import percent
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Status
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import PlanRequest


def certificate_in_words(plan: Plan, request: PlanRequest) -> str:
    """Return the claim of the certificate in a sentence; it speaks of the cost model's figures, not of the real machine."""
    certificate = plan.certificate
    space, better = request.search.space.value, _BETTER[request.objective]
    match certificate.status:
        case Status.OPTIMAL:
            return f"Optimal: no plan in the {space} space {better} under this cost model."
        case Status.FEASIBLE if certificate.space == GIVEN_PLAN:
            return "A given plan meets every constraint under this cost model. No search was made: others may be better."
        case Status.FEASIBLE:
            gap = "" if certificate.gap is None else f" by more than {percent(certificate.gap)}"
            return f"Best found: no plan in the {space} space {better}{gap} under this cost model."
        case Status.INFEASIBLE if certificate.space == GIVEN_PLAN:
            return "This plan misses a constraint under this cost model. Of other plans it says nothing: no search was made."
        case Status.INFEASIBLE:
            return f"Proven: no plan in the {space} space meets every constraint under this cost model."
        case Status.UNDECIDED:
            return f"Undecided: whether a plan in the {space} space meets every constraint is not known."
        case _:
            assert_never(certificate.status)


_BETTER = {
    Objective.THROUGHPUT: "is faster",
    Objective.STEP_TIME: "is faster",
    Objective.DEVICES: "needs fewer devices",
    Objective.COST: "costs less",
    Objective.ENERGY: "takes less energy",
}
