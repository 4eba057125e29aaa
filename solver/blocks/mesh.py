"""Logical mesh axes laid on ranks, and the topology of each axis.

Ranks of a training plan follow one of Megatron's orders: tp innermost, then cp, so that the axes that talk most are closest.
With dp inside pp a stage is a contiguous range of ranks, with pp inside dp a replica is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, group_topology
from meshwright.costmodels.cluster.rank_runs import RankRuns, runs_topology, slowest, unlike_starts


@dataclass(frozen=True, slots=True)
class StageTopology:
    """The topology of each axis of a stage's mesh.

    Of the ``cp`` ranks of a sequence ``heads`` are neighbours that exchange tokens for heads, ``ring`` those that pass keys and
    values on. ``state`` is dp x cp: the group that shares gradients and ZeRO shards. Experts lie on ep of its ranks;
    ``expert_state`` is the group of dp x cp / ep ranks with the same experts. ``hybrid`` are ways to shard within a part of
    ``state``.
    """

    tp: GroupTopology
    cp: GroupTopology
    heads: GroupTopology
    ring: GroupTopology
    state: GroupTopology
    ep: GroupTopology
    expert_state: GroupTopology
    hybrid: tuple[HybridGroups, ...] = ()

    def hybrid_of(self, ranks: int) -> HybridGroups:
        """The groups of a number of ranks."""
        return next(groups for groups in self.hybrid if groups.shards.n == ranks)


@dataclass(frozen=True, slots=True)
class HybridGroups:
    """Neighbours that shard among themselves, the ranks of other such groups that hold the same shard, and all of them."""

    shards: GroupTopology
    replicas: GroupTopology
    everyone: GroupTopology


def stage_topology(
    cluster: Cluster,
    ranks: RankRuns,
    *,
    dp: int,
    tp: int,
    cp: int,
    ep: int = 1,
    expert_tp: int | None = None,
    ulysses: int = 1,
    shard_ranks: Sequence[int] = (),
) -> StageTopology:
    """Topologies of a stage of dp x cp x tp ranks, in Megatron's order.

    Ranks that exchange heads are inside those of a ring (its create_hierarchical_groups, sizes from inner to outer). Experts
    are laid out by themselves, the ``expert_tp`` (else tp) ranks of an expert innermost, then ep, then the ranks that share
    experts (megatron.core.parallel_state builds a second generator of ranks for them).
    """
    within = tp if expert_tp is None else expert_tp

    def every(stride: int, n: int) -> GroupTopology:
        return runs_topology(cluster, ranks, n=n, stride=stride)

    state = every(tp, dp * cp)
    return StageTopology(
        tp=every(1, tp),
        cp=every(tp, cp),
        heads=every(tp, ulysses),
        ring=every(tp * ulysses, cp // ulysses),
        state=state,
        ep=every(within, ep),
        expert_state=every(within * ep, dp * cp * tp // (within * ep)),
        hybrid=tuple(HybridGroups(every(tp, n), every(tp * n, dp * cp // n), state) for n in shard_ranks),
    )


def stage_borders(cluster: Cluster, position: int, *, pp: int, ranks: int, runs: int = 1) -> tuple[GroupTopology, ...]:
    """Links of the stage at a position to the one before and the one behind it; at an end of the pipeline the only one twice,
    without a pipeline none. Each stage has ``runs`` runs of ``ranks`` neighbours, all stages before the next run.
    """
    if pp == 1:
        return ()
    before, behind = max(0, position - 1), min(position, pp - 2)
    return tuple(_border(cluster, RankRuns(border * ranks, ranks, runs, pp * ranks)) for border in (before, behind))


def _border(cluster: Cluster, runs: RankRuns) -> GroupTopology:
    """The slowest link between runs of ranks and their counterparts, as many right behind each."""
    if runs.count == 1:
        return _slowest_link(cluster, first=runs.first, ranks=runs.length)
    # A run and its counterparts lie on nodes as one run of both does.
    both = RankRuns(runs.first, 2 * runs.length, runs.count, runs.leap)
    return slowest(_slowest_link(cluster, first=start, ranks=runs.length) for start in unlike_starts(cluster, both))


def _slowest_link(cluster: Cluster, *, first: int, ranks: int) -> GroupTopology:
    """The slowest link between so many ranks from ``first`` and their counterparts, as many behind them.

    Where the first and the last pair are inside a node, all are; speeds change where node groups begin.
    """
    starts = (start for start in _group_starts(cluster) if first < start < first + 2 * ranks)
    probed = {first, first + ranks - 1, *(rank for start in starts for rank in (start - ranks, start - 1, start))}
    return slowest(group_topology(cluster, n=2, stride=ranks, first=r) for r in sorted(probed) if first <= r < first + ranks)


def _group_starts(cluster: Cluster) -> Iterator[int]:
    start = 0
    for group in cluster.groups:
        yield start
        start += group.n_devices
