"""The order of ranks on the node groups of a cluster: which devices of a node hold ranks, and which groups hold the first
layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.arrangement import Arrangement, arranged, arrangement_of, in_arrangement, without_idle
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, Status
from meshwright.solver.answer.timed_words import TimedWords, step_seconds
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.choices import GroupOrder
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.report.device_counts import require_whole_cluster
from meshwright.solver.training.report.equals import RANKING_NOISE
from meshwright.solver.training.report.plan_report import MAX_RUNNERS_UP, feasible_plan, still_open
from meshwright.solver.training.search.best_first import RELATIVE_TIE, search
from meshwright.solver.training.space.adapters import suits_nodes

MAX_ORDERS = 24
"""Orders that a search goes through, at most: those of four different groups."""

MAX_ARRANGEMENTS = 128
"""Orders times ways of leaving devices idle, at most: those of two groups of eight devices a node in any order are 143."""


def best_arrangement(
    request: TrainingRequest,
    given: Plan,
    others: Sequence[Arrangement],
    *,
    stop: Stop,
    progress: OnProgress,
) -> Plan:
    """The best plan over arrangements of the node groups; ``given`` is that of the cluster's own.

    Others are searched for faster plans only.
    """
    if not others:
        return given
    best, losers = given, list[RunnerUp]()
    proven = given.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE)
    # Of a search that was stopped without a plan no bound is known.
    bound = given.certificate.bound or (math.inf if given.is_decided else 0.0)
    for arrangement in others:
        placed = arranged(request, arrangement)
        costs = TrainingCosts(placed)
        limit_s = min(request.longest_step_s, best.certificate.objective or math.inf)
        result = search(placed, costs, stop=stop, progress=progress, limit=limit_s, reach=RANKING_NOISE.within)
        proven = proven and (result.complete or (result.bound is not None and result.bound > limit_s))
        bound = min(bound, math.inf if result.bound is None else result.bound)
        if result.best is not None and result.best.value < limit_s * (1 - RELATIVE_TIE):
            losers += _loser(best)
            found = feasible_plan(placed, costs, result)
            best = in_arrangement(replace(found, notes=(*found.notes, *arrangement.notes)), arrangement)
        else:
            open_ended = math.isinf(limit_s)
            why = "no plan is faster" if open_ended else TimedWords("no plan takes less than ", step_seconds(limit_s), " s")
            losers.append(RunnerUp(arrangement.name, None, why))
    objective = best.certificate.objective
    if objective is None:
        return best if proven or not best.is_decided else still_open(best)
    bound = objective if proven else min(bound, objective)
    searched = ["node groups in any order"] if request.search.group_order is GroupOrder.ANY else []
    idle = request.search.idle_groups
    searched += [f"any number of devices idle in each node of {', '.join(idle)}, alike in all"] if idle else []
    certificate = replace(
        best.certificate,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=objective,
        bound=bound,
        gap=(objective - bound) / objective,
        space="; ".join((best.certificate.space, *searched)),
    )
    return replace(best, certificate=certificate, runners_up=(*losers, *best.runners_up)[:MAX_RUNNERS_UP])


def _loser(plan: Plan) -> list[RunnerUp]:
    """A plan of another arrangement that was best for a while."""
    objective = plan.certificate.objective
    if objective is None:
        return []
    why = TimedWords("takes ", step_seconds(objective), " s a step")
    return [RunnerUp(arrangement_of(placement_of(plan)).name, objective, why)]


def other_arrangements(request: TrainingRequest) -> list[Arrangement]:
    """Arrangements that the request allows, on nodes that suit its launcher, and that differ from the cluster's own, and from
    one another, in their nodes; those with fewest idle devices first.

    Raises WorkloadError for more than `MAX_ORDERS` orders or `MAX_ARRANGEMENTS` in all, and for idle groups that can't be.
    """
    search, cluster = request.search, request.cluster
    _check_idle(request)
    if search.group_order is GroupOrder.ANY and math.factorial(len(cluster.groups)) > MAX_ORDERS:
        raise WorkloadError(
            "too many orders of node groups to search",
            given=f"{len(cluster.groups)} groups",
            allowed="at most 4 with search.group_order: any",
        )
    seen = {tuple((group.node, group.nodes) for group in cluster.groups)}
    found: list[tuple[int, Arrangement]] = []
    for idle in _idle_choices(cluster, search.idle_groups):
        part = without_idle(cluster, idle)
        if not suits_nodes(part, search):
            continue
        own = tuple(group.name for group in part.groups)
        orders = itertools.permutations(part.groups) if search.group_order is GroupOrder.ANY else iter([part.groups])
        for groups in orders:
            nodes = tuple((group.node, group.nodes) for group in groups)
            if nodes in seen:
                continue
            seen.add(nodes)
            if len(found) == MAX_ARRANGEMENTS:
                raise WorkloadError(
                    "too many orders and idle devices of node groups to search",
                    given=f"{len(cluster.groups)} groups, idle_groups {', '.join(search.idle_groups) or 'none'}",
                    allowed=f"{MAX_ARRANGEMENTS} arrangements; let fewer groups leave devices idle, or give their order",
                )
            order = tuple(group.name for group in groups)
            found.append((-part.n_devices, Arrangement(() if order == own else order, idle)))
    return [arrangement for _, arrangement in sorted(found, key=lambda item: item[0])]


def _check_idle(request: TrainingRequest) -> None:
    idle, names = request.search.idle_groups, [group.name for group in request.cluster.groups]
    unknown = sorted(set(idle) - set(names))
    if unknown:
        raise WorkloadError(
            "search.idle_groups names no node group of the cluster", given=", ".join(unknown), allowed=", ".join(names)
        )
    if idle:
        require_whole_cluster(request, "search.idle_groups")


def _idle_choices(cluster: Cluster, may_idle: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Devices that each node of the groups leaves idle, in every way that leaves any device at all."""
    groups = [group for group in cluster.groups if group.name in may_idle]
    for counts in itertools.product(*(range(group.node.devices_per_node + 1) for group in groups)):
        idle = {group.name: count for group, count in zip(groups, counts, strict=True) if count}
        if any(idle.get(group.name, 0) < group.node.devices_per_node for group in cluster.groups):
            yield idle
