"""Groups of ranks that lie in runs with others between them: what they see is what a count of every rank by itself gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology, part_of_node
from meshwright.costmodels.cluster.rank_runs import RankRuns, groups_of_runs, runs_topology
from meshwright.costmodels.hardware import node_type


def random_cluster(rng: np.random.Generator) -> Cluster:
    """One or two groups of nodes of several sizes, some under leaf switches."""
    names = ("dgx-h100", "dgx-a100")[: int(rng.integers(1, 3))]
    groups = tuple(
        NodeGroup(name, part_of_node(node_type(name), int(rng.choice([2, 3, 4, 8]))), int(rng.integers(1, 5))) for name in names
    )
    leaves = int(rng.choice([1, 2])) if rng.random() < 0.3 else None
    return Cluster(groups, oversubscription=4.0 if leaves else 1.0, nodes_per_leaf=leaves)


def runs_on(cluster: Cluster, rng: np.random.Generator) -> RankRuns | None:
    """A stage of several replicas that fill the cluster, dp outermost; None where it has no such."""
    lengths = [(n, pp) for n in (1, 2, 3, 4, 6) for pp in (2, 3, 4) if cluster.n_devices % (n * pp) == 0]
    lengths = [(n, pp) for n, pp in lengths if cluster.n_devices > n * pp]
    if not lengths:
        return None
    length, pp = lengths[int(rng.integers(len(lengths)))]
    return RankRuns(int(rng.integers(pp)) * length, length, cluster.n_devices // (length * pp), length * pp)


def ranks_of(runs: RankRuns) -> list[int]:
    return [runs.first + run * runs.leap + place for run in range(runs.count) for place in range(runs.length)]


def drawn() -> list[tuple[Cluster, RankRuns]]:
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cluster = random_cluster(rng)
        runs = runs_on(cluster, rng)
        if runs is not None:
            found.append((cluster, runs))
    return found


def slowest_share(cluster: Cluster, ranks: list[int]) -> float:
    """The least share of a node's network among node groups that hold some of the ranks, as the spine leaves it."""
    on_nodes = Counter(cluster.node_of(rank) for rank in ranks)
    groups = {cluster.node_of(rank): cluster.group_of(rank) for rank in ranks}
    shares = []
    for name in {group.name for group in groups.values()}:
        most = max(on_nodes[node] for node, group in groups.items() if group.name == name)
        node = next(group.node for group in groups.values() if group.name == name)
        shares.append(node.inter.bytes_per_s / max(1, node.devices_per_node // most))
    leaves = {node // (cluster.nodes_per_leaf or 1) for node in on_nodes}
    return min(shares) / (1.0 if len(leaves) == 1 else cluster.oversubscription)


def test_a_group_over_all_runs_sees_what_a_count_of_its_ranks_gives() -> None:
    unequal = 0
    for cluster, runs in drawn():
        ranks = ranks_of(runs)
        topology = runs_topology(cluster, runs, n=len(ranks), stride=1)
        assert topology.n == len(ranks)
        assert topology.spans_nodes == (len({cluster.node_of(rank) for rank in ranks}) > 1)
        assert topology.inter_bytes_per_s == pytest.approx(slowest_share(cluster, ranks))
        assert topology.intra == min((cluster.group_of(rank).node.intra for rank in ranks), key=lambda link: link.bytes_per_s)
        unequal += len(cluster.groups) > 1
    assert unequal > 20


def test_groups_inside_runs_see_the_slowest_of_all_of_them() -> None:
    crossing = 0
    for cluster, runs in drawn():
        found = runs_topology(cluster, runs, n=runs.length, stride=1)
        each = [list(range(start, start + runs.length)) for start in runs.starts]
        crosses = [ranks for ranks in each if len({cluster.node_of(rank) for rank in ranks}) > 1]
        assert found.spans_nodes == bool(crosses)
        assert found.inter_bytes_per_s == pytest.approx(min(slowest_share(cluster, ranks) for ranks in crosses or each))
        crossing += 0 < len(crosses) < len(each)
    assert crossing > 5, "groups of which some cross nodes are what the slowest is of"


def test_runs_without_others_between_them_are_one_run() -> None:
    for cluster, runs in drawn():
        size = runs.length * runs.count
        together = RankRuns(0, runs.length, runs.count, runs.length)
        for stride in (stride for stride in (1, 2) if size % stride == 0 and size > runs.length * stride):
            found = runs_topology(cluster, together, n=size // stride, stride=stride)
            plain = group_topology(cluster, n=size // stride, stride=stride)
            assert (found.n, found.intra, found.spans_nodes) == (plain.n, plain.intra, plain.spans_nodes)
            assert found.inter_bytes_per_s == pytest.approx(slowest_share(cluster, list(range(0, size, stride))))


def test_every_node_group_with_a_rank_is_named_in_order() -> None:
    for cluster, runs in drawn():
        held = {cluster.group_of(rank).name for rank in ranks_of(runs)}
        assert [group.name for group in groups_of_runs(cluster, runs)] == [
            group.name for group in cluster.groups if group.name in held
        ]
