"""What of a stage's optimizer states lies in host memory, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.cluster import Device
from costmodels.offload import Offload, host_update_s
from solver.request import PlanRequest, TrainingWorkload

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HostShare:
    """A device's share of its host: optimizer states that lie there and seconds of their update, by block, and its memory."""

    optimizer_bytes: FloatArray
    update_s: FloatArray
    capacity_bytes: float


def host_share(
    request: PlanRequest, offload: Offload, device: Device, *, optimizer: FloatArray, owned: FloatArray
) -> HostShare:
    """What lies on the host of such a device of the bytes of ``optimizer`` states, of ``owned`` parameters, by block."""
    workload = request.workload
    assert isinstance(workload, TrainingWorkload)
    nodes = [group.node for group in request.cluster.groups if group.node.device == device]
    per_host = max(node.devices_per_node for node in nodes)
    update_s = host_update_s(
        offload.optimizer * owned,
        device,
        devices_per_host=per_host,
        gradient_dtype=workload.gradient_dtype,
        precision=workload.precision,
    )
    return HostShare(offload.optimizer * optimizer, update_s, min(node.host_memory_bytes for node in nodes) / per_host)
