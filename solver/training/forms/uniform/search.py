"""The search for the best plan of equal pipelines: ranks in the cluster's own order first, then in others that are allowed."""

from __future__ import annotations

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.joint_certificate import UNFINISHED_REMEDIES
from meshwright.solver.training.forms.uniform.device_orders import best_arrangement, other_arrangements
from meshwright.solver.training.forms.uniform.launchable_inside import launchable_plan
from meshwright.solver.training.report.plan_report import feasible_plan, infeasible_plan, memory_reason
from meshwright.solver.training.report.slo import slo_limit_s, slo_reason
from meshwright.solver.training.report.sweep import swept_plans
from meshwright.solver.training.search.best_first import SearchResult, closest_to_fitting, search
from meshwright.solver.training.search.partition import Shortfall
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.forms_asked import forms_asked
from meshwright.solver.training.space.no_candidate import no_candidate
from meshwright.solver.training.space.sliced_sequences import check_token_slices

FREE_ALONE = 1 / 3
"""Share of the time after which a search of the free space that has no plan gives way. The launchable search of DeepSeek-V3 on
2,048 devices has its first plan after 6 s and ends after 7 s: of a limit of 20 s it needs a third."""


def refuse_uniform(request: TrainingRequest) -> None:
    """Raise WorkloadError for orders, idle devices and token slices that can't be searched."""
    other_arrangements(request)
    check_token_slices(request)


def best_uniform(request: TrainingRequest, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
    """Return the best plan of equal pipelines on all devices, or the reason why there is none."""
    assert given is None, "equal pipelines are searched first"
    own = _plan_in_given_order(request, stop=stop, progress=progress)
    others = other_arrangements(request)
    return best_arrangement(request, own, others, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)


def _plan_in_given_order(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The fastest plan on all devices, ranks in the order of the cluster's node groups."""
    costs = TrainingCosts(request)

    def describe(now: SearchResult) -> Plan | None:
        keeps = now.best is not None and slo_reason(request, now.best.cost.step_time_s) is None
        return feasible_plan(request, costs, now) if keeps else None

    # Where the free space has shown no plan by then, the launchable one inside it has the rest of the time.
    # Replicas by node group and stages that differ are no launcher's: their plans start from one of the free space.
    has_inside = request.search.space is Space.FREE and forms_asked(request) == {Form.UNIFORM}
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
