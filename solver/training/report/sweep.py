"""A sweep for the frontier: for each number of devices the fastest plans by how much memory they leave, and the thriftiest.

Each point is the proven best of its own search: fastest on so many devices among plans that leave that share of memory free,
or least energy on so many devices. Cost follows from both. Between two shares, or two numbers of devices, may lie others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import DecisionCost, evaluate_decision
from meshwright.solver.training.report.device_counts import cluster_parts
from meshwright.solver.training.report.frontier import Costed
from meshwright.solver.training.search.aims import Aim, LeastEnergy, LeastStepTime
from meshwright.solver.training.search.best_first import decision_tables, search
from meshwright.solver.training.search.search_result import Solved

RESERVE_STEP = 0.05
"""Shares of memory between two points of a sweep."""


def swept_plans(request: TrainingRequest, *, slo_limit_s: float, stop: Stop, progress: OnProgress) -> tuple[Costed, ...]:
    """Plans within the SLO for the frontier; none unless the request asks for a sweep. What is found before ``stop`` stays."""
    if request.search.frontier is not FrontierScope.SWEPT:
        return ()
    return tuple(
        found
        for part in swept_parts(request.cluster)
        for found in _of_part(replace(request, cluster=part), slo_limit_s, stop, progress)
    )


def swept_parts(cluster: Cluster) -> Iterator[Cluster]:
    """Parts of one, two, four ... devices or nodes, and the whole; of a cluster of several node groups the whole alone."""
    if len(cluster.groups) > 1:
        yield cluster
        return
    for part in cluster_parts(cluster):
        nodes, whole = part.groups[0].nodes, part.n_devices == cluster.n_devices
        if whole or nodes & (nodes - 1) == 0:
            yield part


def _of_part(request: TrainingRequest, slo_limit_s: float, stop: Stop, progress: OnProgress) -> Iterator[Costed]:
    """The plan of least energy, then the fastest plan, the fastest that leaves more memory, and so on."""
    costs = TrainingCosts(request)
    thrifty = _best(costs, LeastEnergy(request, costs, slowest_s=slo_limit_s), math.inf, stop, progress)
    if thrifty is not None:
        yield Costed(request, costs, thrifty)
    reserve = request.cluster.memory_reserve
    while reserve < 1.0 and not stop():
        tighter = costs.with_memory_reserve(reserve)
        found = _best(tighter, LeastStepTime(tighter), slo_limit_s, stop, progress)
        if found is None:
            return
        tables = decision_tables(found.decision, costs)
        solved = replace(found, cost=evaluate_decision(found.decision, tables))
        yield Costed(request, costs, solved)
        reserve = request.cluster.memory_reserve + RESERVE_STEP + _free_share(solved.cost, request)


def _best(costs: TrainingCosts, aim: Aim, limit: float, stop: Stop, progress: OnProgress) -> Solved | None:
    found = search(costs.request, costs, aim=aim, stop=stop, progress=progress, limit=limit).best
    return None if found is None or found.value > limit else found


def _free_share(cost: DecisionCost, request: TrainingRequest) -> float:
    """Share of the fullest device's memory that a plan leaves at the quantile asked for, beside what is reserved."""
    taken = max(stage.law.margin(request.search.risk) * stage.device_bytes / stage.usable_bytes for stage in cost.stages)
    return (1.0 - request.cluster.memory_reserve) * (1.0 - taken)
