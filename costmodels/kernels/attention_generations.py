"""The slowdown of earlier generations of attention kernels against a device's fastest ones, as their authors measured."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.hardware.generations import Slowdown, generation_of
from meshwright.costmodels.model.implementation import FlashAttention

_NONE = Slowdown(1.0, 1.0)

_UNDER_FLASH_2: Mapping[FlashAttention, float] = {
    FlashAttention.FLASH_2: 1.0,
    FlashAttention.FLASH_1: (1.7 * 3.0) ** 0.5,
    FlashAttention.FLASH_1_TRITON: (1.3 * 2.5) ** 0.5,
}
"""FlashAttention-2 is 1.7 to 3.0 times as fast as FlashAttention and 1.3 to 2.5 times as its Triton version on A100 (Dao 2023,
section 4.1): the middle of each range."""


def attention_slowdown(generation: FlashAttention, device: Device) -> Slowdown:
    """Time of a generation's kernels over that of the kernels that the device's calibration measured."""
    if generation is FlashAttention.NATIVE:
        return _NONE
    factor = _UNDER_FLASH_2[generation]
    flash_2 = generation_of(calibration_key(device.calibration)).flash_attention_2_slowdown
    return Slowdown(factor * flash_2.forward, factor * flash_2.backward)
