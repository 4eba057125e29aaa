"""State and saved activations in host memory: what travels over a device's link to its host, and what the host computes.

Optimizer states on the host are updated there: gradients go down, the host's cores run the optimizer, new weights come up, all
piece by piece at once (ZeRO-Offload, Ren et al., ATC'21, sections 4 and 5), so the slowest of the three decides. Weights come
up for the forward and again for the backward pass of their layer, gradients go down under its backward pass (ZeRO-Infinity,
Rajbhandari et al., SC'21, section 5), from the drives of the node where they lie there. Saved activations leave under the
forward pass and come back under the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, Stream, exposed_s
from meshwright.costmodels.units import STRICT_RECORD, DType, Fraction

FloatArray = npt.NDArray[np.float64]

HOST_ADAM_PARAMETERS_PER_S = 10e9 / 2.57
"""Parameters that the cores of a host, which its devices share, update in a second: 10 billion in 2.57 s on two Xeon Platinum
8168 (ZeRO-Offload, Table 4, CPU-Adam)."""


class Tier(StrEnum):
    """Where state lies that is not on the device: in the memory of the host, or on the drives of the node."""

    HOST = "host"
    NVME = "nvme"


@dataclass(frozen=True, slots=True)
class Offload:
    """Shares of what a device would hold that lie in its host's memory instead; those of optimizer states and weights may
    lie on the drives of its node."""

    __pydantic_config__ = STRICT_RECORD

    optimizer: Fraction = 0.0
    activations: Fraction = 0.0
    weights: Fraction = 0.0
    gradients: Fraction = 0.0
    optimizer_to: Tier = Tier.HOST
    weights_to: Tier = Tier.HOST

    @property
    def on_drives(self) -> bool:
        """True if anything lies on drives."""
        return Tier.NVME in (self.optimizer_to, self.weights_to)

    @property
    def is_nothing(self) -> bool:
        """True if all stays on the device."""
        return self.optimizer == self.activations == self.weights == self.gradients == 0.0


NOTHING_OFFLOADED = Offload()


def host_update_s(
    parameters: FloatArray, offload: Offload, device: Device, *, devices_per_host: int, gradient_dtype: DType, precision: DType
) -> FloatArray:
    """Seconds until the host has updated its share of the parameters of each of its devices at once, beginning and end of the
    pipe left out.

    Of parameters whose states, gradients or weights lie on the host, the same come first: gradients go down where states are
    and they are not, up where it is the other way round; new weights likewise.
    """
    states, weights, gradients = offload.optimizer, offload.weights, offload.gradients
    weight_bytes, gradient_bytes = precision.size_bytes, gradient_dtype.size_bytes
    down = max(0.0, states - gradients) * gradient_bytes + max(0.0, weights - states) * weight_bytes
    up = max(0.0, states - weights) * weight_bytes + max(0.0, gradients - states) * gradient_bytes
    link_s = parameters * max(down, up) / device.host_bytes_per_s
    return np.maximum(link_s, states * parameters * devices_per_host / HOST_ADAM_PARAMETERS_PER_S)


def exposed_moves_s(
    up_bytes: FloatArray, down_bytes: FloatArray, device: Device, *, pass_s: FloatArray, read_s: FloatArray | float = 0.0
) -> FloatArray:
    """Seconds by which copies from and to the host, each direction by itself, outlast the pass that they run under; drives take
    ``read_s`` for what comes from there."""
    moves_s = np.maximum(np.maximum(up_bytes, down_bytes) / device.host_bytes_per_s, read_s)
    return np.maximum(exposed_s(moves_s, pass_s, Stream.HOST_COPY, MEASURED_INTERFERENCE), 0.0)
