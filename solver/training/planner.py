"""Plans a training request, and predicts a given training plan."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats, Status
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choices import Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import DecisionCost, StageSpan, evaluate_decision
from meshwright.solver.training.forms.by_group.parts import check_pools, joined_plan, parts_of
from meshwright.solver.training.forms.by_group.search import best_shares, check_shares, shares_replicas
from meshwright.solver.training.forms.joint_certificate import UNFINISHED_REMEDIES
from meshwright.solver.training.forms.launchable_inside import launchable_plan
from meshwright.solver.training.forms.stagewise.record import (
    StageWay,
    given_way,
    is_stagewise,
    require_room,
    stagewise_cost,
    stagewise_plan,
    view_of_stage,
)
from meshwright.solver.training.forms.stagewise.search import best_stagewise, check_stage_degrees
from meshwright.solver.training.forms.uniform.device_orders import (
    arranged,
    arrangement_of,
    best_arrangement,
    other_arrangements,
)
from meshwright.solver.training.forms.uniform.given_decision import decision_of
from meshwright.solver.training.report.device_counts import UNITS, search_sizes
from meshwright.solver.training.report.plan_report import (
    decided_plan,
    feasible_plan,
    host_memory_reason,
    infeasible_plan,
    memory_reason,
)
from meshwright.solver.training.report.sweep import swept_plans
from meshwright.solver.training.search.best_first import SearchResult, closest_to_fitting, search
from meshwright.solver.training.search.partition import Shortfall
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.no_candidate import no_candidate
from meshwright.solver.training.space.sliced_sequences import check_token_slices
from meshwright.solver.training.space.stageable import check_stageable

FREE_ALONE = 1 / 3
"""Share of the time after which a search of the free space that has no plan gives way. The launchable search of DeepSeek-V3 on
2,048 devices has its first plan after 6 s and ends after 7 s: of a limit of 20 s it needs a third."""


def plan_training(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best plan of the request's space that fits memory and meets the SLO, or the reason why none does.

    With all devices in use and a fixed global batch, the objectives throughput and step_time both ask for the shortest
    step; devices, cost and energy choose a part of the cluster. Raises WorkloadError for a model that can't be staged.
    """
    check_stageable(request.model)
    others = other_arrangements(request)
    check_shares(request)
    check_stage_degrees(request)
    check_token_slices(request)
    if request.objective in UNITS:
        sized = search_sizes(request, slo_limit_s=_slo_limit_s(request), stop=stop, progress=progress)
        if sized is not None:
            swept = swept_plans(request, slo_limit_s=_slo_limit_s(request), stop=stop, progress=progress)
            return feasible_plan(sized.request, sized.costs, sized.result, swept=swept, sized=sized)
    # Spaces that are searched one after another have equal parts of the time, and what earlier ones leave.
    shares, stagewise = shares_replicas(request), request.search.stage_degrees is StageDegrees.ANY
    part = part_of(stop, 1.0 / (1 + shares + stagewise)) if shares or stagewise else stop
    given = _plan_in_given_order(request, stop=part, progress=progress)
    placed = best_arrangement(request, given, others, slo_limit_s=_slo_limit_s(request), stop=part, progress=progress)
    part = part_of(stop, 0.5) if stagewise else stop
    shared = best_shares(request, placed, slo_limit_s=_slo_limit_s(request), stop=part, progress=progress)
    return best_stagewise(request, shared, others, slo_limit_s=_slo_limit_s(request), stop=stop)


