"""The stored format of weights: bytes an element with its scales, and the number format that products with them compute in."""

from __future__ import annotations

from enum import StrEnum

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.units import DType


class WeightFormat(StrEnum):
    """Storage formats of serving checkpoints.

    FP8 has a scale a tensor or row; FP8_BLOCK one fp32 scale for 128 x 128 weights (DeepSeek-V3); NVFP4 an fp8 scale for 16
    weights; MXFP4 an 8-bit exponent for 32 (OCP Microscaling); INT8 a 16-bit scale a channel; INT4 a 16-bit scale for 128
    (GPTQ and AWQ checkpoints).
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def size_bytes(self) -> float:
        """Bytes of a weight with its share of the scales."""
        return _SIZE_BYTES[self]

    def computed_in(self, device: Device) -> DType:
        """Format that the device multiplies in: the narrowest it has of those that engines run for this storage.

        4-bit floats compute as such on Blackwell and are widened to 16 bits in the kernel elsewhere (Marlin); integers are
        always widened (weight-only quantisation).
        """
        return next((dtype for dtype in _COMPUTED_IN[self] if dtype in device.peak_flops), _COMPUTED_IN[self][-1])


_SIZE_BYTES = {
    WeightFormat.BF16: 2.0,
    WeightFormat.FP16: 2.0,
    WeightFormat.FP8: 1.0,
    WeightFormat.FP8_BLOCK: 1.0 + 4.0 / (128 * 128),
    WeightFormat.NVFP4: 0.5 + 1.0 / 16,
    WeightFormat.MXFP4: 0.5 + 1.0 / 32,
    WeightFormat.INT8: 1.0,
    WeightFormat.INT4: 0.5 + 2.0 / 128,
}

_COMPUTED_IN = {
    WeightFormat.BF16: (DType.BF16,),
    WeightFormat.FP16: (DType.FP16,),
    WeightFormat.FP8: (DType.FP8,),
    WeightFormat.FP8_BLOCK: (DType.FP8,),
    WeightFormat.NVFP4: (DType.FP4, DType.BF16),
    WeightFormat.MXFP4: (DType.FP4, DType.BF16),
    WeightFormat.INT8: (DType.BF16,),
    WeightFormat.INT4: (DType.BF16,),
}
