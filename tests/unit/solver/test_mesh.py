"""The topology that each axis of a stage's mesh sees."""

from __future__ import annotations

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.cluster.rank_runs import RankRuns
from meshwright.costmodels.hardware import node_type
from meshwright.solver.blocks.mesh import stage_topology


def test_axes_of_a_stage_see_what_their_ranks_share() -> None:
    cluster = Cluster((NodeGroup("pool", node_type("dgx-h100"), 8),))
    topology = stage_topology(cluster, RankRuns(0, 32), dp=4, tp=4, cp=2)
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
