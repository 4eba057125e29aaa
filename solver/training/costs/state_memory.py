"""Weights, gradients and optimizer states of a stage's blocks: what they take on a device and on its host, and their update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.compute import matrices_of, memory_bound_s, orthogonalization_s
from meshwright.costmodels.memory.training_state import (
    MAX_ZERO_STAGE,
    Optimizer,
    Tier,
    optimizer_traffic_bytes,
    state_bytes_per_parameter,
)
from meshwright.costmodels.model.adapter import ADAPTER_DTYPE
from meshwright.costmodels.model.implementation import FrozenWeights, GradientReduction, Implementation, TrainedWeights
from meshwright.costmodels.model.operators import parameters
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s, passes_exposed_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.mesh import HybridGroups
from meshwright.solver.blocks.recompute import recomputable
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.choices import Gradients
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.training.costs.host import Host, host_of, host_step_s
from meshwright.solver.training.space.candidates import Candidate

# Sharing gradients, optimizer state and weights over the ranks that hold them: what of it a step has to wait for.

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SharedParameters:
    """Parameters of each distinct block that the ranks of ``group`` hold alike: dp x cp ranks, for experts fewer.

    Where ZeRO shards within a part of dp x cp, ``group`` is that part, and ``within`` says who holds the same beside it.
    """

    parameters: FloatArray
    group: GroupTopology
    within: HybridGroups | None = None

    @property
    def everyone(self) -> GroupTopology:
        """All ranks that hold the parameters alike, in whatever groups they shard."""
        return self.group if self.within is None else self.within.everyone


@dataclass(frozen=True)
class StateSync:
    """Time of sharing gradients and weights, by distinct block.

    Buckets are layers: the bucket of one layer travels under the backward pass of the layer before it in the model (a gather
    under the forward pass of the one before), as far as that is long enough.

    exposed_microbatch_s   not hidden, each micro-batch (ZeRO 2 and 3)
    exposed_step_s         not hidden, once a step
    hidden_step_s          hidden once a step, unless the block is the first of its stage: nothing runs beside its bucket
    gathered_bytes         whole weights and gradients of ZeRO 2 and 3 while in use
    """

    exposed_microbatch_s: FloatArray
    exposed_step_s: FloatArray
    hidden_step_s: FloatArray
    gathered_bytes: FloatArray


def state_sync(zero_stage: int, shared: Sequence[SharedParameters], costs: FloatArray, workload: TrainingWorkload) -> StateSync:
    """Communication of a ZeRO stage; ``costs`` are by distinct block, as are the parameters of each group.

    Groups use the same links, so their times add up. Stage 0 all-reduces gradients once a step; 1 reduce-scatters them and
    gathers the new weights; 2 reduce-scatters every micro-batch, since no device may hold whole gradients; 3 gathers weights
    for each pass as well. Within groups, shards of gradients are all-reduced between the groups besides, once a step.
    """
    nothing = np.zeros(len(costs))
    shared = [share for share in shared if share.group.n > 1]
    if not shared:
        return StateSync(nothing, nothing, nothing, nothing)
    gradient_bytes, weight_bytes = workload.gradient_dtype.size_bytes, workload.precision.size_bytes
    parameters = np.sum([share.parameters for share in shared], axis=0)
    gradients, weights = parameters * gradient_bytes, parameters * weight_bytes
    forward_s = costs[:, Criterion.FORWARD_S]
    backward_s = costs[:, Criterion.TIME_S] - forward_s
    if zero_stage == 0:
        reduce_s = _seconds(Collective.ALL_REDUCE, shared, gradient_bytes)
        exposed_reduce_s = _exposed_s(reduce_s, backward_s, shared)
        return StateSync(nothing, exposed_reduce_s, reduce_s - exposed_reduce_s, nothing)
    reduce_s = _seconds(Collective.REDUCE_SCATTER, shared, gradient_bytes)
    gather_s = _seconds(Collective.ALL_GATHER, shared, weight_bytes)
    in_groups = any(share.within is not None for share in shared)
    between_s = _between_replicas_s(shared, gradient_bytes) if in_groups else nothing
    if zero_stage == 1:
        # Both levels travel once a step, one after the other (Megatron-LM's start_grad_sync).
        reduce_s, between_s = reduce_s + between_s, nothing
    exposed_reduce_s, exposed_gather_s = (
        _exposed_s(reduce_s, backward_s, shared),
        _exposed_s(gather_s, forward_s, shared),
    )
    exposed_between_s = _exposed_s(between_s, backward_s, shared) if in_groups else nothing
    hidden_s = reduce_s - exposed_reduce_s + between_s - exposed_between_s
    if zero_stage <= 2:
        hidden_s = hidden_s + gather_s - exposed_gather_s
    if zero_stage == 1:
        return StateSync(nothing, exposed_reduce_s + exposed_gather_s, hidden_s, nothing)
    if zero_stage == 2:
        return StateSync(exposed_reduce_s, exposed_gather_s + exposed_between_s, hidden_s, gradients)
    # Weights of the next layer are fetched ahead in each pass; gradients of the layer before leave under the backward pass.
    each = np.add(*passes_exposed_s(gather_s, gather_s + reduce_s, forward_s, backward_s, _stream(shared)))
    # The layer in use and the one being fetched are whole at the same time, and one layer's gradients.
    return StateSync(each, exposed_between_s, hidden_s, 2 * weights + gradients)


def adapter_sync(
    zero_stage: int,
    shared: Sequence[SharedParameters],
    adapters: Sequence[SharedParameters],
    costs: FloatArray,
    workload: TrainingWorkload,
    *,
    spared_bytes: FloatArray,
) -> StateSync:
    """Communication of ZeRO 0 and 3 beside frozen weights, ``shared``: only ``adapters`` have gradients, and frozen weights
    travel where they are sharded, without the bytes that packing takes off each."""
    of_adapters = replace(workload, precision=ADAPTER_DTYPE, gradient_dtype=ADAPTER_DTYPE)
    shared, adapters = ([share for share in shares if share.group.n > 1] for shares in (shared, adapters))
    if zero_stage == 0 or not shared:
        return state_sync(0, adapters, costs, of_adapters)
    size, of_adapter = workload.precision.size_bytes - spared_bytes, ADAPTER_DTYPE.size_bytes
    frozen, trained = (np.sum([share.parameters for share in shares], axis=0) for shares in (shared, adapters))
    forward_s = costs[:, Criterion.FORWARD_S]
    backward_s = costs[:, Criterion.TIME_S] - forward_s
    gather_s = _seconds(Collective.ALL_GATHER, shared, size) + _seconds(Collective.ALL_GATHER, adapters, of_adapter)
    reduce_s = _seconds(Collective.REDUCE_SCATTER, adapters, of_adapter)
    between_s = _between_replicas_s(adapters, of_adapter)
    exposed_between_s = _exposed_s(between_s, backward_s, adapters)
    each = _exposed_s(gather_s, forward_s, shared) + _exposed_s(gather_s + reduce_s, backward_s, shared)
    gathered = 2 * (frozen * size + trained * of_adapter) + trained * of_adapter
    return StateSync(each, exposed_between_s, between_s - exposed_between_s, np.asarray(gathered, np.float64))


def sync_after_backward(
    zero_stage: int,
    shared: Sequence[SharedParameters],
    workload: TrainingWorkload,
    *,
    reduction: GradientReduction,
    mean_stage: Callable[[FloatArray], float],
) -> StateSync:
    """Communication of ZeRO 0 and 1 where gradients travel after the backward pass in one piece, and nothing hides it.

    A block's part of the piece's time is its part of the bytes. The rate is that of a mean stage's piece, whose size
    ``mean_stage`` tells from what each distinct block has. In fp32, gradients are all-reduced whatever the optimizer shards.
    """
    in_fp32 = reduction is GradientReduction.IN_FP32_AFTER_BACKWARD
    gradient_bytes = DType.FP32.size_bytes if in_fp32 else workload.gradient_dtype.size_bytes
    nothing = np.zeros(len(shared[0].parameters)) if shared else np.zeros(0)
    exposed_s = nothing
    for share in shared:
        piece = mean_stage(share.parameters)
        if share.group.n == 1 or piece <= 0.0:
            continue
        gradients = piece * gradient_bytes
        if in_fp32 or zero_stage == 0:
            sends = [(Collective.ALL_REDUCE, gradients, share.everyone)]
        else:
            sends = [(Collective.REDUCE_SCATTER, gradients, share.group)]
            if share.within is not None:
                sends.append((Collective.ALL_REDUCE, gradients / share.group.n, share.within.replicas))
        if zero_stage > 0:
            sends.append((Collective.ALL_GATHER, piece * workload.precision.size_bytes, share.group))
        piece_s = sum(float(collective_s(kind, size, group)) for kind, size, group in sends)
        exposed_s = exposed_s + share.parameters / piece * piece_s
    return StateSync(nothing, exposed_s, nothing, nothing)


def _seconds(collective: Collective, shared: Sequence[SharedParameters], bytes_each: float | FloatArray) -> FloatArray:
    times = [np.asarray(collective_s(collective, share.parameters * bytes_each, share.group)) for share in shared]
    return np.asarray(np.sum(times, axis=0), np.float64)


def _between_replicas_s(shared: Sequence[SharedParameters], bytes_each: float) -> FloatArray:
    """All-reduce of gradient shards over groups that hold the same, once a step (MiCS, Zhang et al., VLDB'22, section 3.4)."""
    times = [np.zeros(len(share.parameters)) for share in shared]
    for time_s, share in zip(times, shared, strict=True):
        if share.within is not None:
            sharded = share.parameters * bytes_each / share.group.n
            time_s += np.asarray(collective_s(Collective.ALL_REDUCE, sharded, share.within.replicas), np.float64)
    return np.asarray(np.sum(times, axis=0), np.float64)


def _exposed_s(communication_s: FloatArray, compute_s: FloatArray, shared: Sequence[SharedParameters]) -> FloatArray:
    """Return the seconds that communication in the shadow of computation adds to it: its excess, and what it slows."""
    return exposed_s(communication_s, compute_s, _stream(shared), MEASURED_INTERFERENCE)


def _stream(shared: Sequence[SharedParameters]) -> Stream:
    return Stream.INTER_NODE if any(share.everyone.spans_nodes for share in shared) else Stream.INTRA_NODE


@dataclass(frozen=True, eq=False)
class TrainingState:
    """By distinct block: bytes on a device and in its host's memory, and seconds of a step's update.

    passing_bytes       gradients of a layer at work where they are released with its update
    away_..._bytes      what lies not on the device, ``nvme_bytes`` of it on the node's drives, all else in the host's memory
    weights_read_s      what drives take to read weights for a pass
    host_buffer_bytes   host memory through which what lies on drives goes
    host                the device's share of its host
    """

    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    passing_bytes: FloatArray
    away_weights_bytes: FloatArray
    away_gradients_bytes: FloatArray
    away_optimizer_bytes: FloatArray
    nvme_bytes: FloatArray
    update_s: FloatArray
    weights_read_s: FloatArray
    host_buffer_bytes: float
    host: Host

    @property
    def device_bytes(self) -> FloatArray:
        """All that lies on the device."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def host_bytes(self) -> FloatArray:
        """All that lies in host memory."""
        return self.away_weights_bytes + self.away_gradients_bytes + self.away_optimizer_bytes - self.nvme_bytes


def training_state(
    request: TrainingRequest,
    candidate: Candidate,
    device: Device,
    *,
    blocks: Sequence[str],
    shared: Sequence[SharedParameters],
    copies: FloatArray,
    implementation: Implementation,
) -> TrainingState:
    """State of parameters that groups of ranks share, with ``copies`` of tied ones beside them; of a frozen model nothing is
    updated."""
    workload, only_weights = request.workload, implementation.trained is not TrainedWeights.ALL
    optimizer = candidate.optimizer or workload.optimizer
    of_block = [block_optimizer(optimizer, request.model, name) for name in blocks]
    rates_s = np.zeros((2, len(blocks)))
    if optimizer is Optimizer.MUON and not only_weights:
        rates_s = _orthogonalization_s_per_parameter(request.model, blocks, device, apart=candidate.mesh.spreads_experts)
    weights, gradients, states, owned, update_s, passing = (np.zeros(len(blocks)) for _ in range(6))
    kept = _with_tied_weights(request.model, blocks) if candidate.gradients is Gradients.RELEASED else 1.0
    once = _stored_once(request, blocks) if only_weights and implementation.frozen_weights is FrozenWeights.FP8 else 1.0
    for group, rate_s in zip(shared, rates_s, strict=False):
        each = {
            one: state_bytes_per_parameter(
                precision=workload.precision,
                gradient_dtype=workload.gradient_dtype,
                optimizer=one,
                zero_stage=candidate.zero_stage,
                shards=group.group.n,
            )
            for one in dict.fromkeys(of_block)
        }
        held = group.parameters + copies
        weights += once * held * each[of_block[0]].weights
        if not only_weights:
            of_gradients = held * each[of_block[0]].gradients
            gradients += kept * of_gradients
            # One layer's are summed over ranks under the backward pass of the next; ZeRO 2 and 3 keep a shard of them.
            at_once = 2 if group.group.n > 1 and candidate.zero_stage < 2 else 1
            passing += at_once * (1.0 - kept) * of_gradients
            states += held * [each[one].optimizer for one in of_block]
            mine = group.parameters / (group.group.n if candidate.zero_stage >= 1 else 1)
            owned += mine
            update_s += mine * rate_s
        # Embeddings and heads lie on the first group's ranks.
        copies = np.zeros_like(copies)
    if workload.adapter is not None:
        rates = adapter_rates(request, blocks)
        for group, adapters in zip(shared, adapter_parameters(shared, rates), strict=True):
            of_adapter = state_bytes_per_parameter(
                precision=ADAPTER_DTYPE,
                gradient_dtype=ADAPTER_DTYPE,
                optimizer=optimizer,
                zero_stage=candidate.zero_stage,
                shards=group.group.n,
            )
            weights += adapters.parameters * of_adapter.weights
            # Packed weights are shards like others.
            weights -= group.parameters * rates.spared_bytes / (group.group.n if candidate.zero_stage == MAX_ZERO_STAGE else 1)
            gradients += adapters.parameters * of_adapter.gradients
            states += adapters.parameters * of_adapter.optimizer
            owned += adapters.parameters / (group.group.n if candidate.zero_stage >= 1 else 1)
    precision, gradient_dtype = workload.precision, workload.gradient_dtype
    if workload.adapter is not None:
        precision = gradient_dtype = ADAPTER_DTYPE
    traffic = {
        one: optimizer_traffic_bytes(precision=precision, gradient_dtype=gradient_dtype, optimizer=one)
        for one in dict.fromkeys(of_block)
    }
    moved_s = (
        np.asarray(memory_bound_s(device, owned * [traffic[one] for one in of_block]), np.float64) / device.sustained.memory
    )
    update_s += np.where(owned > 0, moved_s, 0.0)
    offload, host = candidate.offload, host_of(request.cluster, device)
    away_weights, away_states = offload.weights * weights, offload.optimizer * states
    host_s = host_step_s(workload, offload, device, host, owned=owned, states_bytes=away_states, weights_bytes=away_weights)
    on_drives = np.zeros(len(blocks))
    if offload.on_drives:
        on_drives = (offload.optimizer_to is Tier.NVME) * away_states + (offload.weights_to is Tier.NVME) * away_weights
    # One tile is read or written while the other is updated or on its way.
    buffer_bytes = 2.0 * float(on_drives.max())
    return TrainingState(
        weights_bytes=(1.0 - offload.weights) * weights,
        gradients_bytes=(1.0 - offload.gradients) * gradients,
        optimizer_bytes=(1.0 - offload.optimizer) * states,
        passing_bytes=passing,
        away_weights_bytes=away_weights,
        away_gradients_bytes=offload.gradients * gradients,
        away_optimizer_bytes=away_states,
        nvme_bytes=on_drives,
        update_s=(1.0 - offload.optimizer) * update_s + host_s,
        weights_read_s=away_weights / host.read_bytes_per_s if offload.weights_to is Tier.NVME else 0.0 * away_weights,
        host_buffer_bytes=buffer_bytes,
        host=host,
    )


def block_optimizer(optimizer: Optimizer, model: ModelGraph, block: str) -> Optimizer:
    """Return the optimizer that updates a block: Muon leaves embedding and head to AdamW."""
    if optimizer is not Optimizer.MUON:
        return optimizer
    return Optimizer.MUON if recomputable(model.block(block)) else Optimizer.ADAMW


def _stored_once(request: TrainingRequest, blocks: Sequence[str]) -> FloatArray:
    """What weights of blocks take that lie once in fp8, over what they take in 16 bits: of layers, beside a recipe below 16
    bits. Norms and routers, a thousandth of a layer, count as the rest."""
    workload = request.workload
    share = 1.0 if workload.matmul.dtype is None else DType.FP8.size_bytes / workload.precision.size_bytes
    return np.array([share if recomputable(request.model.block(name)) else 1.0 for name in blocks])


def _with_tied_weights(model: ModelGraph, blocks: Sequence[str]) -> FloatArray:
    """1 for blocks that own or use tied weights, whose gradients are whole with the last use alone; else 0."""
    owners = {model.owner(weight.tied_to).block for _, _, weight in model.tied_weights() if weight.tied_to is not None}
    users = {block for block, _, _ in model.tied_weights()}
    return np.array([float(name in owners | users) for name in blocks])


def _orthogonalization_s_per_parameter(model: ModelGraph, blocks: Sequence[str], device: Device, *, apart: bool) -> FloatArray:
    """[group, block] seconds of Muon's orthogonalization over the block's parameters: of those that all ranks share, and of
    spread experts where they are ``apart``. A rank does as large a share of a block's work as it owns of its parameters:
    matrices are orthogonalized whole, dealt among the ranks that hold shards of them."""
    rates_s = np.zeros((2, len(blocks)))
    for place, name in enumerate(blocks):
        if not recomputable(model.block(name)):
            continue
        seconds, count = [0.0, 0.0], [0, 0]
        for operator in model.block(name).operators:
            group = int(apart and bool(operator.routed_dims))
            count[group] += parameters(operator, model.dims)
            seconds[group] += sum(
                orthogonalization_s(device, rows=rows, columns=columns, matrices=number)
                for rows, columns, number in matrices_of(operator, model.dims)
            )
        rates_s[:, place] = [s / n if n else 0.0 for s, n in zip(seconds, count, strict=True)]
    return rates_s


# Adapters and packed weights of blocks, for each parameter that a block has.


@dataclass(frozen=True, eq=False)
class AdapterRates:
    """By block: parameters of adapters, and bytes that packing takes off the frozen weights, for each frozen parameter.

    Launchers that train adapters hold whole layers on each rank, so both are in proportion to what a rank holds.
    """

    trained: FloatArray
    spared_bytes: FloatArray


def adapter_rates(request: TrainingRequest, blocks: Sequence[str]) -> AdapterRates:
    """Return the rates of blocks by name; the workload has adapters."""
    adapter, model = request.workload.adapter, request.model
    assert adapter is not None
    known: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(blocks):
        operators = model.block(name).operators
        trained = sum(adapter.parameters(operator, model.dims) for operator in operators)
        size = request.workload.precision.size_bytes
        spared = sum(size * sum(adapter.packed(op, model.dims)) - adapter.packed_bytes(op, model.dims) for op in operators)
        whole = max(1, model.block_parameters(name))
        known[name] = (trained / whole, spared / whole)
    found = np.array([known[name] for name in blocks], np.float64).reshape(-1, 2)
    return AdapterRates(found[:, 0], found[:, 1])


def adapter_parameters(shared: Sequence[SharedParameters], rates: AdapterRates) -> tuple[SharedParameters, ...]:
    """Return the adapters that stand beside parameters, held by the same ranks."""
    return tuple(replace(share, parameters=share.parameters * rates.trained) for share in shared)
