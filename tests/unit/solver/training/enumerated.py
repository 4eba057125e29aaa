"""The least step time among all plans of a small request, whatever it opens, and whether a plan is the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.costmodels.cluster.cluster import Cluster, part_of_node
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import BatchShares, GroupOrder, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.stagewise.stage_sizes import sized_request
from tests.unit.solver.training.least_pools import group_alone, least_of_pools
from tests.unit.solver.training.least_stages import every_size, least_of_stages
from tests.unit.solver.training.least_step import least_step

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Enumerated:
    """The least step time of all plans that fit, None where none does, and how many plans there are."""

    least_s: float | None
    n_plans: float


def enumerated(request: TrainingRequest) -> Enumerated:
    """The least of every plan of the request's space: in every arrangement of the node groups that it leaves open, on each
    smaller number of nodes of a single one, of replicas by node group and of stages that differ where it asks for them."""
    least_s, n_plans = math.inf, 0.0
    for cluster in (*every_arrangement(request), *fewer_nodes(request)):
        found = least_step(replace(request, cluster=cluster))
        least_s, n_plans = min(least_s, found.least_s), n_plans + found.n_plans
    if request.search.stage_degrees is StageDegrees.ANY:
        stages = least_of_stages(request, every_arrangement(request))
        least_s, n_plans = min(least_s, stages.least_s), n_plans + stages.n_plans
    if request.search.batch_shares is BatchShares.BY_GROUP and len(request.cluster.groups) > 1:
        pools = least_of_pools(request)
        least_s, n_plans = min(least_s, pools.least_s), n_plans + pools.n_plans
    return Enumerated(None if math.isinf(least_s) else least_s, n_plans)


def every_arrangement(request: TrainingRequest) -> Iterator[Cluster]:
    """The cluster with every number of idle devices in each node of the groups that may have some, in every order of the groups
    where the request leaves that open."""
    cluster, search = request.cluster, request.search
    left = [
        range(0 if group.name in search.idle_groups else group.node.devices_per_node, group.node.devices_per_node + 1)
        for group in cluster.groups
    ]
    for counts in itertools.product(*left):
        used = [replace(group, node=part_of_node(group.node, n)) for group, n in zip(cluster.groups, counts, strict=True) if n]
        orders = itertools.permutations(used) if search.group_order is GroupOrder.ANY else [used]
        for groups in orders if used else []:
            yield replace(cluster, groups=tuple(groups))


def fewer_nodes(request: TrainingRequest) -> list[Cluster]:
    """The cluster with each smaller number of nodes, of one node group whose devices must not all have work."""
    search, (group, *others) = request.search, request.cluster.groups
    if others or search.idle_groups or search.system is not None:
        return []
    return [replace(request.cluster, groups=(replace(group, nodes=nodes),)) for nodes in range(1, group.nodes)]


def every_part(request: TrainingRequest) -> Iterator[TrainingRequest]:
    """Yield the parts of a request that are enumerated by themselves: arrangements, node groups with each share of the batch,
    stages of a size."""
    search, workload, groups = request.search, request.workload, request.cluster.groups
    yield from (replace(request, cluster=cluster) for cluster in every_arrangement(request))
    if search.stage_degrees is StageDegrees.ANY:
        for cluster in every_arrangement(request):
            arranged = replace(request, cluster=cluster)
            sizes = [(group, size) for group in cluster.groups for size in every_size(arranged, group)]
            yield from (sized_request(arranged, group, size, pp=2) for group, size in sizes)
    if search.batch_shares is BatchShares.BY_GROUP and len(groups) > 1:
        for place, share in itertools.product(range(len(groups)), range(1, workload.global_batch - len(groups) + 2)):
            yield group_alone(request, place, share)


def is_the_best(plan: Plan, every: Enumerated) -> bool:
    """Return True if a plan takes as long as the best of every plan, and proves that none takes less."""
    found_s, bound_s = plan.certificate.objective, plan.certificate.bound
    if every.least_s is None or found_s is None or bound_s is None:
        return found_s is None and every.least_s is None
    return max(abs(found_s - every.least_s), abs(bound_s - every.least_s)) <= TOLERANCE * every.least_s
