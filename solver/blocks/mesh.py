"""Logical mesh axes laid on ranks, and the topology of each axis.

Ranks of a training plan follow Megatron's order, tp innermost, then cp, dp, and pp outermost: a stage is a contiguous
range of ranks, and the axes that talk most are closest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, group_topology


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
    *,
    first: int,
    dp: int,
    tp: int,
    cp: int,
    ep: int = 1,
    expert_tp: int | None = None,
    ulysses: int = 1,
    shard_ranks: Sequence[int] = (),
) -> StageTopology:
    """Topologies of a stage that starts at rank ``first`` and holds dp x cp x tp ranks in Megatron's order.

    Ranks that exchange heads are inside those of a ring (its create_hierarchical_groups, sizes from inner to outer). Experts
    are laid out by themselves, the ``expert_tp`` (else tp) ranks of an expert innermost, then ep, then the ranks that share
    experts (megatron.core.parallel_state builds a second generator of ranks for them).
    """
    within = tp if expert_tp is None else expert_tp
    state = group_topology(cluster, n=dp * cp, stride=tp, first=first)
    return StageTopology(
        tp=group_topology(cluster, n=tp, stride=1, first=first),
        cp=group_topology(cluster, n=cp, stride=tp, first=first),
        heads=group_topology(cluster, n=ulysses, stride=tp, first=first),
        ring=group_topology(cluster, n=cp // ulysses, stride=tp * ulysses, first=first),
        state=state,
        ep=group_topology(cluster, n=ep, stride=within, first=first),
        expert_state=group_topology(cluster, n=dp * cp * tp // (within * ep), stride=within * ep, first=first),
        hybrid=tuple(
            HybridGroups(
                group_topology(cluster, n=n, stride=tp, first=first),
                group_topology(cluster, n=dp * cp // n, stride=tp * n, first=first),
                state,
            )
            for n in shard_ranks
        ),
    )


def stage_borders(cluster: Cluster, position: int, *, pp: int, ranks: int) -> tuple[GroupTopology, ...]:
    """Links of the stage at a position to the one before and the one behind it, of ``ranks`` each; at an end of the pipeline
    the only one twice, without a pipeline none."""
    if pp == 1:
        return ()
    before, behind = max(0, position - 1), min(position, pp - 2)
    return tuple(_slowest_link(cluster, first=border * ranks, ranks=ranks) for border in (before, behind))


def _slowest_link(cluster: Cluster, *, first: int, ranks: int) -> GroupTopology:
    """The slowest link between so many ranks from ``first`` and their counterparts, as many behind them.

    Where the first and the last pair are inside a node, all are; speeds change where node groups begin.
    """
    starts = (start for start in _group_starts(cluster) if first < start < first + 2 * ranks)
    probed = {first, first + ranks - 1, *(rank for start in starts for rank in (start - ranks, start - 1, start))}
    links = [group_topology(cluster, n=2, stride=ranks, first=r) for r in sorted(probed) if first <= r < first + ranks]
    return min(links, key=lambda link: (not link.spans_nodes, link.inter_bytes_per_s, link.intra.bytes_per_s))


def _group_starts(cluster: Cluster) -> Iterator[int]:
    start = 0
    for group in cluster.groups:
        yield start
        start += group.n_devices
