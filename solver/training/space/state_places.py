"""Where training state lies, and whose it is: optimizers, ZeRO stages, ranks that shard and shares in host memory, each as far
as the search's launcher has settings for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, NOTHING_OFFLOADED, Offload, Optimizer, Tier
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.implementation import StateBuffers
from meshwright.costmodels.pipeline import Schedule, n_copies
from meshwright.solver.blocks.tp_strategies import Spec
from meshwright.solver.problem.choices import Gradients, Space, TpOverlap
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.launchers.trainers import HostState
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.adapters import zero_stages_beside
from meshwright.solver.training.space.implementation import implementation_of


class StateDegrees(Protocol):
    """Degrees of a mesh that state depends on."""

    @property
    def dp(self) -> int:
        """Degree of data parallelism."""
        ...

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        ...

    @property
    def cp(self) -> int:
        """Degree of context parallelism."""
        ...

    @property
    def pp(self) -> int:
        """Degree of pipeline parallelism."""
        ...

    @property
    def spreads_experts(self) -> bool:
        """True if fewer ranks hold an expert alike than all else."""
        ...

    @property
    def has_copies(self) -> bool:
        """True if ranks hold the same weights, if only of experts."""
        ...


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where training state and saved activations lie: ZeRO stage, ranks that shard, shares in host memory; whose states they
    are: of ``optimizer``, None for the workload's; and how long gradients live."""

    zero_stage: int
    shard_ranks: int | None = None
    offload: Offload = NOTHING_OFFLOADED
    optimizer: Optimizer | None = None
    gradients: Gradients = Gradients.KEPT

    def runs(self, n_microbatches: int) -> bool:
        """Return True if a step of so many micro-batches can run so: gradients that are released can't be summed over
        several."""
        return self.gradients is Gradients.KEPT or n_microbatches == 1

    def suits(self, schedule: Schedule) -> bool:
        """Return True if gradients are where the schedule wants them: ranks that hold the same part of the model sum theirs."""
        return not self.offload.gradients or n_copies(schedule) == 1


def optimizer_choices(search: Search, workload: TrainingWorkload) -> tuple[Optimizer | None, ...]:
    """Optimizers that may be chosen, None for the workload's own; those that the launcher has settings for.

    Raises WorkloadError where the launcher has none of those that the request names.
    """
    free = search.space is Space.FREE
    asked = search.optimizers or (workload.optimizer,)
    able = [one for one in Optimizer if one in asked and (free or one in TRAINERS[search.launcher].optimizers)]
    own = [None] if workload.optimizer in able else []
    others = [one for one in able if one is not workload.optimizer]
    if not own and not others:
        raise WorkloadError(
            "the launcher has none of these optimizers",
            given=", ".join(asked),
            allowed=", ".join(sorted(TRAINERS[search.launcher].optimizers)),
        )
    return (*own, *others)


SHARDS_STATE = frozenset({1, 2, 3})
"""The ZeRO stages that shard state, among all of dp x cp or within groups of its ranks."""


def gradient_choices(search: Search) -> tuple[Gradients, ...]:
    """Return the lifetimes that gradients may have; raises WorkloadError where the request wants them released and its launcher
    can't."""
    asked = tuple(one for one in Gradients if one in (search.gradients or (Gradients.KEPT,)))
    had = frozenset(Gradients) if search.space is Space.FREE else TRAINERS[search.launcher].gradients
    left = tuple(one for one in asked if one in had)
    if not left:
        raise WorkloadError(
            "the launcher can't release gradients layer by layer",
            given=search.launcher.value,
            allowed="space: free, or gradients: [kept]",
        )
    return left


def refuse_shard_ranks_without_groups(search: Search) -> None:
    """Raise WorkloadError for numbers of ranks that shard where no ZeRO stage that the request names shards within groups."""
    stages = SHARDS_STATE if search.system else stages_within_groups(search)
    if search.shard_ranks and search.zero_stages and stages.isdisjoint(search.zero_stages):
        where = "" if search.space is Space.FREE else f"{search.launcher.value}: "
        raise WorkloadError(
            f"{where}none of these ZeRO stages shards within groups of the dp x cp ranks",
            given=f"search.shard_ranks {list(search.shard_ranks)} beside zero_stages {list(search.zero_stages)}",
            allowed=f"zero_stages with one of {', '.join(str(stage) for stage in sorted(stages))}",
            remedy="leave search.shard_ranks out: state is then sharded among all of dp x cp",
        )


def stages_within_groups(search: Search) -> frozenset[int]:
    """Return the ZeRO stages that may shard within groups of the dp x cp ranks: all that shard, or the launcher's; below 3
    where the request names numbers of ranks."""
    rules = TRAINERS.get(search.launcher)
    if search.system or (search.space is Space.LAUNCHABLE and rules is None):
        return frozenset()
    stages = SHARDS_STATE if search.space is Space.FREE or rules is None else rules.zero_within_groups
    return stages if search.shard_ranks else stages & {MAX_ZERO_STAGE}


