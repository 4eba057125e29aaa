"""Rank groups against the survey's figures, and the topology each axis sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.solver.blocks.mesh import MEGATRON_ORDER, SURVEY_ORDER, rank_groups, stage_topology

DEGREES = st.fixed_dictionaries({axis: st.integers(1, 4) for axis in ("dp", "pp", "tp", "cp")})


def test_survey_figure_4() -> None:
    degrees = {"dp": 2, "pp": 2, "tp": 2}
    assert rank_groups(SURVEY_ORDER, degrees, "pp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert rank_groups(SURVEY_ORDER, degrees, "tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert rank_groups(SURVEY_ORDER, degrees, "dp") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_survey_figure_5() -> None:
    degrees = {"dp": 2, "pp": 2, "tp": 2, "cp": 2}
    assert rank_groups(SURVEY_ORDER, degrees, "cp")[:2] == ((0, 2), (1, 3))
    assert rank_groups(SURVEY_ORDER, degrees, "tp")[:2] == ((0, 1), (2, 3))
    # The replicas and stages that the figure lists as sets of ranks are what these groups leave fixed.
    assert rank_groups(SURVEY_ORDER, degrees, "dp")[0] == (0, 8)
    assert rank_groups(SURVEY_ORDER, degrees, "pp")[0] == (0, 4)


@given(degrees=DEGREES, axis=st.sampled_from(("dp", "pp", "tp", "cp")))
def test_groups_partition_the_ranks(degrees: dict[str, int], axis: str) -> None:
    groups = rank_groups(MEGATRON_ORDER, degrees, axis)
    world = degrees["dp"] * degrees["pp"] * degrees["tp"] * degrees["cp"]
    assert sorted(rank for group in groups for rank in group) == list(range(world))
    assert {len(group) for group in groups} == {degrees[axis]}


def test_axes_of_a_stage_see_what_their_ranks_share() -> None:
    cluster = Cluster((NodeGroup("pool", node_type("dgx-h100"), 8),))
    topology = stage_topology(cluster, first=0, dp=4, tp=4, cp=2)
    assert not topology.tp.spans_nodes
    assert not topology.ring.spans_nodes
    # dp x cp: 8 ranks, 2 on each node; the 4 tp peers of a rank share the node's network with it.
    assert topology.state.n == 8
    assert topology.state.ranks_per_node == 2
    assert topology.state.inter_bytes_per_s == node_type("dgx-h100").inter.bytes_per_s / 4


def test_a_group_over_unequal_nodes_sees_the_slower_one() -> None:
    fast, slow = node_type("dgx-h100"), node_type("dgx-a100")
    cluster = Cluster((NodeGroup("new", fast, 1), NodeGroup("old", slow, 1)))
    topology = group_topology(cluster, n=16, stride=1)
    assert topology.intra == slow.intra
    assert topology.inter_bytes_per_s == min(fast.inter.bytes_per_s, slow.inter.bytes_per_s)
