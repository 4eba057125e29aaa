"""Predicts given plans of equal pipelines."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.answer.arrangement import arranged, arrangement_of, in_arrangement
from meshwright.solver.answer.layouts import Pipelines, Placement, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, SearchStats, Status
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import DecisionCost, evaluate_decision
from meshwright.solver.training.forms.uniform.given_decision import decision_of
from meshwright.solver.training.report.plan_report import decided_plan, host_memory_reason, memory_reason
from meshwright.solver.training.report.slo import slo_reason
from meshwright.solver.training.search.partition import Shortfall


def predict_uniform(request: TrainingRequest, layout: Uniform) -> Plan:
    """The pipelines with their figures predicted anew; infeasible, with the reason, where they exceed memory or the SLO.

    Raises PlanFileError where they do not belong to the request.
    """
    return predict_pipelines(request, layout.pipelines, layout.placement)


def predict_pipelines(request: TrainingRequest, pipelines: Pipelines, placement: Placement) -> Plan:
    """The same of pipelines on their own, as those of one node group."""
    request = arranged(request, arrangement_of(placement))
    costs = TrainingCosts(request)
    decision = decision_of(request, costs, pipelines, optimizer=placement.optimizer)
    kinds = costs.stage_kinds(decision.candidate)
    tables = costs.stage_tables(decision.candidate, decision.sharding, kinds)
    cost = evaluate_decision(decision, tables)
    certificate = Certificate(Status.FEASIBLE, cost.step_time_s, None, None, "s", GIVEN_PLAN)
    predicted = decided_plan(request, costs, decision, cost, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    predicted = in_arrangement(predicted, arrangement_of(placement))
    worst = max(range(len(cost.stages)), key=lambda i: cost.stages[i].need_bytes - cost.stages[i].capacity_bytes)
    stage = cost.stages[worst]
    reason = crowded_reason(cost) or slo_reason(request, cost.step_time_s)
    if stage.need_bytes > stage.capacity_bytes:
        shortfall = Shortfall(worst, stage.need_bytes, stage.capacity_bytes)
        reason = memory_reason(decision.candidate, shortfall, tables[worst], risk=request.search.risk)
    return judged(predicted, reason)


def judged(predicted: Plan, reason: Reason | None) -> Plan:
    """The plan as it is predicted, infeasible where there is a reason."""
    if reason is None:
        return predicted
    certificate = replace(predicted.certificate, status=Status.INFEASIBLE)
    return replace(predicted, feasible=False, certificate=certificate, reason=reason)


def crowded_reason(cost: DecisionCost) -> Reason | None:
    """Reason of a plan that moves more away than the host and its drives hold; None of one that does not."""
    crowded = next((i for i, stage in enumerate(cost.stages) if not stage.fits_away), None)
    return None if crowded is None else host_memory_reason(crowded, cost.stages[crowded])
