"""Equal workers of a serving plan: what every form of one is made of."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.stage import DeviceRange, Stage


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers in one layout.

    count                                  of them
    max_num_seqs, max_num_batched_tokens   limits of the batch of one of them
    """

    count: int
    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def device_ranges(self) -> tuple[DeviceRange, ...]:
        """Devices that the stages list."""
        return tuple(devices for stage in self.stages for devices in stage.devices)
