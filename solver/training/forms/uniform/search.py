"""The search for the best plan of equal pipelines: ranks in the cluster's own order first, then in others that are allowed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, heed, part_of, steps_of
from meshwright.solver.problem.declared.recompute_modules import ANY, OPERATORS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Sharding, compute_bound_s, evaluate_decision
from meshwright.solver.training.forms.uniform.device_orders import best_arrangement, other_arrangements
from meshwright.solver.training.forms.uniform.idle_nodes import with_idle_nodes
from meshwright.solver.training.forms.uniform.launchable_inside import (
    SHARE,
    Inside,
    begins_with_launchable,
    certified,
    launchable_inside,
)
from meshwright.solver.training.report.device_counts import swept_plans
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.plan_report import (
    UNFINISHED_REMEDIES,
    feasible_plan,
    infeasible_plan,
    memory_reason,
    slo_reason,
)
from meshwright.solver.training.search.best_first import RELATIVE_TIE, SearchResult, Solved, expand, search
from meshwright.solver.training.search.bounds import Member, family_bound_s, least_shortfall_bytes, member_bound_s
from meshwright.solver.training.search.partition import MemoryShortfall, cut, smallest_shortfall
from meshwright.solver.training.space.adapters import refuse_workload
from meshwright.solver.training.space.candidates import Candidate, families
from meshwright.solver.training.space.sliced_sequences import check_token_slices


def refuse_uniform(request: TrainingRequest) -> None:
    """Raise WorkloadError for models, adapters, documents, orders and slices that can't be searched."""
    refuse_workload(request)
    other_arrangements(request)
    check_token_slices(request)


