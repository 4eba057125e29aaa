"""Training plans that also choose how many devices to use: the fewest that meet the SLO, or the cheapest tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodels.cluster import Cluster, Link, NodeGroup
from costmodels.errors import WorkloadError
from solver.control import OnProgress, Stop
from solver.plan import Certificate, Status
from solver.request import Objective, PlanRequest, TrainingWorkload
from solver.training.costs import TrainingCosts
from solver.training.search import SearchResult, search

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class SizedResult:
    """The best part of the cluster with its search, and the certificate of the choice of size."""

    request: PlanRequest
    costs: TrainingCosts
    result: SearchResult
    certificate: Certificate


def search_sizes(request: PlanRequest, *, slo_limit_s: float, stop: Stop, progress: OnProgress) -> SizedResult | None:
    """The part of the cluster that is best by ``request.objective``; None when no part meets the SLO.

    Sizes are whole nodes from one upwards, and equal parts of one node, in the order of their devices; each is searched
    for plans faster than the SLO (and, for cost, than what would be cheaper than the best so far). Raises WorkloadError for a
    cluster of several node groups, or for the objective cost without a price.
    """
    price = _price_per_second(request)
    best: SizedResult | None = None
    best_value, proven = math.inf, True
    for part in cluster_parts(request.cluster):
        sized = replace(request, cluster=part)
        costs = TrainingCosts(sized)
        limit_s = slo_limit_s
        if request.objective is Objective.COST:
            limit_s = min(limit_s, best_value / (price * part.n_devices))
        result = search(sized, costs, stop=stop, progress=progress, limit_s=limit_s)
        proven = proven and (result.complete or (result.bound_s is not None and result.bound_s > limit_s))
        if result.best is None or result.best.cost.step_time_s > limit_s:
            continue
        value = _value(request, part, result.best.cost.step_time_s, price)
        if value < best_value:
            best_value = value
            best = SizedResult(sized, costs, result, _certificate(request, value, proven=proven))
        if request.objective is Objective.DEVICES:
            break
    if best is None:
        return None
    return replace(best, certificate=_certificate(request, best_value, proven=proven))


def cluster_parts(cluster: Cluster) -> Iterator[Cluster]:
    """1, 2, 4 ... devices of one node with their share of its network, then whole nodes one by one.

    Raises WorkloadError for a cluster of several groups: which of them to leave out is a question of its own.
    """
    if len(cluster.groups) != 1:
        raise WorkloadError(
            "choosing the number of devices needs a cluster of one node group",
            given=f"{len(cluster.groups)} groups",
            remedy="plan for each group by itself, or use the objective throughput",
        )
    group = cluster.groups[0]
    whole = group.node.devices_per_node
    for n in range(1, whole):
        if whole % n == 0:
            inter = group.node.inter
            share = Link(inter.name, inter.bytes_per_s * n / whole, inter.latency_s)
            node = replace(group.node, devices_per_node=n, inter=share)
            yield replace(cluster, groups=(NodeGroup(group.name, node, 1),))
    for nodes in range(1, group.nodes + 1):
        yield replace(cluster, groups=(replace(group, nodes=nodes),))


def _price_per_second(request: PlanRequest) -> float:
    """USD per device-second; 1 where the objective asks for no price."""
    if request.objective is not Objective.COST:
        return 1.0
    device = request.cluster.groups[0].node.device
    if device.price_per_hour is None:
        raise WorkloadError(
            "the objective cost needs a price of the device",
            given=device.name,
            remedy="describe the node inline with device.price_per_hour, or use the objective devices",
        )
    return device.price_per_hour / SECONDS_PER_HOUR


def _value(request: PlanRequest, part: Cluster, step_time_s: float, price: float) -> float:
    """Devices, or USD a step."""
    if request.objective is Objective.DEVICES:
        return float(part.n_devices)
    return step_time_s * part.n_devices * price


def _certificate(request: PlanRequest, value: float, *, proven: bool) -> Certificate:
    """A choice of size is proven when the search of every size before it was; otherwise only one device is certain."""
    workload = request.workload
    assert isinstance(workload, TrainingWorkload)
    unit = "devices" if request.objective is Objective.DEVICES else "USD per step"
    bound = value if proven else (1.0 if unit == "devices" else 0.0)
    return Certificate(
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=value,
        bound=bound,
        gap=(value - bound) / value,
        unit=unit,
        space="equal parts of one node and whole nodes of the cluster, each with its own training space",
    )
