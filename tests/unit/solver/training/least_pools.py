"""The least step time of replicas by node group: every share of the batch, and of each group every plan with every other."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from meshwright.solver.problem.choices import BatchShares, GroupOrder
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.by_group.search import group_exchange_s
from tests.unit.solver.training.least_step import Least, least_step


@dataclass
class LeastOfPools:
    """The least step time, infinite where nothing fits, and how many plans there are."""

    least_s: float = math.inf
    n_plans: int = 0


def least_of_pools(request: TrainingRequest) -> LeastOfPools:
    """The least of every share of the batch: the slowest group's own step, and the sum of gradients between the groups."""
    groups, batch, found = request.cluster.groups, request.workload.global_batch, LeastOfPools()
    alone: dict[tuple[int, int], Least] = {}
    for cuts in itertools.combinations(range(1, batch), len(groups) - 1):
        shares = [b - a for a, b in itertools.pairwise((0, *cuts, batch))]
        for place, share in enumerate(shares):
            if (place, share) not in alone:
                alone[place, share] = least_step(group_alone(request, place, share))
        each = [alone[place, share] for place, share in enumerate(shares)]
        found.n_plans += math.prod(of_group.n_plans for of_group in each)
        for layouts in itertools.product(*(of_group.by_parameters.items() for of_group in each)):
            sum_s = max(group_exchange_s(request, group, held) for group, (held, _) in zip(groups, layouts, strict=True))
            found.least_s = min(found.least_s, max(step_s for _, step_s in layouts) + sum_s)
    return found


def group_alone(request: TrainingRequest, place: int, sequences: int) -> TrainingRequest:
    """One node group with its share of the batch; where it begins inside a leaf, its nodes are under none."""
    cluster = request.cluster
    begins_at, leaf = sum(group.nodes for group in cluster.groups[:place]), cluster.nodes_per_leaf
    alone = replace(cluster, groups=(cluster.groups[place],), nodes_per_leaf=None if leaf and begins_at % leaf else leaf)
    search = replace(request.search, batch_shares=BatchShares.EVEN, group_order=GroupOrder.GIVEN, idle_groups=())
    return replace(request, cluster=alone, workload=replace(request.workload, global_batch=sequences), search=search)
