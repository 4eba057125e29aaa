"""A plan that was given: predicted anew by its form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.form import Form, Misfit
from meshwright.solver.serving.forms.table import FORMS
from meshwright.solver.serving.no_plan import infeasible_serving
from meshwright.solver.serving.rules import require_servable


def predict_serving(request: ServingRequest, plan: Plan) -> Plan:
    """The plan with every figure predicted anew; infeasible, with the reason, where it lacks memory or misses a target.

    Raises PlanFileError when the plan does not belong to the request.
    """
    form, layout = form_and_layout(request, plan)
    found = form.predict(request, plan, layout)
    if isinstance(found, Misfit):
        missed = infeasible_serving(request, found.reason, found.stats)
        return replace(missed, certificate=replace(missed.certificate, space=GIVEN_PLAN))
    return found


def form_and_layout(request: ServingRequest, plan: Plan) -> tuple[Form[Any], ServingLayout]:
    """The form of a feasible serving plan, and its layout.

    Raises PlanFileError for any other plan, and for a request that nothing serves what its rules say.
    """
    for form in FORMS:
        if isinstance(plan.layout, form.layout):
            # Kinds of workers can be predicted and simulated under arrivals that they are not searched for.
            require_servable(replace(request, search=replace(request.search, worker_kinds=1)))
            return form, plan.layout
    raise PlanFileError("only a feasible serving plan can be predicted for a serving request", given=plan.kind)
