"""Cost tables of a training candidate: for every stage position and block, time and memory under each recompute mode.

One module, because a table is made in one pass of small steps that share what is known of the request and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, group_topology
from meshwright.costmodels.cluster.rank_runs import groups_of_runs
from meshwright.costmodels.memory.training_state import (
    deepspeed_bf16_bytes,
    deepspeed_copied_gradient_bytes,
    deepspeed_zero_bytes,
    deferred_head_bytes,
    framework_overhead_bytes,
)
from meshwright.costmodels.model.dims import EXPERTS, HIDDEN, TOP_K, VOCAB
from meshwright.costmodels.model.documents import PackedAttention, SharedWork, pack_moments, packed_attention, slowest_over_mean
from meshwright.costmodels.model.experts import expert_placement
from meshwright.costmodels.model.implementation import GradientReduction, HeadGradients, Implementation, TrainedWeights
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.pipeline import PassShares, SendTiming, n_copies, slices_waiting_ratio
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.mesh import stage_borders, stage_topology
from meshwright.solver.blocks.recompute import boundary_bytes, chunk_buffer_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import COMMUNICATION, OF_MODE, Criterion
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import heed
from meshwright.solver.problem.carried_choices import StageChoices
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.constraints import fixed_stages
from meshwright.solver.problem.layer_dag import LayerDag, layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages import Pinned
from meshwright.solver.training.costs.block_costs import BlockCosts, Combinations
from meshwright.solver.training.costs.evaluate import FloatArray, Sharding, StageKind, StageParts, StageTable, max_table
from meshwright.solver.training.costs.host import HostMoves, step_host_s
from meshwright.solver.training.costs.part_borders import FirstLayers, node_index
from meshwright.solver.training.costs.state_memory import (
    SharedParameters,
    StateSync,
    TrainingState,
    adapter_parameters,
    adapter_rates,
    adapter_sync,
    state_sync,
    sync_after_backward,
    training_state,
)
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate, RecomputedLayers, padded_dims, some_layers_of
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import PLAIN, pass_shares, waiting
from meshwright.solver.training.space.sliced_sequences import has_scans, sequence_parts
from meshwright.solver.training.space.state_places import hybrid_ranks

# Settings of a training candidate: the kinds of its stages, and of their blocks the settings and shardings.


class CandidateSettings(BlockCosts):
    """Stages, settings and shardings of a request's candidates; equal ones are one object."""

    def __init__(self, request: TrainingRequest, *, implementation: Implementation | None = None):
        super().__init__(request, implementation=implementation)
        self._shardings: dict[tuple[BlockSetting, ...], Combinations] = {}
        self._kinds: dict[StageKind, StageKind] = {}
        self._settings: dict[tuple[object, ...], tuple[BlockSetting, ...]] = {}
        self._interned: dict[BlockSetting, BlockSetting] = {}
        self._kinds_of: dict[tuple[Mesh, tuple[int, ...]], tuple[StageKind, ...]] = {}

    def stage_kinds(self, candidate: Candidate) -> tuple[StageKind, ...]:
        """The kind of each stage position, first to last; equal positions share one object."""
        key = (candidate.mesh, self._shard_ranks(candidate))
        if key not in self._kinds_of:
            self._kinds_of[key] = self._stage_kinds(*key)
        return self._kinds_of[key]

    def _stage_kinds(self, mesh: Mesh, shard_ranks: tuple[int, ...]) -> tuple[StageKind, ...]:
        cluster = self.request.cluster
        per_node = cluster.groups[0].node.devices_per_node
        # Equal nodes, one network between all.
        alike = len(cluster.groups) == 1 and (cluster.nodes_per_leaf is None or cluster.oversubscription == 1.0)
        known: dict[tuple[int, bool, bool], StageKind] = {}
        kinds: list[StageKind] = []
        for position in range(mesh.pp):
            ranks = mesh.ranks_of_stage(position)
            on_nodes = (ranks.first % per_node, position == 0, position == mesh.pp - 1)
            if alike and on_nodes in known:
                kinds.append(known[on_nodes])
                continue
            groups = groups_of_runs(cluster, ranks)
            devices = tuple(dict.fromkeys(group.node.device.name for group in groups))
            by_name = {group.node.device.name: group.node.device for group in groups}
            topology = stage_topology(
                cluster,
                ranks,
                dp=mesh.dp,
                tp=mesh.tp,
                cp=mesh.cp,
                ep=mesh.ep,
                expert_tp=mesh.expert_tp,
                ulysses=mesh.ulysses,
                shard_ranks=shard_ranks,
            )
            kind = StageKind(
                tuple(by_name[name] for name in devices),
                topology,
                stage_borders(cluster, position, pp=mesh.pp, ranks=ranks.length, runs=ranks.count),
            )
            known[on_nodes] = self._kinds.setdefault(kind, kind)
            kinds.append(known[on_nodes])
            if alike and ranks.length % per_node == 0:
                # Whole nodes a run of ranks: every position is like the first.
                return tuple(kinds * mesh.pp)
        return tuple(kinds)

    def _shard_ranks(self, candidate: Candidate) -> tuple[int, ...]:
        """Numbers of ranks within which candidates of this one's family may shard, its own among them."""
        known = hybrid_ranks(candidate.mesh, self.request.search)
        own = () if candidate.shard_ranks is None else (candidate.shard_ranks,)
        return tuple(sorted({*known, *own}))

    def settings(self, candidate: Candidate, kind: StageKind) -> tuple[BlockSetting, ...]:
        """The block setting for each device of a stage, one object for equal ones."""
        mesh, slices = candidate.mesh, candidate.pipelining.slices
        key = (
            *(kind, candidate.microbatch, candidate.boundary, candidate.tp_overlap, slices),
            *(mesh.gathers_keys, candidate.paired, candidate.choices.recompute_modules),
        )
        if key not in self._settings:
            made = self._settings_of(candidate, kind)
            self._settings[key] = tuple(self._interned.setdefault(setting, setting) for setting in made)
        return self._settings[key]

    def _settings_of(self, candidate: Candidate, kind: StageKind) -> Iterator[BlockSetting]:
        return (
            BlockSetting(
                device=device,
                tp_topology=kind.topology.tp,
                ring_topology=kind.topology.ring,
                dtype=self.workload.precision,
                gradient_dtype=self.workload.gradient_dtype,
                microbatch=candidate.microbatch,
                seq_len=self.workload.seq_len,
                boundary=candidate.boundary,
                space=self.request.search.space,
                padded=padded_dims(self.request.search),
                implementation=self.implementation_of(candidate.tp_overlap),
                ep_topology=kind.topology.ep if kind.topology.ep.n > 1 else None,
                heads_topology=kind.topology.heads if kind.topology.heads.n > 1 else None,
                cp_topology=kind.topology.cp if kind.topology.cp.n > 1 and self._has_scans else None,
                sequence_parts=sequence_parts(self.model),
                dispatch=self.workload.dispatch,
                dispatch_format=self.workload.dispatch_format,
                paired=candidate.paired,
                expert_tp=candidate.mesh.expert_tp,
                recipe=self.workload.matmul,
                saved=self.workload.saved_activations,
                expert_load=self._expert_load(kind.topology.ep.n),
                slices=candidate.pipelining.slices,
                adapter=self.workload.adapter,
                documents=self.workload.documents,
                gathers_keys=candidate.mesh.gathers_keys,
                constraints=self.request.search.constraints,
                modules=candidate.choices.modules,
                splits=self.request.search.operator_splits,
            )
            for device in kind.devices
        )

    @cached_property
    def _has_scans(self) -> bool:
        return has_scans(self.model)

    def _expert_load(self, ep: int) -> float:
        """Rows of the ep rank with the most over the mean."""
        dims = self.model.dims
        if ep == 1 or EXPERTS not in dims:
            return 1.0
        return expert_placement(self.workload.experts, experts=dims[EXPERTS], top_k=dims.get(TOP_K, 1), ep=ep).skew

    def shardings(self, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Iterator[Sharding]:
        """Every combination of one Pareto-optimal sharding a block, in canonical order; none where a dim does not divide."""
        for sharding in self.combinations_of(candidate, kinds):
            heed(self._stop)
            yield sharding

    def combinations_of(self, candidate: Candidate, kinds: tuple[StageKind, ...]) -> Combinations:
        """The same, listed only as far as they are asked for.

        Stages of different kinds run the same shardings, so a block's frontier is over its costs on all of them.
        """
        settings = tuple(dict.fromkeys(s for kind in dict.fromkeys(kinds) for s in self.settings(candidate, kind)))
        if settings not in self._shardings:
            self._shardings[settings] = self.combinations(settings)
        return self._shardings[settings]


# Costs of blocks under choices of strategies, a row each: time and memory in a place of state, by recompute mode.

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowCosts:
    """Costs of blocks under choices of strategies on one device: a row each, by [mode, row] what depends on the recompute mode.

    As in `StageTable`, but what a step adds to the first layer of a stage is in ``first_bucket_s`` alone. ``parameters`` are
    those of a row on its tp rank; ``moves_s`` of the time moves ``moved_bytes`` to the host and back.
    """

    time_s: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    first_bucket_s: FloatArray
    parameters: FloatArray
    moves_s: FloatArray
    moved_bytes: FloatArray
    capacity_bytes: float
    usable_bytes: float
    overhead_bytes: float
    law: MemoryLaw
    sync: StateSync
    state: TrainingState


class RowCosting(CandidateSettings):
    """Costs of rows; those of `CandidateSettings` are of choices alone, whatever the place of state."""

    def row_costs(
        self,
        candidate: Candidate,
        kind: StageKind,
        setting: BlockSetting,
        costs: FloatArray,
        *,
        beside: FloatArray,
        of_row: IntArray,
        copies: FloatArray,
        mean_stage: Callable[[FloatArray], float] | None,
    ) -> RowCosts:
        """Costs of blocks under choices of strategies, a row each: ``of_row`` says of which distinct block, ``costs`` [row,
        criterion] what the choice takes of a micro-batch, ``beside`` of its first token slice.

        Rows do not depend on one another but by ``mean_stage``, which tells what a mean stage has of what rows have. Where it
        is None, no row pays for gradients that all travel after the backward pass.
        """
        workload, implementation = self.workload, setting.implementation
        shared = _shared_parameters(costs, kind, candidate.shard_ranks)
        trained = shared if implementation.trained is TrainedWeights.ALL else ()
        travelling = shared if candidate.zero_stage == 3 else trained
        if workload.adapter is not None:
            names = [self.block_names[block] for block in of_row]
            rates = adapter_rates(self.request, names)
            sync = adapter_sync(
                candidate.zero_stage,
                shared,
                adapter_parameters(shared, rates),
                beside,
                workload,
                spared_bytes=rates.spared_bytes,
            )
        elif implementation.reduction is GradientReduction.OVERLAPPED or candidate.zero_stage > 1 or not travelling:
            sync = state_sync(candidate.zero_stage, travelling, beside, workload)
        elif mean_stage is None:
            sync = state_sync(candidate.zero_stage, (), beside, workload)
        else:
            sync = sync_after_backward(
                candidate.zero_stage,
                travelling,
                workload,
                reduction=implementation.reduction,
                mean_stage=mean_stage,
            )
        waits = self.document_waits(candidate)
        if waits:
            sync = replace(sync, exposed_microbatch_s=sync.exposed_microbatch_s + waits * costs[:, Criterion.MASKED_S])
        state = training_state(
            self.request,
            candidate,
            setting.device,
            blocks=[self.block_names[block] for block in of_row],
            shared=shared,
            copies=copies,
            implementation=implementation,
        )
        time_s, activation, transient = self._by_mode(candidate.table_modes, setting, costs, sync, of_row, waits=waits)
        moved = candidate.offload.activations * activation * self.recomputable[of_row]
        moves = HostMoves(
            weights_bytes=state.away_weights_bytes,
            gradients_bytes=state.away_gradients_bytes,
            activations_bytes=moved,
            sums_gradients=candidate.n_microbatches > 1,
            weights_read_s=state.weights_read_s,
        )
        forward_s = costs[:, Criterion.FORWARD_S]
        moves_s = np.zeros_like(time_s)
        if not candidate.offload.is_nothing:
            moves_s = moves.exposed_s(setting.device, forward_s=forward_s, backward_s=time_s - forward_s)
        # What a layer's backward pass reads is back on the device, and what the next one reads is on its way.
        time_s, activation = time_s + moves_s, activation - moved
        law = implementation.memory
        return RowCosts(
            time_s=time_s,
            activation_bytes=law.activations * activation,
            transient_bytes=law.transients * (transient + moves.at_once_bytes + state.passing_bytes),
            static_bytes=state.device_bytes + law.activations * costs[:, Criterion.KEY_VALUE_BYTES],
            extra_s=sync.exposed_step_s + state.update_s + costs[:, Criterion.SYNC_S],
            first_bucket_s=sync.hidden_step_s + step_host_s(setting.device, implementation),
            parameters=np.asarray(np.sum([share.parameters for share in shared], axis=0), np.float64),
            moves_s=moves_s,
            moved_bytes=moved,
            capacity_bytes=self.capacity_bytes(candidate, setting),
            usable_bytes=self._usable_bytes(setting),
            overhead_bytes=self._overhead_bytes(candidate, setting),
            law=law,
            sync=sync,
            state=state,
        )

    def document_waits(self, candidate: Candidate) -> float:
        """Return the attention that ranks with fewer pairs wait for in a micro-batch, over their own; 0 without documents.

        Where weights or gradients travel in every micro-batch (ZeRO 2 and 3), or tokens do to ranks of other experts,
        ranks wait for one another in each, elsewhere once a step.
        """
        attention = self._packed_attention
        if attention is None:
            return 0.0
        mesh = candidate.mesh
        shared = SharedWork(
            ranks=mesh.dp,
            microbatches=candidate.n_microbatches,
            size=candidate.microbatch,
            stages=mesh.pp,
            in_step=candidate.zero_stage >= 2 or mesh.ep > 1,
        )
        return slowest_over_mean(pack_moments(attention), shared) - 1.0

    @cached_property
    def _packed_attention(self) -> PackedAttention | None:
        packed = self.workload.documents
        if packed is None:
            return None
        return packed_attention(packed, [self.model.block(name).operators for name in self.model.layers], self.model.dims)

    def bare_rows(
        self, modes: Sequence[Recompute], setting: BlockSetting, costs: FloatArray, of_row: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the time, kept and transient bytes of `row_costs` under some modes, without what places of state add."""
        nothing = state_sync(0, (), costs, self.workload)
        time_s, kept, transient = self._by_mode(modes, setting, costs, nothing, of_row)
        law = setting.implementation.memory
        return time_s, law.activations * kept, law.transients * transient

    def state_bytes_per_parameter(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> FloatArray:
        """``[group of ranks, block]`` bytes on a device for each parameter that ranks of the group share."""
        names, found = self.block_names, []
        for group in (Criterion.PARAMETERS, Criterion.EXPERT_PARAMETERS):
            one = np.zeros((len(names), len(Criterion)))
            one[:, group] = 1.0
            state = training_state(
                self.request,
                candidate,
                setting.device,
                blocks=names,
                shared=_shared_parameters(one, kind, candidate.shard_ranks),
                copies=np.zeros(len(names)),
                implementation=setting.implementation,
            )
            found.append(state.device_bytes)
        return np.array(found)

    def capacity_bytes(self, candidate: Candidate, setting: BlockSetting) -> float:
        """Return the bytes of tensors that fit a device (`StageTable.capacity_bytes`)."""
        return setting.implementation.memory.counted_bytes(
            self._usable_bytes(setting), overhead_bytes=self._overhead_bytes(candidate, setting), risk=self.request.search.risk
        )

    def _usable_bytes(self, setting: BlockSetting) -> float:
        return setting.device.memory_bytes * (1.0 - self.request.cluster.memory_reserve)

    def _overhead_bytes(self, candidate: Candidate, setting: BlockSetting) -> float:
        return framework_overhead_bytes(
            communicators=_communicators(candidate),
            communicator_bytes=setting.device.communicator_bytes,
            context_bytes=setting.implementation.context_bytes,
        ) + chunk_buffer_bytes(self.model, setting)

    def _by_mode(
        self,
        modes: Sequence[Recompute],
        setting: BlockSetting,
        costs: FloatArray,
        sync: StateSync,
        of_row: IntArray,
        *,
        waits: float = 0.0,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time, kept activations and transient memory: [mode, row], of the distinct blocks ``of_row``."""
        entry = boundary_bytes(self.model, setting)
        of_blocks, working_of_blocks = self.block_memory(setting)
        held_inputs = {mode: held[of_row] for mode, held in of_blocks.items()}
        working, recomputable = working_of_blocks[of_row], self.recomputable[of_row]
        elements = entry / setting.dtype.size_bytes
        at_once = setting.tokens_at_once / setting.seq_len
        saved = costs[:, Criterion.SAVED_BYTES] + elements * held_inputs[Recompute.NONE]
        transient = costs[:, Criterion.TRANSIENT_BYTES] + sync.gathered_bytes + working
        base = costs[:, Criterion.TIME_S] + sync.exposed_microbatch_s
        time_s, held, live = [], [], []
        for mode in modes:
            match mode:
                case Recompute.NONE:
                    stays = saved
                case Recompute.FINE_GRAINED | Recompute.SELECTIVE:
                    partly = costs[:, OF_MODE[mode][1]]
                    stays = np.where(recomputable, partly + elements * held_inputs[mode], saved)
                case Recompute.FULL:
                    # Keys and values of earlier token slices are not made again for each slice.
                    stays = np.where(recomputable, entry + costs[:, Criterion.KEY_VALUE_BYTES], saved)
            rerun_s = self.rerun_s(mode, costs, of_row)
            if waits and mode in (Recompute.SELECTIVE, Recompute.FULL):
                # Ranks whose attention takes longer run it longer again.
                rerun_s = rerun_s + np.where(recomputable, waits * costs[:, Criterion.MASKED_FORWARD_S], 0.0)
            time_s.append(base + rerun_s)
            held.append(stays)
            live.append(transient + at_once * np.maximum(saved - stays, 0.0))
        return np.array(time_s), np.array(held), np.array(live)


def _shared_parameters(costs: FloatArray, kind: StageKind, shard_ranks: int | None) -> tuple[SharedParameters, ...]:
    """Parameters by the group of ranks that hold them alike: dp x cp, and those of spread experts."""
    if shard_ranks is not None:
        groups = kind.topology.hybrid_of(shard_ranks)
        return (SharedParameters(costs[:, Criterion.PARAMETERS], groups.shards, groups),)
    return (
        SharedParameters(costs[:, Criterion.PARAMETERS], kind.topology.state),
        SharedParameters(costs[:, Criterion.EXPERT_PARAMETERS], kind.topology.expert_state),
    )


def _communicators(candidate: Candidate) -> int:
    """Process groups with their own buffers: one for each axis longer than 1, and PyTorch's default group of all ranks, in
    which launchers wait for one another at the start (Megatron-LM's initialize_megatron, DeepSpeed's init_distributed)."""
    mesh = candidate.mesh
    expert_groups = (mesh.ep, mesh.expert_places // mesh.ep) if mesh.spreads_experts else ()
    state = mesh.dp * mesh.cp
    state_groups = (state,) if candidate.shard_ranks is None else (candidate.shard_ranks, state // candidate.shard_ranks)
    # Both levels of context parallelism have groups of their own where there are two.
    cp_groups = (mesh.ulysses, mesh.ring) if 1 < mesh.ulysses < mesh.cp else ()
    groups = (mesh.stage_devices * mesh.pp, mesh.tp, mesh.cp, *cp_groups, *state_groups, mesh.pp, *expert_groups)
    return sum(degree > 1 for degree in groups)


_WITHOUT_SCHEDULE = attrgetter(
    *(each.name for each in fields(Candidate) if each.name != "pipelining"), "pipelining.slices", "paired"
)
"""The fields that tables of 1F1B depend on: all of a candidate but its schedule, of which the slices and the share of pairs."""


class TrainingCosts(RowCosting):
    """Costs of a request's candidates, stage by stage.

    ``implementation`` overrides how the request's launcher runs a layer.
    """

    def __init__(self, request: TrainingRequest, *, implementation: Implementation | None = None):
        super().__init__(request, implementation=implementation)
        self._insides: dict[StageKind, StageKind] = {}
        self._shares: dict[tuple[Recompute, tuple[str, ...]], PassShares] = {}
        self._unscheduled: tuple[object, dict[tuple[StageKind, Sharding, int], StageTable]] = (None, {})

    def with_memory_reserve(self, reserve: float) -> TrainingCosts:
        """The same costs with another share of every device's memory kept free."""
        other = copy(self)
        other.request = replace(self.request, cluster=replace(self.request.cluster, memory_reserve=reserve))
        other._unscheduled = (None, {})
        return other

    def with_batch(self, global_batch: int) -> TrainingCosts:
        """The same costs for another global batch, on which none of them depends."""
        other = copy(self)
        other.workload = replace(self.workload, global_batch=global_batch)
        other.request = replace(self.request, workload=other.workload)
        return other

    def on(self, cluster: Cluster) -> TrainingCosts:
        """The same costs on another cluster; what blocks take in settings that both have is worked out once."""
        other = copy(self)
        other.request = replace(self.request, cluster=cluster)
        other._kinds_of, other._unscheduled = {}, (None, {})
        other.__dict__.pop("least_step_host_s", None)
        return other

    @cached_property
    def pinned(self) -> tuple[Pinned, ...]:
        """Layers that the request wants on a stage that it names."""
        return pinned_layers(self.request)

    @cached_property
    def dag(self) -> LayerDag | None:
        """The graph of which layer reads which, of a model that branches; None for a chain."""
        return None if self.model.is_chain else layer_dag(self.model)

    def table(self, candidate: Candidate, kind: StageKind, sharding: Sharding) -> StageTable:
        """Cost table of one stage kind under a sharding; the slowest device decides each time.

        Tables of candidates that differ in schedule only share all arrays, as do those that recompute no layers of a pipeline's
        parts with those that recompute some.
        """
        shared = candidate
        if candidate.recompute == SOME_LAYERS[:1] and candidate.mesh.pp > 1 and self._recomputes_some:
            shared = candidate.of_first_layers()
        rest = _WITHOUT_SCHEDULE(shared)
        if self._unscheduled[0] != rest:
            self._unscheduled = (rest, {})
        known = self._unscheduled[1]
        key = (kind, sharding, len(candidate.recompute))
        if key not in known:
            heed(self._stop)
            inside = (self.inside(kind), sharding, len(candidate.recompute))
            if inside not in known:
                both = (self.inside(kind), sharding, len(shared.recompute))
                if both not in known:
                    made = [self._device_table(shared, kind, one, sharding) for one in self.settings(candidate, kind)]
                    known[both] = made[0] if len(made) == 1 else max_table(made)
                known[inside] = known[both] if shared is candidate else known[both].of_first_mode()
            known[key] = replace(known[inside], boundary_s=self.sends_s(candidate, kind))
        return self._scheduled(known[key], candidate, kind)

    def hidden_sends_s(self, candidate: Candidate, kind: StageKind) -> float:
        """Seconds of a micro-batch's sends that a stage hides under the passes of other chunks.

        Interleaved 1F1B receives under the pass of another chunk (Megatron-LM's overlap_p2p_comm, on by default): its steady
        sends show only beyond a mean stage's compute; those that fill and drain the pipeline show in full. That compute is the
        least of any sharding, so that no plan gains by slower operators.
        """
        if candidate.pipelining.traits.sends is not SendTiming.UNDER_OTHER_CHUNKS:
            return 0.0
        least = [self.fastest_layers_s(setting, candidate.recompute) for setting in self.settings(candidate, kind)]
        return max((float(layer_s.sum()) for layer_s in least if layer_s is not None), default=0.0) / candidate.mesh.pp

    def sends_s(self, candidate: Candidate, kind: StageKind) -> float:
        """Seconds of sending to the next stage and back, each micro-batch, by the slowest device, none of it hidden."""
        settings = self.settings(candidate, kind)
        return max(sum(self.boundary_s(candidate, kind, part) for part in setting.parts) for setting in settings)

    def inside(self, kind: StageKind) -> StageKind:
        """The kind without its borders, one object for equal ones: stages often differ in the links there alone."""
        if kind not in self._insides:
            inside = replace(kind, borders=())
            self._insides[kind] = self._kinds.setdefault(inside, inside)
        return self._insides[kind]

    def stage_tables(self, candidate: Candidate, sharding: Sharding, kinds: tuple[StageKind, ...]) -> tuple[StageTable, ...]:
        """Cost table of each stage position; equal positions share one object, as `stage_kinds` gives them one."""
        made = {kind: self.table(candidate, kind, sharding) for kind in dict.fromkeys(kinds)}
        return tuple(made[kind] for kind in kinds)

    def _scheduled(self, table: StageTable, candidate: Candidate, kind: StageKind) -> StageTable:
        """A table of 1F1B under the candidate's schedule: its sends, its wait, and sums over copies of a part."""
        choice, mesh = candidate.pipelining, candidate.mesh
        if choice == PLAIN:
            return table
        if table.slices is not None:
            ratio = slices_waiting_ratio(choice.schedule, mesh.pp, candidate.n_microbatches, table.slices)
            return replace(table, waiting=ratio)
        waits = self.waiting_of(candidate)
        extra_s, step_s, sends_s = table.extra_s, table.step_s, table.boundary_s * choice.chunks
        parts = table.parts
        if choice.traits.sends is SendTiming.UNDER_OTHER_CHUNKS:
            sends_s = max(0.0, sends_s - self.hidden_sends_s(candidate, kind))
            fill_s = (mesh.pp - 1) * table.boundary_s
            extra_s, step_s = _plus_first(extra_s, fill_s), step_s + fill_s
            parts = replace(parts, fill_s=fill_s)
        beside_s = 0.0
        if choice.traits.sends is SendTiming.UNDER_OTHER_MICROBATCHES:
            # What a stage waits for is on its way while it runs micro-batches that it took on more than 1F1B does.
            sends_s, beside_s = 0.0, sends_s
        if n_copies(choice.schedule) > 1:
            # Both ranks that hold a part of the model sum its gradients, each those that ZeRO leaves it.
            shards = candidate.shard_ranks or kind.topology.state.n
            held = table.parts.gradients_bytes / (shards if candidate.zero_stage == 1 else 1)
            link = group_topology(self.request.cluster, n=n_copies(choice.schedule), stride=mesh.between_copies)
            extra_s = extra_s + np.asarray(collective_s(Collective.ALL_REDUCE, held, link), np.float64)
        return replace(table, extra_s=extra_s, step_s=step_s, boundary_s=sends_s, waiting=waits, beside_s=beside_s, parts=parts)

    def waiting_of(self, candidate: Candidate) -> float:
        """Return the wait of a candidate's schedule of whole sequences over that of 1F1B."""
        shares = self._pass_shares(candidate.recompute[0], candidate.choices.modules)
        return waiting(candidate.pipelining, pp=candidate.mesh.pp, n_microbatches=candidate.n_microbatches, shares=shares)

    def _pass_shares(self, mode: Recompute, modules: tuple[str, ...]) -> PassShares:
        key = (mode, modules)
        if key not in self._shares:
            self._shares[key] = pass_shares(
                self.model,
                seq_len=self.workload.seq_len,
                recompute=mode,
                documents=self.workload.documents,
                modules=modules,
            )
        return self._shares[key]

    def _device_table(self, candidate: Candidate, kind: StageKind, setting: BlockSetting, sharding: Sharding) -> StageTable:
        costs = self.sharded_costs(setting, sharding)
        # Of token slices the first enters each layer first, and leaves it last.
        beside = costs if not setting.slices else self.sharded_costs(setting.parts[0], sharding)
        rows = self.row_costs(
            candidate,
            kind,
            setting,
            costs,
            beside=beside,
            of_row=np.arange(len(self.block_names)),
            copies=self._tied_copies(candidate, setting, sharding),
            mean_stage=lambda of_block: float(of_block[self.layer_block].sum()) / candidate.mesh.pp,
        )
        sync, state, law = rows.sync, rows.state, rows.law
        slice_gradients = costs[:, Criterion.KEY_VALUE_BYTES]
        held_parameters = rows.parameters[self.layer_block]
        beside_state = bytes_beside_state(self.request, candidate, setting.implementation, held_parameters)
        layer = self.layer_block

        first = self.first_layers(candidate.choices) if candidate.mesh.pp == 1 else None

        def of_layers(by_mode: FloatArray) -> FloatArray:
            return self._of_layers(by_mode, None if first is None else first.number)

        first_bucket_s = rows.first_bucket_s[layer]
        return StageTable(
            time_s=of_layers(rows.time_s),
            activation_bytes=of_layers(rows.activation_bytes),
            transient_bytes=of_layers(rows.transient_bytes),
            static_bytes=rows.static_bytes[layer] + beside_state,
            extra_s=_plus_first(rows.extra_s[layer], float(first_bucket_s[0])),
            boundary_s=0.0,
            step_s=float(first_bucket_s[1:-1].max() if len(layer) > 2 else first_bucket_s.max()),
            capacity_bytes=rows.capacity_bytes,
            usable_bytes=rows.usable_bytes,
            law=law,
            parts=StageParts(
                weights_bytes=state.weights_bytes[layer],
                gradients_bytes=state.gradients_bytes[layer],
                optimizer_bytes=state.optimizer_bytes[layer],
                forward_s=costs[layer, Criterion.FORWARD_S],
                compute_s=(costs[:, Criterion.TIME_S] - costs[:, COMMUNICATION].sum(axis=1))[layer],
                tp_comm_s=costs[layer, Criterion.TP_COMM_S],
                cp_comm_s=costs[layer, Criterion.CP_COMM_S],
                dp_comm_s=sync.exposed_microbatch_s[layer],
                ep_comm_s=costs[layer, Criterion.EP_COMM_S],
                optimizer_s=state.update_s[layer],
                step_host_s=step_host_s(setting.device, setting.implementation),
                first_bucket_s=first_bucket_s,
                overhead_bytes=rows.overhead_bytes,
                moves_s=of_layers(rows.moves_s),
                host_static_bytes=state.host_bytes[layer],
                host_activation_bytes=of_layers(rows.moved_bytes),
                host_buffer_bytes=state.host_buffer_bytes,
                host_capacity_bytes=state.host.memory_bytes - state.host_buffer_bytes,
                nvme_bytes=state.nvme_bytes[layer],
                nvme_capacity_bytes=state.host.nvme_bytes,
                slice_gradients_bytes=slice_gradients[layer],
                beside_state_bytes=beside_state,
            ),
            slices=self.slice_shares(setting, sharding, candidate.recompute[0]) if setting.slices else None,
            dag=self.dag,
            side_bytes=0.0 if self.dag is None else law.activations * boundary_bytes(self.model, setting),
        )

    def _of_layers(self, by_mode: FloatArray, recomputed: int | None) -> FloatArray:
        """Rows of modes over distinct blocks as rows over layers; one row where some layers are recomputed and others not."""
        rows: FloatArray = by_mode[:, self.layer_block]
        if recomputed is None:
            return rows
        none, full = rows
        again = self.recomputable[self.layer_block]
        return np.array([np.where(again & (np.cumsum(again) <= recomputed), full, none)])

    @cached_property
    def _recomputes_some(self) -> bool:
        return some_layers_of(self.request) is RecomputedLayers.ANY

    @cached_property
    def recomputed_layers(self) -> npt.NDArray[np.bool_]:
        """[layer] which layers can be recomputed."""
        return np.asarray(self.recomputable[self.layer_block], np.bool_)

    def first_layers(self, choices: StageChoices) -> FirstLayers | None:
        """The first layers of each part that stages recompute whole; None where not some are."""
        number = choices.recompute_layers
        return None if number is None else FirstLayers(number, self.recomputed_layers)

    @property
    def allowed_layers(self) -> tuple[int, ...]:
        """The allowed numbers of recomputed layers; none named: any."""
        return self.request.search.recompute_layers

    def fewest_recomputed(self, candidate: Candidate, sharding: Sharding, kind: StageKind) -> int | None:
        """The fewest layers of a model on one stage that must be recomputed whole for it to fit, of those that the request
        allows; None where not some but all must be, or none. ``candidate`` has the modes none and full."""
        table = self.table(candidate, kind, sharding)
        again = self.recomputable[self.layer_block]
        numbers = np.arange(1, int(again.sum()))
        if self.allowed_layers:
            numbers = numbers[np.isin(numbers, self.allowed_layers)]
        first = again & (np.cumsum(again) <= numbers[:, None])
        none, full = table.activation_bytes
        transient_none, transient_full = table.transient_bytes
        need = table.static_bytes.sum() + np.where(first, full, none).sum(axis=1)
        need = need + np.where(first, transient_full, transient_none).max(axis=1, initial=0.0)
        fits = numbers[need <= table.capacity_bytes]
        unneeded = table.static_bytes.sum() + none.sum() + transient_none.max() <= table.capacity_bytes
        return None if unneeded or not len(fits) else int(fits[0])

    def _tied_copies(self, candidate: Candidate, setting: BlockSetting, sharding: Sharding) -> FloatArray:
        """Parameters that a block stores only because the stage that owns them is another one (tied embeddings)."""
        copies = np.zeros(len(self.block_names))
        if candidate.mesh.pp == 1:
            return copies
        for block, operator, weight in self.model.tied_weights():
            place, built = self.block_names.index(block), self.problem(block, setting)
            assert built is not None, "shardings() offers no choice where there is no problem"
            node = node_index(self.model, block, operator)
            strategy = built.strategies[node][sharding[place][node]]
            copies[place] += weight.elements(strategy.local_sizes(self.model.dims, setting.tp))
        return copies

    def boundary_s(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> float:
        """Activations and gradients over both borders of the stage, each micro-batch (1F1B does not hide them).

        1F1B sends and receives at once: over the border behind it an activation goes and a gradient comes, over the one before
        the reverse (Megatron-LM's send_forward_recv_backward). Where tp ranks hold the same activation, each sends a share and
        the receivers gather the shares inside their node (Narayanan et al., SC'21, section 4.1, scatter/gather).
        """
        mesh = candidate.mesh
        if mesh.pp == 1:
            return 0.0
        held = boundary_bytes(self.model, setting)
        copies = setting.tp if setting.boundary == REPLICATED else 1
        sends_s = sum(float(collective_s(Collective.SEND_RECV, held / copies, link)) for link in kind.borders)
        gather_s = float(collective_s(Collective.ALL_GATHER, held, setting.tp_topology)) if copies > 1 else 0.0
        return sends_s + 2.0 * gather_s


def pinned_layers(request: TrainingRequest) -> tuple[Pinned, ...]:
    """Return the layers that a request wants on a stage that it names."""
    return tuple(Pinned(each.of(request.model.layers), each.stage) for each in fixed_stages(request.search.constraints))


def _plus_first(values: FloatArray, addend: float) -> FloatArray:
    changed = values.copy()
    changed[0] += addend
    return changed


# Bytes that an implementation keeps on a device all the time beside weights, gradients and optimizer state.


def bytes_beside_state(
    request: TrainingRequest, candidate: Candidate, implementation: Implementation, parameters: FloatArray
) -> FloatArray:
    """Bytes by layer; ``parameters`` are those of each layer on its tp rank.

    Buffers of DeepSpeed's ZeRO 1 and 2 are those of a mean stage, by each layer's share of the parameters; copies of its
    largest gradients, those of the vocabulary, count to the first and last layer. Deferred weight gradients of the head count
    to the last layer.
    """
    workload, mesh, dims = request.workload, candidate.mesh, request.model.dims
    held = np.zeros(len(parameters))
    if candidate.zero_stage in implementation.state_buffers.stages:
        held += _deepspeed_bytes(request, candidate, parameters)
    if implementation.head_gradients is HeadGradients.DEFERRED and HIDDEN in dims and VOCAB in dims:
        held[-1] += deferred_head_bytes(
            tokens=candidate.microbatch * workload.seq_len // mesh.cp,
            hidden=dims[HIDDEN],
            vocab=-(-dims[VOCAB] // mesh.tp),
            n_microbatches=candidate.n_microbatches,
            dtype=workload.precision,
        )
    return held


def _deepspeed_bytes(request: TrainingRequest, candidate: Candidate, parameters: FloatArray) -> FloatArray:
    workload, mesh, dims = request.workload, candidate.mesh, request.model.dims
    mean_stage = float(parameters.sum()) / mesh.pp
    shards = candidate.shard_ranks or mesh.dp * mesh.cp
    of_vocabulary = dims[HIDDEN] * -(-dims[VOCAB] // mesh.tp) if HIDDEN in dims and VOCAB in dims else 0
    if (workload.precision, workload.gradient_dtype, candidate.zero_stage) == (DType.BF16, DType.FP32, 1):
        of_stage = deepspeed_bf16_bytes(mean_stage)
        copied = float(of_vocabulary * DType.FP32.size_bytes)
    else:
        of_stage = deepspeed_zero_bytes(mean_stage, gradient_dtype=workload.gradient_dtype, shards=shards)
        copied = deepspeed_copied_gradient_bytes(of_vocabulary, own_elements=mean_stage / shards)
    held = parameters / mean_stage * of_stage
    held[0] += copied
    if mesh.pp > 1:
        held[-1] += copied
    return np.asarray(held)
