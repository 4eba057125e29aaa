"""The memory that hosts and their drives have for a device, the time of updates there, and the bytes that move under the passes
of a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, Device
from meshwright.costmodels.memory.offload import Offload, Tier, exposed_moves_s, host_update_s
from meshwright.solver.problem.request import TrainingWorkload

FloatArray = npt.NDArray[np.float64]


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
