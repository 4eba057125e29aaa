"""Plans a training request, and predicts a given training plan."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.model.operators import SEQ
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats, Status
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choices import Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, evaluate_decision
from meshwright.solver.training.costs.stage_table import Sharding
from meshwright.solver.training.forms.by_group.parts import check_pools, joined_plan, parts_of
from meshwright.solver.training.forms.by_group.search import best_shares, check_shares, shares_replicas
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
from meshwright.solver.training.forms.uniform.given import (
    given_branches,
    given_pipelining,
    given_shard_ranks,
    given_spans,
    given_tp_overlap,
)
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
from meshwright.solver.training.space.candidates import Candidate, Mesh, experts_fit
from meshwright.solver.training.space.no_candidate import no_candidate
from meshwright.solver.training.space.sequence_split import heads_fit
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
        remedies=("raise search.time_limit_s or search.max_candidates", "restrict the space in 'search'"),
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


def decision_of(request: TrainingRequest, costs: TrainingCosts, plan: Plan) -> Decision:
    """The decision that a plan record stands for."""
    if plan.kind != "training" or plan.axes is None or plan.microbatch is None or not plan.stages:
        raise PlanFileError("this is not a plan with training stages", given=f"{plan.kind} plan of {len(plan.stages)} stages")
    workload, axes = request.workload, plan.axes
    mesh = Mesh(dp=axes.dp, tp=axes.tp, pp=axes.pp, cp=axes.cp, ep=axes.ep, ulysses=axes.ulysses, etp=axes.etp)
    if mesh.stage_devices * mesh.pp > request.cluster.n_devices:
        raise PlanFileError(
            "the plan needs more devices than the cluster has",
            given=mesh.stage_devices * mesh.pp,
            allowed=f"at most {request.cluster.n_devices}",
        )
    if mesh.dp * plan.microbatch.size * plan.microbatch.count != workload.global_batch:
        raise PlanFileError(
            "dp x micro-batch size x count must be the global batch",
            given=(mesh.dp, plan.microbatch.size, plan.microbatch.count),
            allowed=str(workload.global_batch),
        )
    if not experts_fit(request.model, mesh):
        raise PlanFileError(
            "experts can't be spread evenly over the ep axis",
            given=f"ep {mesh.ep} of {mesh.expert_places} places of {mesh.expert_tp} ranks",
            allowed="a divisor of dp x cp x tp / etp and of the number of experts; etp is tp or 1",
        )
    if not heads_fit(request.model, tp=mesh.tp, cp=mesh.cp, ulysses=mesh.ulysses):
        raise PlanFileError(
            "heads can't be exchanged evenly over the ulysses axis",
            given=f"ulysses {mesh.ulysses} of cp {mesh.cp} beside tp {mesh.tp}",
            allowed="a divisor of cp that, times tp, divides the heads and key/value heads of every attention",
        )
    pipelining = given_pipelining(plan, request)
    modes = tuple(dict.fromkeys(stage.recompute for stage in plan.stages))
    if len(modes) > 1 and not pipelining.modes_by_stage:
        raise PlanFileError(
            "stages differ in recompute mode", given=", ".join(modes), allowed=f"one for all under {pipelining.schedule.value}"
        )
    boundary = sharded(SEQ) if plan.sequence_parallel else REPLICATED
    zero_stage = plan.stages[0].zero_stage
    candidate = Candidate(
        *(mesh, plan.microbatch.size, plan.microbatch.count, zero_stage, boundary, modes, pipelining),
        shard_ranks=given_shard_ranks(plan, request.cluster),
        offload=plan.stages[0].offload,
        optimizer=plan.optimizer,
        gradients=plan.stages[0].gradients,
        tp_overlap=given_tp_overlap(plan),
    )
    is_chain = costs.model.is_chain
    spans = given_spans(plan, costs.model.layers, candidate) if is_chain else given_branches(plan, costs.model, candidate)
    return Decision(candidate, _sharding_of(costs, candidate, plan), spans)


def _sharding_of(costs: TrainingCosts, candidate: Candidate, plan: Plan) -> Sharding:
    named = {(s.block, s.operator): s.strategy for s in plan.shardings}
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    sharding = []
    for block_name in costs.block_names:
        built = costs.problem(block_name, setting)
        if built is None:
            raise PlanFileError(f"block {block_name!r} can't be sharded over tp {candidate.mesh.tp}: a dim does not divide")
        choice = []
        for operator, options in zip(costs.model.block(block_name).operators, built.strategies, strict=True):
            names = [option.name for option in options]
            wanted = named.get((block_name, operator.name))
            if wanted not in names:
                raise PlanFileError(
                    f"operator {block_name}/{operator.name} has no such sharding", given=wanted, allowed=", ".join(names)
                )
            choice.append(names.index(wanted))
        sharding.append(tuple(choice))
    return tuple(sharding)
