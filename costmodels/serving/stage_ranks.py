"""The ranks of a pipeline stage on the cluster: their grid, and the topologies of the groups that communicate."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, group_topology
from meshwright.costmodels.model.split_dims import RankGrid


@dataclass(frozen=True, slots=True)
class StageRanks:
    """Groups of a stage: ``dense`` shares dense operators, ``kv`` one cache along the sequence, ``context`` the tokens of a
    prompt, ``stage`` is all ranks.

    Ranks are laid out tp innermost, then kvp, then cp, then attention_dp.
    """

    grid: RankGrid
    dense: GroupTopology
    kv: GroupTopology
    context: GroupTopology
    stage: GroupTopology


def stage_ranks(cluster: Cluster, grid: RankGrid, *, first: int = 0) -> StageRanks:
    """Topologies of the stage whose ranks start at ``first``. Raises ClusterError when it does not fit in the cluster."""
    return StageRanks(
        grid=grid,
        dense=group_topology(cluster, n=grid.dense_tp, stride=1, first=first),
        kv=group_topology(cluster, n=grid.kvp, stride=grid.tp, first=first),
        context=group_topology(cluster, n=grid.cp, stride=grid.dense_tp, first=first),
        stage=group_topology(cluster, n=grid.ranks, stride=1, first=first),
    )
