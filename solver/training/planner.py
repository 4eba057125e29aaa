"""Plans a training request, and predicts a given training plan."""

from __future__ import annotations

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.compute_bound import compute_bound_s
from meshwright.solver.training.forms.joint_certificate import bounded_by
from meshwright.solver.training.forms.table import FORMS
from meshwright.solver.training.forms.uniform.best_part import best_part
from meshwright.solver.training.forms.uniform.device_orders import other_arrangements
from meshwright.solver.training.report.anytime import NeverWorse
from meshwright.solver.training.report.device_counts import UNITS
from meshwright.solver.training.report.price_of_risk import with_price_of_risk
from meshwright.solver.training.space.forms_asked import forms_asked
from meshwright.solver.training.space.stageable import check_stageable

EQUAL_PIPELINES = 3
"""Parts of the time that equal pipelines have, of which other forms have one each: their search begins with launchable plans,
and all other forms begin with its answer."""


def plan_training(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best plan of the request's space that fits memory and meets the SLO, or the reason why none does.

    With all devices in use and a fixed global batch, the objectives throughput and step_time both ask for the shortest
    step; devices, cost and energy choose a part of the cluster. Raises WorkloadError for a model that can't be staged.
    """
    check_stageable(request.model)
    for form in FORMS:
        form.refuse(request)
    return with_price_of_risk(request, _best_plan(request, stop=stop, progress=progress), _best_plan, stop=stop)


def _best_plan(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    if request.objective in UNITS:
        on_part = best_part(request, stop=stop, progress=progress)
        if on_part is not None:
            return on_part
    asked = [form for form in FORMS if form.form in forms_asked(request)]
    floor_s = compute_bound_s(request)
    told = NeverWorse(progress, floor_s, alone=len(asked) == 1 and not other_arrangements(request))
    best: Plan | None = None
    for left, form in zip(range(len(asked), 0, -1), asked, strict=True):
        # Later forms have equal parts of the time, and what earlier ones leave.
        weight = EQUAL_PIPELINES if best is None else 1
        part = part_of(stop, weight / (weight + left - 1)) if left > 1 else stop
        best = form.search(request, best, stop=part, progress=told)
    assert best is not None, "every request has equal pipelines searched"
    return bounded_by(best, floor_s)


def predict_training(request: TrainingRequest, plan: Plan) -> Plan:
    """The given plan with its figures predicted anew under the request's model, cluster and cost models.

    A plan that exceeds memory or the SLO comes back infeasible, with its figures and the reason. Raises PlanFileError when the
    plan does not belong to the request (other layers, more devices, a sharding that does not divide), and WorkloadError for a
    model that can't be staged.
    """
    check_stageable(request.model)
    for form in FORMS:
        if isinstance(plan.layout, form.layout):
            return form.predict(request, plan.layout)
    raise PlanFileError("this is not a plan with training stages", given=f"a {plan.kind} plan without them")