def state_places(
    mesh: StateDegrees, request: TrainingRequest, search: Search, chosen: Optimizer | None
) -> Iterator[StatePlace]:
    """ZeRO stages with what may be said beside each: ranks that shard, and shares in host memory."""
    workload, cluster = request.workload, request.cluster
    states, weights = (
        _shares_and_tiers(shares, tiers)
        for shares, tiers in (
            (search.offload_optimizer, search.offload_optimizer_to),
            (search.offload_weights, search.offload_weights_to),
        )
    )
    activations, summed = (sorted({*shares} or {0.0}) for shares in (search.offload_activations, search.offload_gradients))
    offloads = tuple(
        Offload(optimizer, kept, weight, gradient, optimizer_to, weights_to)
        for (optimizer, optimizer_to), kept, (weight, weights_to), gradient in itertools.product(
            states, activations, weights, summed
        )
    )
    for zero_stage in _zero_stages(mesh, workload, search, chosen or workload.optimizer):
        if chosen is not None and not _small_moments_fit(search, zero_stage if mesh.dp * mesh.cp > 1 else None, chosen):
            continue
        shards = zero_stage in SHARDS_STATE and mesh.dp * mesh.cp > 1
        for shard_ranks in (None, *(hybrid_ranks(mesh, search, zero_stage) if shards else ())):
            if shards and not allowed(shard_ranks or mesh.dp * mesh.cp, search.shard_ranks):
                continue
            if not _lies_on_mesh(mesh, request, search, zero_stage, shard_ranks):
                continue
            for offload in offloads:
                if offload.on_drives and not has_drives(cluster):
                    continue
                if offload.optimizer and (chosen or workload.optimizer) is Optimizer.MUON:
                    continue  # hosts are too slow for its products of matrices
                of_ranks = zero_stage if mesh.dp * mesh.cp > 1 else None
                if not (may_move(of_ranks, shard_ranks, offload) and _offload_expressible(search, of_ranks, offload)):
                    continue
                if shard_ranks is not None and not (offload.is_nothing or _offloads_within_groups(search)):
                    continue
                for gradients in gradient_choices(search):
                    # What the host updates waits for it, and what lies there is not released.
                    if gradients is Gradients.KEPT or not (offload.optimizer or offload.gradients):
                        yield StatePlace(zero_stage, shard_ranks, offload, chosen, gradients)


def _shares_and_tiers(shares: tuple[float, ...], tiers: tuple[Tier, ...]) -> list[tuple[float, Tier]]:
    """Shares with the places where they may lie; of nothing there is one place."""
    named = [tier for tier in Tier if tier in (tiers or (Tier.HOST,))]
    return [(share, tier) for share in sorted({*shares} or {0.0}) for tier in (named if share else [Tier.HOST])]


def hybrid_ranks(mesh: StateDegrees, search: Search, zero_stage: int | None = None) -> tuple[int, ...]:
    """Numbers of neighbours within which a ZeRO stage (None: any) may shard, fewer than dp x cp; the cp ranks of a sequence
    stay together.

    Spread experts are shared by other ranks than all else, so they go without.
    """
    stages = stages_within_groups(search)
    if mesh.spreads_experts or not stages or zero_stage not in (None, *stages):
        return ()
    return tuple(n for n in divisors(mesh.dp * mesh.cp) if 1 < n < mesh.dp * mesh.cp and n % mesh.cp == 0)


def _small_moments_fit(search: Search, zero_stage: int | None, optimizer: Optimizer) -> bool:
    """Return True if the launcher keeps moments of this optimizer's width at a ZeRO stage, None for the states of one rank."""
    rules = TRAINERS.get(search.launcher)
    if search.space is Space.FREE or rules is None or zero_stage != 0:
        return True
    return optimizer not in rules.optimizers_when_sharded


def has_drives(cluster: Cluster) -> bool:
    """Return True if every node has NVMe drives for state."""
    return all(group.node.nvme is not None for group in cluster.groups)


def may_move(zero_stage: int | None, shard_ranks: int | None, offload: Offload) -> bool:
    """Return True if shares of weights and gradients may lie on the host. They may where a device has no more of them than it
    updates itself (ZeRO-3, of gradients ZeRO-2, or one rank, ``zero_stage`` None), and all its ranks' sums are made before they
    go."""
    whole_shards = zero_stage in (None, MAX_ZERO_STAGE)
    own_sums = whole_shards or zero_stage == MAX_ZERO_STAGE - 1
    return (not offload.weights or whole_shards) and (not offload.gradients or (own_sums and shard_ranks is None))


def _offload_expressible(search: Search, zero_stage: int | None, offload: Offload) -> bool:
    """Return True if the search's launcher can keep these shares in host memory: the optimizer's where it is sharded, which
    states of one rank (``zero_stage`` None) count as."""
    if search.space is Space.FREE or offload.is_nothing:
        return True
    if offload.activations or zero_stage == 0:
        return False
    match TRAINERS[search.launcher].host_state:
        case HostState.NONE:
            return False
        case HostState.SHARES_OF_THE_OPTIMIZER:
            return offload.weights == offload.gradients == 0.0 and not offload.on_drives
        case HostState.ZERO_OFFLOAD:
            return (
                (offload.optimizer in (0.0, 1.0) or zero_stage == MAX_ZERO_STAGE)
                and (not offload.on_drives or (zero_stage == MAX_ZERO_STAGE and offload.optimizer in (0.0, 1.0)))
                and (not offload.weights or (offload.weights == 1.0 and zero_stage == MAX_ZERO_STAGE))
                and (not offload.gradients or (offload.gradients == offload.optimizer and zero_stage is not None))
            )
        case HostState.ALL_OR_NOTHING:
            everything = offload.optimizer == offload.weights == offload.gradients == 1.0
            return zero_stage == MAX_ZERO_STAGE and everything and not offload.on_drives


