"""The order in which ranks go through the node groups of a mixed cluster: which devices hold the first layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from costmodels.cluster import Cluster
from costmodels.errors import PlanFileError, WorkloadError
from solver.control import OnProgress, Stop
from solver.plan import Certificate, Plan, RunnerUp, Status
from solver.request import GroupOrder, PlanRequest
from solver.training.alternatives import MAX_RUNNERS_UP
from solver.training.costs import TrainingCosts
from solver.training.report import feasible_plan
from solver.training.search import RELATIVE_TIE, search

MAX_ORDERS = 24
"""Orders that a search goes through, at most: those of four different groups."""


def in_order(request: PlanRequest, names: tuple[str, ...]) -> PlanRequest:
    """The request with its node groups in a plan's order; raises PlanFileError for names that are not those of the groups."""
    if not names:
        return request
    by_name = {group.name: group for group in request.cluster.groups}
    if sorted(names) != sorted(by_name):
        raise PlanFileError(
            "the plan's group_order does not name the cluster's node groups, each once",
            given=", ".join(names),
            allowed=", ".join(by_name),
        )
    return replace(request, cluster=replace(request.cluster, groups=tuple(by_name[name] for name in names)))


def best_order(request: PlanRequest, given: Plan, *, slo_limit_s: float, stop: Stop, progress: OnProgress) -> Plan:
    """The best plan over all orders of the node groups, where the request asks for that; ``given`` is that of its own order.

    Other orders are searched for faster plans only. Raises WorkloadError for more than `MAX_ORDERS` of them.
    """
    if request.search.group_order is GroupOrder.GIVEN or len(request.cluster.groups) == 1:
        return given
    best, losers = given, list[RunnerUp]()
    proven, bound = given.certificate.status is not Status.FEASIBLE, given.certificate.bound or math.inf
    for names in _other_orders(request.cluster):
        ordered = in_order(request, names)
        costs = TrainingCosts(ordered)
        limit_s = min(slo_limit_s, best.certificate.objective or math.inf)
        result = search(ordered, costs, stop=stop, progress=progress, limit=limit_s)
        proven = proven and (result.complete or (result.bound is not None and result.bound > limit_s))
        bound = min(bound, math.inf if result.bound is None else result.bound)
        if result.best is not None and result.best.value < limit_s * (1 - RELATIVE_TIE):
            losers += _loser(best)
            found = feasible_plan(ordered, costs, result)
            note = f"ranks go through the node groups in the order {', '.join(names)}: list hosts in that order"
            best = replace(found, group_order=names, notes=(*found.notes, note))
        else:
            why = "no plan is faster" if math.isinf(limit_s) else f"no plan takes less than {limit_s:.4g} s"
            losers.append(RunnerUp(_named(names), None, why))
    objective = best.certificate.objective
    if objective is None:
        return best
    bound = objective if proven else min(bound, objective)
    certificate = Certificate(
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=objective,
        bound=bound,
        gap=(objective - bound) / objective,
        unit=best.certificate.unit,
        space=f"{best.certificate.space}; node groups in any order",
    )
    return replace(best, certificate=certificate, runners_up=(*losers, *best.runners_up)[:MAX_RUNNERS_UP])


def _loser(plan: Plan) -> list[RunnerUp]:
    """A plan of another order that was best for a while."""
    objective = plan.certificate.objective
    if objective is None:
        return []
    return [RunnerUp(_named(plan.group_order), objective, f"takes {objective:.4g} s a step")]


def _named(names: tuple[str, ...]) -> str:
    return f"node groups in the order {', '.join(names)}" if names else "node groups in the order given"


def _other_orders(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Orders that differ from the cluster's own, and from one another, in their nodes."""
    seen = {tuple((group.node, group.nodes) for group in cluster.groups)}
    if math.factorial(len(cluster.groups)) > MAX_ORDERS:
        raise WorkloadError(
            "too many orders of node groups to search",
            given=f"{len(cluster.groups)} groups",
            allowed="at most 4 with search.group_order: any",
        )
    for groups in itertools.permutations(cluster.groups):
        nodes = tuple((group.node, group.nodes) for group in groups)
        if nodes not in seen:
            seen.add(nodes)
            yield tuple(group.name for group in groups)
