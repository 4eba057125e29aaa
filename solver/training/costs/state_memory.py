"""Weights, gradients and optimizer states of a stage's blocks: what they take on a device and on its host, and their update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import memory_bound_s
from meshwright.costmodels.kernels.muon import matrices_of, orthogonalization_s
from meshwright.costmodels.memory.offload import Tier
from meshwright.costmodels.memory.training_state import Optimizer, optimizer_traffic_bytes, state_bytes_per_parameter
from meshwright.costmodels.model.adapter import ADAPTER_DTYPE, NF4_BYTES
from meshwright.costmodels.model.operators import parameters
from meshwright.solver.blocks.recompute import recomputable
from meshwright.solver.problem.choices import Gradients
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.adapter_rates import adapter_parameters, adapter_rates
from meshwright.solver.training.costs.host_memory import Host, host_of, host_step_s
from meshwright.solver.training.costs.state_sync import SharedParameters
from meshwright.solver.training.space.candidates import Candidate

FloatArray = npt.NDArray[np.float64]


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
    only_weights: bool,
) -> TrainingState:
    """State of parameters that groups of ranks share, with ``copies`` of tied ones beside them; of a frozen model
    (``only_weights``) nothing is updated."""
    workload = request.workload
    optimizer = candidate.optimizer or workload.optimizer
    of_block = [block_optimizer(optimizer, request.model, name) for name in blocks]
    rates_s = np.zeros((2, len(blocks)))
    if optimizer is Optimizer.MUON and not only_weights:
        rates_s = _orthogonalization_s_per_parameter(request.model, blocks, device, apart=candidate.mesh.spreads_experts)
    weights, gradients, states, owned, update_s, passing = (np.zeros(len(blocks)) for _ in range(6))
    kept = _with_tied_weights(request.model, blocks) if candidate.gradients is Gradients.RELEASED else 1.0
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
        weights += held * each[of_block[0]].weights
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
            weights -= group.parameters * rates.packed * (workload.precision.size_bytes - NF4_BYTES)
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


def _with_tied_weights(model: ModelGraph, blocks: Sequence[str]) -> FloatArray:
    """1 for blocks that own or use tied weights, whose gradients are whole with the last use alone; else 0."""
    owners = {weight.tied_to.split("/")[0] for _, _, weight in model.tied_weights() if weight.tied_to is not None}
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
