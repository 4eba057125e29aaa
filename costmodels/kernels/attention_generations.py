"""The slowdown of earlier generations of attention kernels against a device's fastest ones, as their authors measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.model.implementation import FlashAttention


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factors on the time of both passes."""

    forward: float
    backward: float


_NONE = Slowdown(1.0, 1.0)

_UNDER_FLASH_2: Mapping[FlashAttention, float] = {
    FlashAttention.FLASH_2: 1.0,
    FlashAttention.FLASH_1: (1.7 * 3.0) ** 0.5,
    FlashAttention.FLASH_1_TRITON: (1.3 * 2.5) ** 0.5,
}
"""FlashAttention-2 is 1.7 to 3.0 times as fast as FlashAttention and 1.3 to 2.5 times as its Triton version on A100 (Dao 2023,
section 4.1): the middle of each range."""

_FLASH_2_UNDER_NATIVE = Slowdown((1.5 * 2.0) ** 0.5, (1.5 * 1.75) ** 0.5)
"""FlashAttention-3 is 1.5 to 2.0 times as fast as FlashAttention-2 forward and 1.5 to 1.75 times backward on H100 (Shah et al.
2024, section 4.1)."""

_WGMMA_CALIBRATIONS = ("h100", "h200", "h800", "b200", "b300", "gb200", "gb300")
"""Devices whose matrix units FlashAttention-2 does not drive fully: Hopper's and later ones."""


def attention_slowdown(generation: FlashAttention, device: Device) -> Slowdown:
    """Time of a generation's kernels over that of the kernels that the device's calibration measured."""
    if generation is FlashAttention.NATIVE:
        return _NONE
    factor = _UNDER_FLASH_2[generation]
    if not device.calibration.startswith(_WGMMA_CALIBRATIONS):
        return Slowdown(factor, factor)
    return Slowdown(factor * _FLASH_2_UNDER_NATIVE.forward, factor * _FLASH_2_UNDER_NATIVE.backward)
