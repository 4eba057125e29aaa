"""The search for the best plan of equal pipelines: ranks in the cluster's own order first, then in others that are allowed."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, part_of
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.compute_bound import compute_bound_s
from meshwright.solver.training.forms.joint_certificate import UNFINISHED_REMEDIES
from meshwright.solver.training.forms.uniform.device_orders import best_arrangement, other_arrangements
from meshwright.solver.training.forms.uniform.launchable_inside import (
    SHARE,
    Inside,
    begins_with_launchable,
    certified,
    launchable_inside,
)
from meshwright.solver.training.report.anytime import steps_of
from meshwright.solver.training.report.plan_report import feasible_plan, infeasible_plan, memory_reason
from meshwright.solver.training.report.ranking_noise import RANKING_NOISE
from meshwright.solver.training.report.slo import slo_limit_s, slo_reason
from meshwright.solver.training.report.sweep import swept_plans
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.search.closest import closest_to_fitting
from meshwright.solver.training.search.near import SHARE as NEAR_SHARE
from meshwright.solver.training.search.near import best_near
from meshwright.solver.training.search.partition import Shortfall
from meshwright.solver.training.search.search_result import RELATIVE_TIE, SearchResult
from meshwright.solver.training.space.adapters import refuse_adapters
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.no_candidate import no_candidate
from meshwright.solver.training.space.packed_documents import refuse_documents
from meshwright.solver.training.space.sliced_sequences import check_token_slices


def refuse_uniform(request: TrainingRequest) -> None:
    """Raise WorkloadError for adapters, packed documents, orders, idle devices and token slices that can't be searched."""
    refuse_adapters(request)
    refuse_documents(request)
    other_arrangements(request)
    check_token_slices(request)


def best_uniform(request: TrainingRequest, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
    """Return the best plan of equal pipelines on all devices, or the reason why there is none."""
    assert given is None, "equal pipelines are searched first"
    costs = TrainingCosts(request)
    inside = _inside(request, costs, stop=stop, progress=progress)
    own = _plan_in_given_order(request, costs, inside, stop=stop, progress=progress)
    others = other_arrangements(request)
    return best_arrangement(request, own, others, slo_limit_s=slo_limit_s(request), stop=stop, progress=progress)


def _inside(request: TrainingRequest, costs: TrainingCosts, *, stop: Stop, progress: OnProgress) -> Inside | None:
    """The best launchable plan, which a search of a large free space begins with and improves on."""
    if not begins_with_launchable(request):
        return None
    part = part_of(stop, SHARE)
    found = launchable_inside(request, costs, slo_limit_s=slo_limit_s(request), stop=part, progress=progress)
    # Bundles of a chain's shardings come to plans that fit as soon as to those near a known one.
    if found is None or found.solved is None or request.model.is_chain:
        return found
    return replace(found, solved=best_near(request, costs, found.solved, stop=part_of(stop, NEAR_SHARE)))


def _plan_in_given_order(
    request: TrainingRequest, costs: TrainingCosts, inside: Inside | None, *, stop: Stop, progress: OnProgress
) -> Plan:
    """The fastest plan on all devices, ranks in the order of the cluster's node groups; no slower than the one inside."""

    def describe(now: SearchResult) -> Plan | None:
        keeps = now.best is not None and slo_reason(request, now.best.cost.step_time_s) is None
        return feasible_plan(request, costs, now) if keeps else None

    known_s = math.inf if inside is None or inside.plan.certificate.objective is None else inside.plan.certificate.objective
    begin = None if inside is None else inside.solved
    result = search(
        request,
        costs,
        stop=stop,
        progress=progress,
        describe=describe,
        begin=begin,
        limit=math.inf if begin else known_s,
        floor=0.0 if inside is None else compute_bound_s(request),
        reach=RANKING_NOISE.within,
    )
    if inside is not None and (result.best is None or known_s < result.best.value * (1 - RELATIVE_TIE)):
        return certified(inside, result)
    proven = result.complete or (result.bound is not None and result.bound > slo_limit_s(request))
    if result.best is not None:
        reason = slo_reason(request, result.best.cost.step_time_s)
        if reason is None:
            swept = swept_plans(request, slo_limit_s=slo_limit_s(request), stop=stop, progress=steps_of(progress))
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
    table = costs.table(candidate, kinds[shortfall.stage], sharding)
    return memory_reason(candidate, shortfall, table, risk=costs.request.search.risk)


def _unfinished_reason(result: SearchResult) -> Reason:
    return unfinished_search(
        result.n_members,
        looked_for="a plan that fits and meets the SLO",
        remedies=UNFINISHED_REMEDIES,
    )