def _offloads_within_groups(search: Search) -> bool:
    """Return True if the search's launcher may keep state on the host that is sharded within groups of ranks."""
    return search.space is Space.FREE or TRAINERS[search.launcher].offloads_within_groups


def _lies_on_mesh(
    mesh: StateDegrees, request: TrainingRequest, search: Search, zero_stage: int, shard_ranks: int | None
) -> bool:
    """Return True if arrays are cut evenly where the launcher lays them over one mesh of all ranks: ranks of a sequence and
    those that shard weights fill nodes or divide them, and they, like tp, divide the model's width."""
    if search.space is Space.FREE or not TRAINERS[search.launcher].arrays_over_mesh:
        return True
    of_node = request.cluster.groups[0].node.host_devices
    shards = (shard_ranks or mesh.dp * mesh.cp) if zero_stage == MAX_ZERO_STAGE else 1
    groups = (mesh.tp, mesh.tp * mesh.cp, mesh.tp * shards)
    width = request.model.dims.get(HIDDEN, 0)
    even = width % mesh.tp == 0 and width % shards == 0
    return even and all(of_node % ranks == 0 or ranks % of_node == 0 for ranks in groups)


def _zero_stages(mesh: StateDegrees, workload: TrainingWorkload, search: Search, optimizer: Optimizer) -> Iterator[int]:
    """ZeRO stages that differ on this mesh and that the launcher can run. On one rank, whose experts no other has either, they
    do where an implementation keeps buffers under some of them: if all are open, the lowest, which has none, is enough."""
    if not mesh.has_copies:
        kept = implementation_of(workload, search).state_buffers is not StateBuffers.NONE
        stages: tuple[int, ...] = tuple(sorted(search.zero_stages)) or (0,)
        stages = stages if kept else stages[:1]
    else:
        stages = tuple(range(MAX_ZERO_STAGE + 1))
    highest, had = MAX_ZERO_STAGE, frozenset(stages)
    if search.space is Space.LAUNCHABLE:
        rules = TRAINERS[search.launcher]
        had = rules.zero_stages & rules.zero_beside_cp if mesh.cp > 1 else rules.zero_stages
        highest = min(
            rules.max_zero_with_pipeline if mesh.pp > 1 else MAX_ZERO_STAGE,
            rules.max_zero_with_muon if optimizer is Optimizer.MUON else MAX_ZERO_STAGE,
        )
    for stage in stages:
        if allowed(stage, search.zero_stages) and stage in had and stage <= highest and stage in zero_stages_beside(workload):
            yield stage


def allowed(value: int, restriction: tuple[int, ...]) -> bool:
    """Return True if a restriction, empty for none, has the value."""
    return not restriction or value in restriction


def divisors(n: int) -> list[int]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


# The ways of running gathers and scatters over tp that a candidate has.


def tp_overlaps(request: TrainingRequest, *, tp: int, cp: int, boundary: Spec) -> tuple[TpOverlap, ...]:
    """Ways that the request allows and its launcher has: chunks only under sequence parallelism, which gathers and scatters,
    and in the launchable space only over NVLink, by which a device writes into another's memory."""
    workload, search = request.workload, request.search
    if tp == 1:
        return (TpOverlap.EXPOSED,)
    allowed = search.tp_overlap or tuple(TpOverlap)
    can_cut = boundary.dim is not None and _cuts_products(request, rows=workload.seq_len // cp, tp=tp)
    return tuple(way for way in TpOverlap if way in allowed and (way is TpOverlap.EXPOSED or can_cut))


def max_zero_stage(request: TrainingRequest, overlap: TpOverlap) -> int:
    """Highest ZeRO stage beside a way of gathers and scatters."""
    if request.search.space is Space.FREE or overlap is TpOverlap.EXPOSED:
        return MAX_ZERO_STAGE
    cut = TRAINERS[request.search.launcher].cut_products
    return MAX_ZERO_STAGE if cut is None else cut.max_zero


def _cuts_products(request: TrainingRequest, *, rows: int, tp: int) -> bool:
    """Return True if the launcher cuts products over tp ranks, which have so many rows of each sequence together."""
    if request.search.space is Space.FREE:
        return True
    cut = TRAINERS[request.search.launcher].cut_products
    return cut is not None and rows % (cut.rows_a_rank * tp) == 0 and _joined_by_nvlink(request.cluster)


def _joined_by_nvlink(cluster: Cluster) -> bool:
    """Links are known by their names alone."""
    return all("nvlink" in group.node.intra.name.lower() for group in cluster.groups)
