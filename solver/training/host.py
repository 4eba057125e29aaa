"""The host's part of a block: an eager framework launches kernels one by one, and small ones end before the next comes."""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.cluster import Device
from costmodels.compute import launch_s
from solver.graph import Block

FORWARD_LAUNCHES = 3
"""Kernels that an operator launches forward, casts and copies included.

A GPT layer of 10 operators with full recompute (forward, forward again, backward) never takes less than 3.0 ms of a
micro-batch on A100 in vTrain's 1,080 single-node runs (MICRO'24): 120 launches of ``launch_s`` = 25 us.
"""

BACKWARD_LAUNCHES = 6
"""Backward, an operator launches twice as many: an input and a weight gradient for each product."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds the host needs to launch one block's kernels."""

    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        """Both passes together."""
        return self.forward_s + self.backward_s


def host_time(block: Block, device: Device) -> HostTime:
    """Launch time of a block's passes; the device waits for it where its own work is shorter (DESIGN section 4, point 2)."""
    each_s = len(block.operators) * launch_s(device)
    return HostTime(FORWARD_LAUNCHES * each_s, BACKWARD_LAUNCHES * each_s)