class UniformSearch:
    """Searches equal pipelines; what blocks cost is known to a search that is begun again."""

    def __init__(self, request: TrainingRequest):
        self._request, self._costs = request, TrainingCosts(request)

    def __call__(self, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
        """Return the best plan on all devices, or on fewer whole nodes, or the reason why there is none."""
        assert given is None, "equal pipelines are searched first"
        return _best_uniform(self._request, self._costs, stop=stop, progress=progress)


def _best_uniform(request: TrainingRequest, costs: TrainingCosts, *, stop: Stop, progress: OnProgress) -> Plan:
    inside = _inside(request, costs, stop=stop, progress=progress)
    own = _plan_in_given_order(request, costs, inside, stop=stop, progress=progress)
    others = other_arrangements(request)
    arranged = best_arrangement(request, own, others, stop=stop, progress=progress)
    return with_idle_nodes(request, costs, arranged, stop=stop, progress=progress)


def _inside(request: TrainingRequest, costs: TrainingCosts, *, stop: Stop, progress: OnProgress) -> Inside | None:
    """The best launchable plan, which a search of a large free space begins with and improves on."""
    if not begins_with_launchable(request):
        return None
    part = part_of(stop, SHARE)
    found = launchable_inside(request, costs, stop=part, progress=progress)
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
    if begin is None and {ANY, OPERATORS} & {*request.search.recompute_modules}:
        usual = replace(request, search=replace(request.search, recompute_modules=()))
        begin = search(usual, costs, stop=part_of(stop, SHARE), progress=_without_bounds(progress), limit=known_s).best
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
    proven = result.complete or (result.bound is not None and result.bound > request.longest_step_s)
    if result.best is not None:
        reason = slo_reason(request, result.best.cost.step_time_s)
        if reason is None:
            swept = swept_plans(request, stop=stop, progress=steps_of(progress))
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
        # What has memory enough lacks the stages that are asked for.
        by_stages = costs.pinned and closest is not None and closest[1].lacking_bytes <= 0
        reason = no_candidate(request) if closest is None or by_stages else _memory_reason(costs, *closest)
    return infeasible_plan(request, reason, n_candidates=result.n_candidates, n_solved=result.n_solved)


def _without_bounds(listener: OnProgress) -> OnProgress:
    """A listener who is told how far the search of a part is, and not of its bound, which is not one of the whole."""
    return lambda now: listener(replace(now, best=None, bound=None))


def _memory_reason(costs: TrainingCosts, candidate: Candidate, shortfall: MemoryShortfall) -> Reason:
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


# The candidate of an infeasible request that comes closest to fitting.


def closest_to_fitting(
    request: TrainingRequest, costs: TrainingCosts, *, stop: Stop
) -> tuple[Candidate, MemoryShortfall] | None:
    """Of an infeasible request, the candidate that lacks the least memory on its fullest stage; None if none divides."""
    waiting: list[tuple[float, int, Candidate, Sharding]] = []
    with costs.stopped_by(stop) as listing:
        for family in families(request):
            heed(stop)
            for node in expand(family, costs):
                for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                    waiting.append((least_shortfall_bytes(member), len(waiting), member.candidate, member.sharding))
    if listing.was_stopped:
        return None
    heapq.heapify(waiting)
    best: tuple[Candidate, MemoryShortfall] | None = None
    while waiting and not stop():
        bound, _, candidate, sharding = heapq.heappop(waiting)
        if best is not None and bound >= best[1].lacking_bytes:
            break
        tables = costs.stage_tables(candidate, sharding, costs.stage_kinds(candidate))
        shortfall = smallest_shortfall(candidate, tables)
        if best is None or shortfall.lacking_bytes < best[1].lacking_bytes:
            best = (candidate, shortfall)
    return best


# Plans near a known one: the same degrees with other micro-batches, schedules, places of state and recompute modes.
#
# A search that begins with a launchable plan looks here first: best-first search opens what has the lowest bound, and on large
# clusters comes to plans that fit only late.

NEAR_SHARE = 1 / 8
"""Share of the time left that may go to plans near a known one."""

MAX_MEMBERS = 300
"""Members near a known plan whose stages are cut, at most: about a second."""


def best_near(request: TrainingRequest, costs: TrainingCosts, known: Solved, *, stop: Stop) -> Solved:
    """The fastest of a known plan and those near it that were looked at; the known one where none is faster."""
    mesh, best, n_solved = known.decision.candidate.mesh, known, 0
    with costs.stopped_by(stop):
        waiting = _members_near(request, costs, known, stop)
        while waiting and n_solved < MAX_MEMBERS and waiting[0][0] < best.value * (1 - RELATIVE_TIE):
            heed(stop)
            _, _, member = heapq.heappop(waiting)
            n_solved += 1
            decision = cut(member, costs)
            if isinstance(decision, MemoryShortfall):
                continue
            cost = evaluate_decision(decision, member.tables)
            if cost.fits and cost.step_time_s < best.value * (1 - RELATIVE_TIE):
                best = Solved(decision, cost, cost.step_time_s)
    assert best.decision.candidate.mesh == mesh
    return best


def _members_near(request: TrainingRequest, costs: TrainingCosts, known: Solved, stop: Stop) -> list[tuple[float, int, Member]]:
    """Members with a known plan's degrees that may fit and may be faster, as a heap by their bounds."""
    mesh = known.decision.candidate.mesh
    waiting: list[tuple[float, int, Member]] = []
    for family in families(request):
        if family.mesh != mesh:
            continue
        for choice in family.by_recompute():
            bound_s = family_bound_s(choice, costs)
            if bound_s is None or bound_s >= known.value:
                continue
            for node in expand(choice, costs):
                heed(stop)
                for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                    bound_s = member_bound_s(member)
                    if bound_s < known.value and not math.isinf(bound_s) and least_shortfall_bytes(member) <= 0:
                        waiting.append((bound_s, len(waiting), member))
    heapq.heapify(waiting)
    return waiting


# Why a request has no candidate at all: its own restrictions leave none, or nothing divides.


def no_candidate(request: TrainingRequest) -> Reason:
    """Constraints that leave nothing; or restrictions, with those whose lifting alone would do; else what does not divide."""
    if request.search.constraints and _has_candidates(request, lifted=("constraints",)):
        return _unconstrainable(request)
    restricting = _restrictions(request.search)
    if restricting and _has_candidates(request, lifted=restricting):
        return _restricted_away(request, restricting)
    return _undivided(request, restricting)


def _unconstrainable(request: TrainingRequest) -> Reason:
    asked = ", ".join(str(constraint) for constraint in request.search.constraints)
    return Reason(
        constraint="search.constraints",
        need=1.0,
        have=0.0,
        unit="candidates",
        message=f"no candidate for {request.cluster.n_devices} devices has what search.constraints ask for: {asked}",
        remedies=(
            "lift search.constraints, or name dims that such an operator may be split along",
            "allow a search.tp that divides these dims, and a search.pp whose stages can hold these layers",
        ),
    )


def _restricted_away(request: TrainingRequest, restricting: Sequence[str]) -> Reason:
    named = f"search.{', search.'.join(restricting)}"
    enough = [f"search.{option}" for option in restricting if _has_candidates(request, lifted=(option,))]
    message = f"{named} leave no candidate for {request.cluster.n_devices} devices, whatever memory and time it takes"
    if len(restricting) == 1:
        message = message.replace(" leave ", " leaves ")
    elif enough:
        message += f"; without {' or without '.join(enough)} there are some"
    return Reason(
        constraint="search.restrictions",
        need=1.0,
        have=0.0,
        unit="candidates",
        message=message,
        remedies=tuple(f"lift {option}, or allow more values" for option in enough) or (f"lift several of {named}",),
    )


def _undivided(request: TrainingRequest, restricting: Sequence[str]) -> Reason:
    workload, n_devices = request.workload, request.cluster.n_devices
    message = (
        f"no allowed split of {n_devices} devices into dp x tp x cp x pp divides the global batch of "
        f"{workload.global_batch}, the sequence of {workload.seq_len} and the model's heads, feed-forward and vocabulary "
        f"sizes evenly, with tp inside a node and at most {len(request.model.layers)} stages"
    )
    if workload.documents is not None:
        message += "; ranks that share a sequence of packed documents exchange heads (ulysses), since rings share them unevenly"
    if restricting:
        message += f"; the request restricts search.{', search.'.join(restricting)}"
    dp_limit = max((family.mesh.dp for family in families(request)), default=workload.global_batch)
    return Reason(
        constraint="divisibility",
        need=float(n_devices),
        have=float(min(dp_limit, n_devices - 1)),
        unit="devices",
        message=message,
        remedies=(
            "choose a global batch with more divisors, or a number of devices that divides it",
            "lift restrictions in 'search', if there are any",
        ),
    )


def _has_candidates(request: TrainingRequest, *, lifted: Sequence[str]) -> bool:
    defaults: dict[str, Any] = {option.name: option.default for option in fields(Search) if option.name in lifted}
    return next(families(replace(request, search=replace(request.search, **defaults))), None) is not None


def _restrictions(search: Search) -> list[str]:
    """Options of the search that name what is allowed."""
    named = ((option, getattr(search, option.name)) for option in fields(search))
    return [option.name for option, value in named if isinstance(value, tuple) and value != option.default]
