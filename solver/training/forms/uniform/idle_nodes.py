"""Plans that leave whole nodes idle: fewer are faster where the batch, the layers or the heads do not divide over all.

Nine nodes share a batch of 128 sequences badly; eight of them take less time for a step. So a search of all nodes is followed
by one of each smaller number, for faster plans only. What blocks take does not depend on the number of nodes: it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, Status
from meshwright.solver.answer.timed_words import TimedWords, step_seconds
from meshwright.solver.control import OnProgress, Stop, steps_of
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.forms.uniform.launchable_inside import (
    begins_with_launchable,
    launchable_inside,
    launchable_part,
)
from meshwright.solver.training.report.device_counts import UNITS
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.plan_report import MAX_RUNNERS_UP, feasible_plan, still_open
from meshwright.solver.training.search.best_first import RELATIVE_TIE, Solved, search
from meshwright.solver.training.space.adapters import suits_nodes

MOST_SIZES = 64
"""Numbers of nodes that are searched, at most: each takes 0.1 to 0.4 CPU s. Of more nodes every second, fourth ... is."""


def smaller_clusters(cluster: Cluster) -> Iterator[Cluster]:
    """The first nodes of a cluster of one node group, most first: each number of them, or every second, fourth ... number so
    that there are `MOST_SIZES` at most."""
    (group,) = cluster.groups
    step = 1
    while group.nodes > MOST_SIZES * step:
        step *= 2
    for nodes in range((group.nodes - 1) // step * step, 0, -step):
        yield replace(cluster, groups=(replace(group, nodes=nodes),))


def may_idle(request: TrainingRequest) -> bool:
    """Return True if plans on fewer nodes compete: of one node group, where the objective itself chooses no part of it, and a
    published planner is not asked for, which uses all devices."""
    cluster, search_ = request.cluster, request.search
    nodes = cluster.groups[0].nodes if len(cluster.groups) == 1 else 1
    return nodes > 1 and request.objective not in UNITS and search_.system is None and not search_.idle_groups


def with_idle_nodes(request: TrainingRequest, costs: TrainingCosts, given: Plan, *, stop: Stop, progress: OnProgress) -> Plan:
    """Return the better of a plan on all nodes and the best one on fewer, with a certificate of both spaces.

    Where ``stop`` ends it before all numbers of nodes were looked at, the bound is that of their FLOPs. ``costs`` are those of
    all nodes.
    """
    if not may_idle(request):
        return given
    quiet = steps_of(progress)
    if begins_with_launchable(request):
        return _of_wide_space(request, costs, given, stop=stop, progress=quiet)
    found, bound_s = _faster_part(request, costs, _longest_s(request, given), stop=stop, progress=quiet)
    if found is None:
        return _none_faster(request, given, bound_s)
    part, own, known = found
    # Once more for plans near the best.
    result = search(own.request, own, stop=stop, progress=quiet, begin=known, reach=RANKING_NOISE.within)
    best = feasible_plan(own.request, own, result)
    return _chosen(request, given, best, part, bound_s=bound_s, proven=result.complete)


def _longest_s(request: TrainingRequest, given: Plan) -> float:
    """Seconds that a step on fewer nodes may take to be better."""
    objective = given.certificate.objective
    return min(request.longest_step_s, math.inf if objective is None else objective)


def _faster_part(
    request: TrainingRequest, costs: TrainingCosts, limit_s: float, *, stop: Stop, progress: OnProgress
) -> tuple[tuple[Cluster, TrainingCosts, Solved] | None, float]:
    """The smaller cluster whose best step is the shortest of those within ``limit_s``, with its costs and the plan, None where
    there is none; and a bound of all steps on smaller clusters, that of FLOPs where it was stopped."""
    best: tuple[Cluster, TrainingCosts, Solved] | None = None
    bound_s = math.inf
    for part in smaller_clusters(request.cluster):
        sized = replace(request, cluster=part)
        floor_s = compute_bound_s(sized)
        if floor_s > limit_s or stop():
            # Fewer nodes compute no faster.
            return best, min(bound_s, floor_s)
        if not suits_nodes(part, request.search):
            continue
        own = costs.on(part)
        result = search(sized, own, stop=stop, progress=progress, limit=limit_s)
        if result.best is not None and result.best.value < limit_s * (1 - RELATIVE_TIE):
            limit_s, best = result.best.value, (part, own, result.best)
        bound_s = min(bound_s, math.inf if result.bound is None else result.bound)
    return best, bound_s


def _of_wide_space(request: TrainingRequest, costs: TrainingCosts, given: Plan, *, stop: Stop, progress: OnProgress) -> Plan:
    """The same in a large free space, of whose plans on fewer nodes only the launchable ones are looked at."""
    inside = replace(request, search=launchable_part(request.search, request.search.launcher))
    limit_s = _longest_s(request, given)
    try:
        found, _ = _faster_part(inside, TrainingCosts(inside), limit_s, stop=stop, progress=progress)
    except (PlanFileError, WorkloadError):
        # What the request restricts the free space to is nothing that the launcher runs.
        return given
    if found is None:
        return given
    sized = replace(request, cluster=found[0])
    launchable = launchable_inside(sized, costs.on(found[0]), stop=stop, progress=progress)
    objective = None if launchable is None else launchable.plan.certificate.objective
    if launchable is None or objective is None or objective >= limit_s * (1 - RELATIVE_TIE):
        return given
    return _chosen(request, given, launchable.plan, found[0], bound_s=compute_bound_s(request), proven=False)


SPACE = "; or on fewer whole nodes, the others idle"
"""Words of a certificate on plans that leave nodes idle."""


def _none_faster(request: TrainingRequest, given: Plan, bound_s: float) -> Plan:
    """The answer of all nodes, where none on fewer is known to be faster, with the bound of both."""
    certificate = replace(given.certificate, space=given.certificate.space + SPACE)
    if not given.feasible:
        # Nothing fits, or meets the SLO, on all nodes: of fewer that is known where their search ended.
        is_proven = not given.is_decided or bound_s > request.longest_step_s or math.isinf(bound_s)
        return replace(given, certificate=certificate) if is_proven else still_open(given)
    known = certificate.bound or 0.0
    if certificate.objective is None or bound_s >= known * (1 - RELATIVE_TIE):
        return replace(given, certificate=certificate)
    objective = certificate.objective
    gap = (objective - bound_s) / objective
    return replace(given, certificate=replace(certificate, status=Status.FEASIBLE, bound=bound_s, gap=gap))


def _chosen(request: TrainingRequest, given: Plan, best: Plan, part: Cluster, *, bound_s: float, proven: bool) -> Plan:
    """The best plan, of the first nodes of the cluster, with all nodes as its first runner-up."""
    of_all = request.cluster.groups[0].nodes
    objective = best.certificate.objective
    assert objective is not None, "a plan on fewer nodes has a step"
    known = given.certificate.bound
    of_all_s = math.inf if given.certificate.status is Status.INFEASIBLE else 0.0 if known is None else known
    bound_s = min(objective, bound_s, of_all_s)
    is_best = proven and bound_s >= objective * (1 - RELATIVE_TIE)
    certificate = replace(
        best.certificate,
        status=Status.OPTIMAL if is_best else Status.FEASIBLE,
        bound=objective if is_best else bound_s,
        gap=0.0 if is_best else (objective - bound_s) / objective,
        space=given.certificate.space + SPACE,
    )
    whole_s = given.certificate.objective
    why = "has no room or misses the SLO" if whole_s is None else TimedWords("takes ", step_seconds(whole_s), " s a step")
    losers = (RunnerUp("all nodes", whole_s, why), *best.runners_up)
    nodes = part.groups[0].nodes
    idle = TimedWords(f"{of_all - nodes} of {of_all} nodes are idle: a plan on all of them ", why)
    searched = replace(best.search, candidates=given.search.candidates + best.search.candidates)
    return replace(
        best, certificate=certificate, search=searched, runners_up=losers[:MAX_RUNNERS_UP], notes=(*best.notes, idle)
    )
