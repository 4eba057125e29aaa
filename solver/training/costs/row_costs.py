"""Costs of blocks under choices of strategies, a row each: time and memory in a place of state, by recompute mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.memory.training_state import framework_overhead_bytes
from meshwright.costmodels.model.document_balance import (
    PackedAttention,
    SharedWork,
    pack_moments,
    packed_attention,
    slowest_over_mean,
)
from meshwright.costmodels.model.implementation import GradientReduction, TrainedWeights
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.blocks.memory import boundary_bytes, chunk_buffer_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import OF_MODE, Criterion
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.adapter_rates import adapter_parameters, adapter_rates
from meshwright.solver.training.costs.candidate_settings import CandidateSettings
from meshwright.solver.training.costs.host import step_host_s
from meshwright.solver.training.costs.host_memory import HostMoves
from meshwright.solver.training.costs.stage_table import FloatArray, StageKind
from meshwright.solver.training.costs.state_memory import TrainingState, training_state
from meshwright.solver.training.costs.state_sync import (
    SharedParameters,
    StateSync,
    adapter_sync,
    state_sync,
    sync_after_backward,
)
from meshwright.solver.training.space.candidates import Candidate

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
        trained = () if implementation.trained is TrainedWeights.ADAPTERS else shared
        travelling = shared if candidate.zero_stage == 3 else trained
        if workload.adapter is not None:
            names = [self.block_names[block] for block in of_row]
            beside_frozen = adapter_parameters(shared, adapter_rates(self.request, names))
            sync = adapter_sync(candidate.zero_stage, shared, beside_frozen, beside, workload)
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
            only_weights=implementation.trained is TrainedWeights.ADAPTERS,
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
                only_weights=setting.implementation.trained is TrainedWeights.ADAPTERS,
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
