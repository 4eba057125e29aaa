"""Plans a training request, and predicts a given training plan."""

from __future__ import annotations

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import ByGroup, Stagewise, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choices import Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.by_group.prediction import predict_by_group
from meshwright.solver.training.forms.by_group.search import best_shares, check_shares, shares_replicas
from meshwright.solver.training.forms.joint_certificate import UNFINISHED_REMEDIES
from meshwright.solver.training.forms.launchable_inside import launchable_plan
from meshwright.solver.training.forms.stagewise.prediction import predict_stagewise
from meshwright.solver.training.forms.stagewise.search import best_stagewise, check_stage_degrees
from meshwright.solver.training.forms.uniform.device_orders import best_arrangement, other_arrangements
from meshwright.solver.training.forms.uniform.prediction import predict_uniform
from meshwright.solver.training.report.device_counts import UNITS, search_sizes
from meshwright.solver.training.report.plan_report import feasible_plan, infeasible_plan, memory_reason
from meshwright.solver.training.report.slo import slo_limit_s, slo_reason
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
        sized = search_sizes(request, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)
        if sized is not None:
            swept = swept_plans(request, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)
            return feasible_plan(sized.request, sized.costs, sized.result, swept=swept, sized=sized)
    # Spaces that are searched one after another have equal parts of the time, and what earlier ones leave.
    shares, stagewise = shares_replicas(request), request.search.stage_degrees is StageDegrees.ANY
    part = part_of(stop, 1.0 / (1 + shares + stagewise)) if shares or stagewise else stop
    given = _plan_in_given_order(request, stop=part, progress=progress)
    placed = best_arrangement(request, given, others, slo_limit_s=slo_limit_s(request), stop=part, progress=progress)
    part = part_of(stop, 0.5) if stagewise else stop
    shared = best_shares(request, placed, slo_limit_s=slo_limit_s(request), stop=part, progress=progress)
    return best_stagewise(request, shared, others, slo_limit_s=slo_limit_s(request), stop=stop)


def _plan_in_given_order(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The fastest plan on all devices, ranks in the order of the cluster's node groups."""
    costs = TrainingCosts(request)

    def describe(now: SearchResult) -> Plan | None:
        keeps = now.best is not None and slo_reason(request, now.best.cost.step_time_s) is None
        return feasible_plan(request, costs, now) if keeps else None

    # Where the free space has shown no plan by then, the launchable one inside it has the rest of the time.
    # Replicas by node group and stages that differ are no launcher's: their plans start from one of the free space.
    has_inside = request.search.space is Space.FREE and not shares_replicas(request)
    has_inside = has_inside and request.search.stage_degrees is not StageDegrees.ANY
    patience = part_of(stop, FREE_ALONE) if has_inside else None
    result = search(request, costs, stop=stop, progress=progress, describe=describe, patience=patience)
    if patience is not None and patience() and result.best is None and result.bound is not None and not stop():
        inside = launchable_plan(request, result, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)
        if inside is not None:
            return inside
        # No plan inside: the free space has what time is left; what was worked out for it is known.
        result = search(request, costs, stop=stop, progress=progress, describe=describe)
    proven = result.complete or (result.bound is not None and result.bound > slo_limit_s(request))
    if result.best is not None:
        reason = slo_reason(request, result.best.cost.step_time_s)
        if reason is None:
            swept = swept_plans(request, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)
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

    A plan that exceeds memory or the SLO comes back infeasible, with its figures and the reason. Raises PlanFileError when the
    plan does not belong to the request (other layers, more devices, a sharding that does not divide), and WorkloadError for a
    model that can't be staged.
    """
    check_stageable(request.model)
    match plan.layout:
        case Uniform() as layout:
            return predict_uniform(request, layout)
        case ByGroup() as layout:
            return predict_by_group(request, layout)
        case Stagewise() as layout:
            return predict_stagewise(request, layout)
        case _:
            raise PlanFileError("this is not a plan with training stages", given=f"a {plan.kind} plan without them")


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
