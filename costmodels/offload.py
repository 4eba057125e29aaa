"""State and saved activations in host memory: what travels over a device's link to its host, and what the host computes.

Optimizer states on the host are updated there: gradients go down, the host's cores run the optimizer, new weights come up, all
piece by piece at once (ZeRO-Offload, Ren et al., ATC'21, sections 4 and 5), so the slowest of the three decides. Saved
activations leave under the forward pass of their layer and come back under its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.cluster import Device
from costmodels.units import STRICT_RECORD, DType, Fraction

FloatArray = npt.NDArray[np.float64]

HOST_ADAM_PARAMETERS_PER_S = 10e9 / 2.57
"""Parameters that the cores of a host, which its devices share, update in a second: 10 billion in 2.57 s on two Xeon Platinum
8168 (ZeRO-Offload, Table 4, CPU-Adam)."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Shares of what a device would hold that lie in its host's memory instead."""

    __pydantic_config__ = STRICT_RECORD

    optimizer: Fraction = 0.0
    activations: Fraction = 0.0

    @property
    def is_nothing(self) -> bool:
        """Whether all stays on the device."""
        return self.optimizer == self.activations == 0.0


NOTHING_OFFLOADED = Offload()


def host_update_s(
    parameters: FloatArray, device: Device, *, devices_per_host: int, gradient_dtype: DType, precision: DType
) -> FloatArray:
    """Seconds until the host has updated parameters of each of its devices at once, beginning and end of the pipe left out."""
    down_s = parameters * gradient_dtype.size_bytes / device.host_bytes_per_s
    up_s = parameters * precision.size_bytes / device.host_bytes_per_s
    host_s = parameters * devices_per_host / HOST_ADAM_PARAMETERS_PER_S
    return np.asarray(np.max([down_s, up_s, host_s], axis=0), np.float64)


def exposed_moves_s(moved_bytes: FloatArray, device: Device, *, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Seconds by which moving bytes out under a forward pass, and back under a backward pass, outlasts these."""
    each_s = moved_bytes / device.host_bytes_per_s
    return np.maximum(each_s - forward_s, 0.0) + np.maximum(each_s - backward_s, 0.0)
