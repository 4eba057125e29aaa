"""Predicts given plans whose node groups have replicas of their own."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.answer.layouts import ByGroup
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Status
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.by_group.parts import check_groups, joined_plan, parts_of
from meshwright.solver.training.forms.uniform.prediction import judged, predict_pipelines
from meshwright.solver.training.report.slo import slo_reason


def predict_by_group(request: TrainingRequest, layout: ByGroup) -> Plan:
    """Each group's replicas predicted by themselves, then the whole; infeasible, with the reason, where they exceed memory or
    the whole the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    check_groups(request, layout)
    plans = [predict_pipelines(part.request, part.pipelines, layout.placement) for part in parts_of(request, layout)]
    joined = joined_plan(request, plans)
    assert joined.predicted is not None and joined.predicted.step_time_s is not None
    step_s = joined.predicted.step_time_s
    certificate = Certificate(Status.FEASIBLE, step_s, None, None, "s", plans[0].certificate.space)
    reason = next((each.reason for each in plans if each.reason is not None), None) or slo_reason(request, step_s)
    return judged(replace(joined, feasible=True, certificate=certificate, reason=None), reason)
