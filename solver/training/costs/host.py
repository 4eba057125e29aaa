"""The host's part of a block: an eager framework launches kernels one by one, and small ones end before the next comes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, Device
from meshwright.costmodels.kernels.compute import sustained_launch_s
from meshwright.costmodels.kernels.host_work import host_work
from meshwright.costmodels.kernels.step_by_step_scan import step_by_step_launches
from meshwright.costmodels.kernels.vector_traffic import vector_passes
from meshwright.costmodels.memory.training_state import Offload, Tier, exposed_moves_s, host_update_s
from meshwright.costmodels.model.implementation import Implementation, ScanKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.split_dims import leaves_partial_sums, split_dim
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import TrainingWorkload

FloatArray = npt.NDArray[np.float64]

MATMUL_KERNELS = (1, 2)
"""Kernels of a matrix product: one forward, one for each gradient."""
ATTENTION_KERNELS = (1, 3)
"""Of flash attention: backward multiplies outputs with their gradients first, and casts the query's gradient last."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds the host needs to launch one block's kernels."""

    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        """Both passes together."""
        return self.forward_s + self.backward_s

    def bounds(self, forward_s: FloatArray | float, backward_s: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a block whose kernels take so long: the device waits where the host launches more slowly."""
        return np.maximum(forward_s, self.forward_s), np.maximum(backward_s, self.backward_s)


def host_time(
    block: Block, device: Device, implementation: Implementation, *, cp: int = 1, collectives_of_sum: int = 0, chunks: int = 1
) -> HostTime:
    """Launch time of a block's passes; the device waits for it where its own work is shorter (DESIGN section 4, point 2).

    ``collectives_of_sum`` is how many collectives over tp add up partial sums: none without tp, an all-reduce, or with
    sequence parallelism a reduce-scatter and the gather before it. Each of ``chunks`` beyond the first is one more launch of a
    product and one of its collective.
    """
    work = host_work(implementation)
    of_block = work.block + work.operator * _modules(block) + work.ring * _has_ring(block, cp)
    counts = [launches(operator, implementation) for operator in block.operators]
    of_sum = collectives_of_sum * (work.collective + 2 * work.kernel * (chunks - 1))
    each_s = sustained_launch_s(device)
    forward_s, backward_s = (
        (of_block + work.kernel * sum(count[i] for count in counts) + of_sum * sums) * each_s
        for i, sums in enumerate(_sums_over_tp(block))
    )
    return HostTime(forward_s, backward_s)


def _sums_over_tp(block: Block) -> tuple[int, int]:
    """Operators that leave partial sums over tp: of their outputs forward, of their input gradients backward."""
    outputs = sum(leaves_partial_sums(operator) for operator in block.operators)
    gradients = sum(
        operator.kind is OperatorKind.MATMUL and split_dim(operator) is not None and not leaves_partial_sums(operator)
        for operator in block.operators
    )
    return outputs, gradients


def _modules(block: Block) -> int:
    """Operators of a block, all steps of unfused attention together being one."""
    steps = sum(operator.kind is OperatorKind.NORM and not operator.weights for operator in block.operators)
    return len(block.operators) - max(0, steps - 1)


def _has_ring(block: Block, cp: int) -> bool:
    """True where context parallelism passes keys and values, or states, around a ring."""
    return cp > 1 and any(operator.kind in (OperatorKind.ATTENTION, OperatorKind.SCAN) for operator in block.operators)


def step_host_s(device: Device, implementation: Implementation) -> float:
    """Host time that a step adds once."""
    return host_work(implementation).step * sustained_launch_s(device)


def launches(operator: Operator, implementation: Implementation) -> tuple[int, int]:
    """Kernels of an operator, forward and backward."""
    if operator.kind is OperatorKind.MATMUL:
        return MATMUL_KERNELS
    if operator.kind is OperatorKind.ATTENTION:
        return ATTENTION_KERNELS
    if implementation.scan is ScanKernels.STEP_BY_STEP and (steps := step_by_step_launches(operator)):
        return steps
    passes = vector_passes(operator, implementation.kernels, implementation.loss)
    return (1, 1) if passes is None else (len(passes.forward), len(passes.backward))


# The memory that hosts and their drives have for a device, the time of updates there, and the bytes that move under the passes
# of a layer.


@dataclass(frozen=True, slots=True)
class Host:
    """A device's share of its host: memory, and of the node's drives room and bytes/s; without drives no room."""

    devices: int
    memory_bytes: float
    nvme_bytes: float = 0.0
    read_bytes_per_s: float = math.inf
    write_bytes_per_s: float = math.inf


def host_of(cluster: Cluster, device: Device) -> Host:
    """The least share that a device of this kind has of its host."""
    nodes = [group.node for group in cluster.groups if group.node.device == device]
    devices = max(node.devices_per_node for node in nodes)
    memory_bytes = min(node.host_memory_bytes for node in nodes) / devices
    drives = [node.nvme for node in nodes if node.nvme is not None]
    if len(drives) < len(nodes):
        return Host(devices, memory_bytes)
    return Host(
        devices,
        memory_bytes,
        min(drive.capacity_bytes for drive in drives) / devices,
        min(drive.read_bytes_per_s for drive in drives) / devices,
        min(drive.write_bytes_per_s for drive in drives) / devices,
    )


def host_step_s(
    workload: TrainingWorkload,
    offload: Offload,
    device: Device,
    host: Host,
    *,
    owned: FloatArray,
    states_bytes: FloatArray,
    weights_bytes: FloatArray,
) -> FloatArray:
    """Seconds of a step in which the host updates its share of ``owned`` parameters, by block; drives read the states and write
    them again, and new weights, tile by tile under the update (ZeRO-Infinity, section 5.2.2), reading and writing in turn."""
    update_s = host_update_s(
        owned,
        offload,
        device,
        devices_per_host=host.devices,
        gradient_dtype=workload.gradient_dtype,
        precision=workload.precision,
    )
    if not offload.on_drives:
        return update_s
    states = states_bytes if offload.optimizer_to is Tier.NVME else np.zeros_like(owned)
    weights = weights_bytes if offload.weights_to is Tier.NVME else np.zeros_like(owned)
    return np.maximum(update_s, states / host.read_bytes_per_s + (states + weights) / host.write_bytes_per_s)


@dataclass(frozen=True, eq=False)
class HostMoves:
    """The bytes that move between a device and its host under the passes of each block: of weights, gradients and, [mode,
    block], saved activations. Gradients that add up over several micro-batches come up to be added to (DeepSpeed's
    partition_grads); ``weights_read_s`` is the time in which drives read the weights once."""

    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    activations_bytes: FloatArray
    sums_gradients: bool
    weights_read_s: FloatArray | float = 0.0

    def exposed_s(self, device: Device, *, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
        """Seconds of a micro-batch that no pass hides, as activations are given."""
        summed = self.gradients_bytes if self.sums_gradients else 0.0
        up_bytes, read_s = self.weights_bytes + self.activations_bytes + summed, self.weights_read_s
        of_forward = exposed_moves_s(self.weights_bytes, self.activations_bytes, device, pass_s=forward_s, read_s=read_s)
        return of_forward + exposed_moves_s(up_bytes, self.gradients_bytes, device, pass_s=backward_s, read_s=read_s)

    @property
    def at_once_bytes(self) -> FloatArray:
        """On the device while a block runs: what it works on, and what is on its way."""
        return 2.0 * (self.weights_bytes + self.gradients_bytes + self.activations_bytes)
