"""The topology of a group of ranks: on unequal nodes, on nodes that it begins inside, and over a spine between leaf
switches."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType, group_topology, part_of_node
from meshwright.costmodels.units import DType

DEVICE = Device("device", 80 * 10**9, {DType.BF16: 300e12}, 2e12, "h100_sxm")


def group(name: str, nodes: int, *, devices: int = 8, network: float = 400e9) -> NodeGroup:
    node = NodeType(name, DEVICE, devices, Link("fabric", 450e9, 1e-6), Link("network", network, 5e-6))
    return NodeGroup(name, node, nodes)


def test_a_group_that_begins_inside_a_node_and_ends_in_the_next_spans_both() -> None:
    topology = group_topology(Cluster((group("a", 4, devices=7),)), n=4, stride=1, first=4)
    assert topology.spans_nodes
    assert topology.ranks_per_node == 3
    assert not group_topology(Cluster((group("a", 4, devices=7),)), n=3, stride=1, first=4).spans_nodes


def test_of_unequal_nodes_the_one_with_the_narrowest_ring_decides() -> None:
    """One rank of each device: a ring through all of a node's devices has its whole network, however many they are."""
    cluster = Cluster((group("wide", 1, network=400e9), group("small", 1, devices=4, network=240e9)))
    assert group_topology(cluster, n=12, stride=1).inter_bytes_per_s == 240e9
    # One of four devices, and one of eight: as many rings share the network.
    assert group_topology(cluster, n=2, stride=8).inter_bytes_per_s == 400e9 / 8


def test_groups_that_hold_no_rank_slow_nobody() -> None:
    cluster = Cluster((group("a", 1), group("slow", 1, network=1e9), group("b", 1)))
    assert group_topology(cluster, n=2, stride=16).inter_bytes_per_s == 400e9 / 8


def test_only_what_leaves_a_leaf_is_oversubscribed() -> None:
    flat = Cluster((group("a", 4),), oversubscription=4.0)
    leaves = Cluster((group("a", 4),), oversubscription=4.0, nodes_per_leaf=2)
    assert group_topology(flat, n=16, stride=1).inter_bytes_per_s == 100e9
    assert group_topology(leaves, n=16, stride=1).inter_bytes_per_s == 400e9
    assert group_topology(leaves, n=16, stride=1, first=8).inter_bytes_per_s == 100e9
    assert group_topology(leaves, n=32, stride=1).inter_bytes_per_s == 100e9


def test_a_part_of_a_node_has_its_share_of_the_network() -> None:
    part = part_of_node(group("a", 1).node, 6)
    assert (part.devices_per_node, part.inter.bytes_per_s, part.intra) == (6, 300e9, group("a", 1).node.intra)
    assert part_of_node(part, 6) is part


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    nodes=st.integers(1, 4),
    n=st.integers(2, 12),
    stride=st.integers(1, 9),
    first=st.integers(0, 20),
)
def test_a_group_spans_nodes_exactly_if_its_ranks_do(sizes: list[int], nodes: int, n: int, stride: int, first: int) -> None:
    cluster = Cluster(tuple(group(f"g{i}", nodes, devices=size) for i, size in enumerate(sizes)))
    ranks = range(first, first + n * stride, stride)
    if ranks[-1] >= cluster.n_devices:
        return
    held = Counter(cluster.node_of(rank) for rank in ranks)
    topology = group_topology(cluster, n=n, stride=stride, first=first)
    assert topology.spans_nodes == (len(held) > 1)
    assert topology.ranks_per_node <= n
    named = {cluster.group_of(rank).name for rank in ranks}
    assert {each.name for each in cluster.groups_holding(ranks)} == named
