"""What of a stage's training state lies in host memory, what that takes, and which bytes move under the passes of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.cluster import Device
from costmodels.offload import Offload, exposed_moves_s, host_update_s
from solver.request import PlanRequest, TrainingWorkload

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HostShare:
    """A device's share of its host: seconds of the update of what lies there, by block, and its memory."""

    update_s: FloatArray
    capacity_bytes: float


def host_share(request: PlanRequest, offload: Offload, device: Device, *, owned: FloatArray) -> HostShare:
    """What the host of such a device does for ``owned`` parameters, by block."""
    workload = request.workload
    assert isinstance(workload, TrainingWorkload)
    nodes = [group.node for group in request.cluster.groups if group.node.device == device]
    per_host = max(node.devices_per_node for node in nodes)
    update_s = host_update_s(
        owned,
        offload,
        device,
        devices_per_host=per_host,
        gradient_dtype=workload.gradient_dtype,
        precision=workload.precision,
    )
    return HostShare(update_s, min(node.host_memory_bytes for node in nodes) / per_host)


@dataclass(frozen=True, eq=False)
class HostMoves:
    """What moves between a device and its host under the passes of each block: bytes of weights, gradients and, [mode, block],
    saved activations. Gradients that add up over several micro-batches come up to be added to (DeepSpeed's partition_grads)."""

    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    activations_bytes: FloatArray
    sums_gradients: bool

    def exposed_s(self, device: Device, *, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
        """Seconds of a micro-batch that no pass hides, as activations are given."""
        summed = self.gradients_bytes if self.sums_gradients else 0.0
        of_forward = exposed_moves_s(self.weights_bytes, self.activations_bytes, device, pass_s=forward_s)
        up_bytes = self.weights_bytes + self.activations_bytes + summed
        return of_forward + exposed_moves_s(up_bytes, self.gradients_bytes, device, pass_s=backward_s)

    @property
    def at_once_bytes(self) -> FloatArray:
        """On the device while a block runs: what it works on, and what is on its way."""
        return 2.0 * (self.weights_bytes + self.gradients_bytes + self.activations_bytes)