def _plan_in_given_order(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The fastest plan on all devices, ranks in the order of the cluster's node groups."""
    costs = TrainingCosts(request)

    def describe(now: SearchResult) -> Plan | None:
        keeps = now.best is not None and _slo_reason(request, now.best.cost.step_time_s) is None
        return feasible_plan(request, costs, now) if keeps else None

    # Where the free space has shown no plan by then, the launchable one inside it has the rest of the time.
    # Replicas by node group and stages that differ are no launcher's: their plans start from one of the free space.
    has_inside = request.search.space is Space.FREE and not shares_replicas(request)
    has_inside = has_inside and request.search.stage_degrees is not StageDegrees.ANY
    patience = part_of(stop, FREE_ALONE) if has_inside else None
    result = search(request, costs, stop=stop, progress=progress, describe=describe, patience=patience)
    if patience is not None and patience() and result.best is None and result.bound is not None and not stop():
        inside = launchable_plan(request, result, slo_limit_s=_slo_limit_s(request), stop=stop, progress=progress)
        if inside is not None:
            return inside
        # No plan inside: the free space has what time is left; what was worked out for it is known.
        result = search(request, costs, stop=stop, progress=progress, describe=describe)
    proven = result.complete or (result.bound is not None and result.bound > _slo_limit_s(request))
    if result.best is not None:
        reason = _slo_reason(request, result.best.cost.step_time_s)
        if reason is None:
            swept = swept_plans(request, slo_limit_s=_slo_limit_s(request), stop=stop, progress=progress)
            return feasible_plan(request, costs, result, swept=swept)
        if not proven:
            reason = _unfinished_reason(result)
    elif not proven:
        reason = _unfinished_reason(result)
    elif result.n_members == 0:
        reason = no_candidate(request)
    else:
        known = min(result.refused.values(), key=lambda refused: refused[1].lacking_bytes, default=None)
        closest = closest_to_fitting(request, costs, stop=stop) or known
        reason = no_candidate(request) if closest is None else _memory_reason(costs, *closest)
    return infeasible_plan(request, reason, n_candidates=result.n_candidates, n_solved=result.n_solved)


def predict_training(request: TrainingRequest, plan: Plan) -> Plan:
    """The given plan with its figures predicted anew under the request's model, cluster and cost models.

    A plan that does not fit memory comes back infeasible, with its figures and the reason. Raises PlanFileError when the
    plan does not belong to the request (other layers, more devices, a sharding that does not divide), and WorkloadError for a
    model that can't be staged.
    """
    check_stageable(request.model)
    if plan.shares is not None:
        return _predict_pools(request, plan)
    if is_stagewise(plan):
        return _predict_stagewise(request, plan)
    request = arranged(request, arrangement_of(plan))
    costs = TrainingCosts(request)
    decision = decision_of(request, costs, plan)
    kinds = costs.stage_kinds(decision.candidate)
    tables = costs.stage_tables(decision.candidate, decision.sharding, kinds)
    cost = evaluate_decision(decision, tables)
    certificate = Certificate(Status.FEASIBLE, cost.step_time_s, None, None, "s", "a given plan: no search was made")
    predicted = decided_plan(request, costs, decision, cost, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    predicted = replace(predicted, group_order=plan.group_order, idle_devices=plan.idle_devices)
    worst = max(range(len(cost.stages)), key=lambda i: cost.stages[i].need_bytes - cost.stages[i].capacity_bytes)
    stage = cost.stages[worst]
    reason = _crowded_reason(cost) or _slo_reason(request, cost.step_time_s)
    if stage.need_bytes > stage.capacity_bytes:
        overhead = tables[worst].parts.overhead_bytes
        reason = memory_reason(decision.candidate, Shortfall(worst, stage.need_bytes, stage.capacity_bytes), overhead)
    if reason is None:
        return predicted
    infeasible = Certificate(Status.INFEASIBLE, cost.step_time_s, None, None, "s", certificate.space)
    return replace(predicted, feasible=False, certificate=infeasible, reason=reason)


def _predict_pools(request: TrainingRequest, plan: Plan) -> Plan:
    """A given plan with replicas by node group: each group's predicted by itself, then the whole."""
    check_pools(request, plan)
    plans = [predict_training(part.request, part.plan) for part in parts_of(request, plan)]
    joined = joined_plan(request, plans)
    assert joined.predicted is not None and joined.predicted.step_time_s is not None
    step_s = joined.predicted.step_time_s
    reason = next((each.reason for each in plans if each.reason is not None), None) or _slo_reason(request, step_s)
    status = Status.FEASIBLE if reason is None else Status.INFEASIBLE
    certificate = Certificate(status, step_s, None, None, "s", plans[0].certificate.space)
    return replace(joined, feasible=reason is None, certificate=certificate, reason=reason)


def _predict_stagewise(request: TrainingRequest, plan: Plan) -> Plan:
    """A given plan whose stages differ: each stage's table is that of a pipeline of its like."""
    request = arranged(request, arrangement_of(plan))
    ways: list[StageWay] = []
    spans: tuple[StageSpan, ...] = ()
    for index in range(len(plan.stages)):
        sized, view = view_of_stage(request, plan, index)
        costs = TrainingCosts(sized)
        decision = decision_of(sized, costs, view)
        ways.append(given_way(request, plan, index, costs, decision))
        spans = decision.spans
    require_room(request, ways)
    certificate = Certificate(Status.FEASIBLE, None, None, None, "s", "a given plan: no search was made")
    predicted = stagewise_plan(request, ways, spans, certificate=certificate, stats=SearchStats(1, 1, 0.0))
    predicted = replace(predicted, group_order=plan.group_order, idle_devices=plan.idle_devices)
    assert predicted.predicted is not None and predicted.predicted.step_time_s is not None
    step_s, reason = predicted.predicted.step_time_s, None
    for index, stage in enumerate(predicted.stages):
        need, have = stage.memory.total_bytes, stage.memory.capacity_bytes
        if need > have and reason is None:
            message = f"device memory: stage {index} needs {need:.4g} bytes, a device has {have:.4g}"
            reason = Reason("device_memory", need, have, "bytes", message, index)
    reason = reason or _crowded_reason(stagewise_cost(ways, spans)) or _slo_reason(request, step_s)
    status = Status.FEASIBLE if reason is None else Status.INFEASIBLE
    return replace(
        predicted, feasible=reason is None, certificate=replace(certificate, status=status, objective=step_s), reason=reason
    )


def _crowded_reason(cost: DecisionCost) -> Reason | None:
    """Reason of a plan that moves more away than the host and its drives hold; None of one that does not."""
    crowded = next((i for i, stage in enumerate(cost.stages) if not stage.fits_away), None)
    return None if crowded is None else host_memory_reason(crowded, cost.stages[crowded])


def _memory_reason(costs: TrainingCosts, candidate: Candidate, shortfall: Shortfall) -> Reason:
    kinds = costs.stage_kinds(candidate)
    sharding = next(costs.shardings(candidate, kinds))
    overhead = costs.table(candidate, kinds[shortfall.stage], sharding).parts.overhead_bytes
    return memory_reason(candidate, shortfall, overhead)


def _unfinished_reason(result: SearchResult) -> Reason:
    return unfinished_search(
        result.n_members,
        looked_for="a plan that fits and meets the SLO",
        remedies=UNFINISHED_REMEDIES,
    )


def _slo_limit_s(request: TrainingRequest) -> float:
    """Longest step that the SLO allows."""
    workload, slo = request.workload, request.slo
    limits = [math.inf if slo.max_step_time_s is None else slo.max_step_time_s]
    if slo.min_tokens_per_s is not None:
        limits.append(workload.global_batch * workload.seq_len / slo.min_tokens_per_s)
    return min(limits)


def _slo_reason(request: TrainingRequest, step_time_s: float) -> Reason | None:
    """Reason why the best step time breaks the SLO; None when it keeps it."""
    workload, slo = request.workload, request.slo
    limits = []
    if slo.max_step_time_s is not None:
        limits.append(("slo.max_step_time_s", slo.max_step_time_s))
    if slo.min_tokens_per_s is not None:
        limits.append(("slo.min_tokens_per_s", workload.global_batch * workload.seq_len / slo.min_tokens_per_s))
    broken = [(name, limit_s) for name, limit_s in limits if step_time_s > limit_s]
    if not broken:
        return None
    name, limit_s = min(broken, key=lambda item: item[1])
    tokens = workload.global_batch * workload.seq_len
    return Reason(
        constraint=name,
        need=step_time_s,
        have=limit_s,
        unit="s",
        message=(
            f"{name}: the fastest step that fits takes {step_time_s:.4g} s ({tokens / step_time_s:,.0f} tokens/s), the "
            f"SLO allows {limit_s:.4g} s ({tokens / limit_s:,.0f} tokens/s): {step_time_s / limit_s:.3f} times too slow"
        ),
        remedies=("add devices, or faster ones", "relax the SLO", "lift restrictions in 'search'"),
    )
