"""Collectives: the survey's traffic table, laws of time, and groups inside a node, over nodes and over a rack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.calibration.networks import network_calibration
from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import node_type, node_types
from meshwright.costmodels.network.collectives import Collective, bytes_per_rank, collective_error, collective_s

NODES = [pytest.param(node, id=node.name) for node in node_types()]
SIZES = np.logspace(3, 10, 15)
kinds = st.sampled_from(list(Collective))
sizes = st.floats(1e3, 1e10)


def cluster(name: str, nodes: int = 16) -> Cluster:
    return Cluster(groups=(NodeGroup(name="a", node=node_type(name), nodes=nodes),))


def topology(name: str, n: int, stride: int = 1) -> GroupTopology:
    return group_topology(cluster(name), n=n, stride=stride)


@st.composite
def topologies(draw):
    name = draw(st.sampled_from(["dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x-oam", "l4-pcie", "ascend-910b-host"]))
    return topology(name, draw(st.sampled_from([2, 3, 4, 8, 16, 64])), draw(st.sampled_from([1, 2])))


@pytest.mark.parametrize(
    ("kind", "per_rank"),
    [
        (Collective.ALL_GATHER, 0.75),
        (Collective.REDUCE_SCATTER, 0.75),
        (Collective.ALL_TO_ALL, 0.75),
        (Collective.ALL_REDUCE, 1.5),
        (Collective.SEND_RECV, 1.0),
        (Collective.BROADCAST, 1.0),
    ],
)
def test_bytes_per_rank_are_those_of_the_survey(kind, per_rank):
    assert bytes_per_rank(kind, 4, 1e6) == pytest.approx(per_rank * 1e6)
    assert bytes_per_rank(kind, 1, 1e6) == 0.0
    assert bytes_per_rank(kind, 4, np.array([2e6])) == pytest.approx([2e6 * per_rank])


@settings(deadline=None)
@given(kinds, topologies(), sizes, sizes)
def test_more_bytes_never_take_less_time(kind, group, one, other):
    less, more = sorted((one, other))
    assert 0 < collective_s(kind, less, group) <= collective_s(kind, more, group)


@settings(deadline=None)
@given(kinds, topologies(), sizes)
def test_a_faster_fabric_or_network_is_never_slower(kind, group, size):
    fabric = replace(group, intra=replace(group.intra, bytes_per_s=1.5 * group.intra.bytes_per_s))
    network = replace(group, inter_bytes_per_s=1.5 * group.inter_bytes_per_s, inter_latency_s=0.5 * group.inter_latency_s)
    now = collective_s(kind, size, group)
    assert collective_s(kind, size, fabric) <= now
    assert collective_s(kind, size, network) <= now


@pytest.mark.parametrize(("n", "ranks_per_node"), [(2, 1), (3, 1), (16, 8), (24, 8), (12, 2)])
@pytest.mark.parametrize("kind", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST])
def test_latencies_count_as_often_as_a_ring_crosses_the_links(kind, n, ranks_per_node):
    """A ring of n ranks has n - 1 steps before all have all; each node is left once, but the last."""
    node = topology("dgx-h100", 16)
    group = replace(node, n=n, ranks_per_node=ranks_per_node, network="unstated")
    now_s, nodes = collective_s(kind, 1e6, group), n // ranks_per_node
    slower = replace(group, intra=replace(group.intra, latency_s=group.intra.latency_s + 1.0))
    assert collective_s(kind, 1e6, slower) - now_s == pytest.approx(n - nodes)
    farther = replace(group, inter_latency_s=group.inter_latency_s + 1.0)
    assert collective_s(kind, 1e6, farther) - now_s == pytest.approx(nodes - 1)


@settings(deadline=None)
@given(topologies(), sizes)
def test_an_all_reduce_takes_no_less_than_its_reduce_scatter(group, size):
    assert collective_s(Collective.ALL_REDUCE, size, group) >= collective_s(Collective.REDUCE_SCATTER, size, group)


@settings(deadline=None)
@given(kinds, topologies(), sizes)
def test_no_collective_beats_the_wires(kind, group, size):
    sent = bytes_per_rank(kind, group.n, size)
    wire = group.intra.bytes_per_s if not group.spans_nodes else max(group.intra.bytes_per_s, group.inter_bytes_per_s)
    # In-switch reduction sends half of what a ring does (NVLS).
    assert collective_s(kind, size, group) >= sent / wire / (2.0 if kind is Collective.ALL_REDUCE else 1.0)


@given(kinds, sizes)
def test_a_lone_rank_and_an_empty_message_take_no_time(kind, size):
    assert collective_s(kind, size, topology("dgx-h100", 1)) == 0.0
    assert collective_s(kind, 0.0, topology("dgx-h100", 8)) == 0.0


@pytest.mark.parametrize("kind", Collective)
@pytest.mark.parametrize(("n", "stride"), [(8, 1), (4, 2), (32, 1), (16, 8)])
def test_arrays_give_what_numbers_give(kind, n, stride):
    group = topology("dgx-h100", n, stride)
    assert collective_s(kind, SIZES, group).tolist() == [collective_s(kind, float(size), group) for size in SIZES]


@pytest.mark.parametrize("node", NODES)
def test_every_node_type_answers_inside_and_between_nodes(node):
    machines = Cluster(groups=(NodeGroup(name="a", node=node, nodes=4),))
    for n in (2, node.devices_per_node, 4 * node.devices_per_node):
        group = group_topology(machines, n=n, stride=1)
        for kind in Collective:
            assert np.isfinite(collective_s(kind, SIZES, group)).all()


@pytest.mark.parametrize(
    ("name", "kind", "n", "message_bytes", "measured_s"),
    [
        # NCCL tables of aiconfigurator-core 0.12.0 (Apache-2.0), 16-bit elements.
        ("dgx-h100", Collective.ALL_REDUCE, 8, 2 * 8388608, 121.91e-6),
        ("dgx-h100", Collective.ALL_REDUCE, 8, 2 * 134217728, 1092.1e-6),
        ("dgx-h100", Collective.ALL_REDUCE, 8, 2 * 4096, 15.96e-6),
        ("dgx-a100", Collective.ALL_GATHER, 2, 2 * 134217728, 939.0e-6),
        ("dgx-a100", Collective.ALL_GATHER, 2, 2 * 4194304, 59.72e-6),
    ],
)
def test_measured_times_are_met(name, kind, n, message_bytes, measured_s):
    assert collective_s(kind, message_bytes, topology(name, n)) == pytest.approx(measured_s, rel=0.15)


def test_large_messages_between_nodes_run_at_the_share_of_the_cards_speed_that_the_prior_says():
    group = topology("dgx-h100", 32)
    size = 4e9
    bus = bytes_per_rank(Collective.ALL_GATHER, 32, size) / collective_s(Collective.ALL_GATHER, size, group)
    assert bus == pytest.approx(network_calibration("infiniband").share * 400e9, rel=0.02)


@pytest.mark.parametrize(
    ("message_bytes", "reported_s"), [(2097152, 93.4e-6), (4194304, 153.3e-6), (8388608, 227.8e-6), (16777216, 419.9e-6)]
)
def test_a_reported_pair_of_nodes_is_in_the_stated_range(message_bytes, reported_s):
    # NVIDIA/nccl-tests issue 232: one H100 on each of two nodes, all-reduce in place, about 50 GB/s a direction.
    pair = topology("dgx-h100", 2, stride=8)
    seconds = collective_s(Collective.ALL_REDUCE, message_bytes, pair)
    fastest, slowest = network_calibration("infiniband").factors
    assert fastest * seconds < reported_s < slowest * seconds


def test_a_group_with_one_rank_a_node_gets_one_card():
    group = topology("dgx-h100", 16, stride=8)
    size = 4e9
    bus = bytes_per_rank(Collective.ALL_GATHER, 16, size) / collective_s(Collective.ALL_GATHER, size, group)
    assert bus == pytest.approx(network_calibration("infiniband").share * 50e9, rel=0.02)


def test_a_rack_of_72_is_one_fast_group():
    size = 1e9
    rack = collective_s(Collective.ALL_GATHER, size, topology("gb200-nvl72", 64))
    assert rack < collective_s(Collective.ALL_GATHER, size, topology("dgx-b200", 64))
    assert bytes_per_rank(Collective.ALL_GATHER, 64, size) / rack > 400e9


def test_small_all_reduces_over_many_nodes_climb_a_tree():
    small = collective_s(Collective.ALL_REDUCE, 1e4, topology("dgx-h100", 128))
    assert small < 2 * 15 * topology("dgx-h100", 128).inter_latency_s + 2 * 112 * 0.6e-6


def test_pairwise_links_give_small_groups_less():
    pair = collective_s(Collective.ALL_GATHER, 1e9, topology("mi300x-oam", 2))
    assert pair > collective_s(Collective.ALL_GATHER, 1e9, topology("mi300x-oam", 8))


def test_errors_are_held_out_inside_a_node_and_stated_between():
    inside = collective_error(topology("dgx-h100", 8))
    assert inside.median <= 0.05
    assert "left out" in inside.basis
    assert collective_error(topology("dgx-h100", 16)).median > inside.median
    assert collective_error(topology("mi300x-oam", 8)).median > inside.median


def test_an_unknown_calibration_says_which_exist():
    with pytest.raises(ClusterError, match="h100_sxm"):
        collective_s(Collective.ALL_REDUCE, 1e6, replace(topology("dgx-h100", 8), calibration="h1000"))
