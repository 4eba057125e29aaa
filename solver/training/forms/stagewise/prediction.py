"""Predicts given plans whose stages differ: each stage's table is that of a pipeline of its like."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.answer.arrangement import arranged, arrangement_of, in_arrangement
from meshwright.solver.answer.layouts import Stagewise
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, SearchStats, Status
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import DecisionCost, StageSpan
from meshwright.solver.training.forms.stagewise.given import given_way, pipelines_of_its_like, require_room
from meshwright.solver.training.forms.stagewise.record import StageWay, stagewise_cost, stagewise_plan
from meshwright.solver.training.forms.uniform.given_decision import decision_of
from meshwright.solver.training.forms.uniform.prediction import crowded_reason, judged
from meshwright.solver.training.report.slo import slo_reason


def predict_stagewise(request: TrainingRequest, layout: Stagewise) -> Plan:
    """The stages with their figures predicted anew; infeasible, with the reason, where they exceed memory or the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    pipelines, placement = layout.pipelines, layout.placement
    request = arranged(request, arrangement_of(placement))
    ways: list[StageWay] = []
    spans: tuple[StageSpan, ...] = ()
    for index in range(len(pipelines.stages)):
        sized, alike = pipelines_of_its_like(request, pipelines, index)
        costs = TrainingCosts(sized)
        decision = decision_of(sized, costs, alike, optimizer=placement.optimizer)
        ways.append(given_way(request, pipelines, index, costs, decision))
        spans = decision.spans
    require_room(request, ways)
    certificate = Certificate(Status.FEASIBLE, None, None, None, "s", GIVEN_PLAN)
    predicted = stagewise_plan(request, ways, spans, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    assert predicted.predicted is not None and predicted.predicted.step_time_s is not None
    step_s = predicted.predicted.step_time_s
    predicted = replace(predicted, certificate=replace(certificate, objective=step_s))
    predicted = in_arrangement(predicted, arrangement_of(placement))
    cost = stagewise_cost(ways, spans)
    reason = _memory_reason(cost, request.search.risk) or crowded_reason(cost) or slo_reason(request, step_s)
    return judged(predicted, reason)


def _memory_reason(cost: DecisionCost, risk: float) -> Reason | None:
    """Reason of the first stage that needs more memory than a device has; None where all fit."""
    for index, stage in enumerate(cost.stages):
        if stage.need_bytes > stage.capacity_bytes:
            need, have = stage.law.margin(risk) * stage.device_bytes, stage.usable_bytes
            message = f"device memory: stage {index} needs {need:.4g} bytes at a risk of {risk:g}, a device has {have:.4g}"
            return Reason("device_memory", need, have, "bytes", message, index)
    return None
