"""A plan that was given: predicted anew, form by form."""

from __future__ import annotations

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, ServingLayout, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.kinds.given import predict_kinds
from meshwright.solver.serving.forms.pools.given import predict_pools
from meshwright.solver.serving.forms.replicas.prediction import predict_replicas
from meshwright.solver.serving.forms.switched.given import predict_switched


def predict_serving(request: ServingRequest, plan: Plan) -> Plan:
    """The plan with every figure predicted anew; infeasible, with the reason, where it lacks memory or misses a target.

    Raises PlanFileError when the plan does not belong to the request.
    """
    match given_layout(plan):
        case Replicas() as layout:
            return predict_replicas(request, plan, layout)
        case Pools() as layout:
            return predict_pools(request, plan, layout)
        case Switched() as layout:
            return predict_switched(request, plan, layout)
        case Kinds() as layout:
            return predict_kinds(request, layout)


def given_layout(plan: Plan) -> ServingLayout:
    """The layout of a feasible serving plan; raises PlanFileError for any other."""
    match plan.layout:
        case Replicas() | Pools() | Switched() | Kinds() as layout:
            return layout
        case _:
            raise PlanFileError("only a feasible serving plan can be predicted for a serving request", given=plan.kind)
