"""Training with matrix products below 16 bits: recipes, and what each changes in a product's time and in what it keeps.

Weights of such products live in the low format (fp8 primary weights: a copy for each of the two directions takes the bytes
of one 16-bit copy), the optimizer's master copy in fp32. Norms, attention, embedding, router and vocabulary head stay in 16
bits (Transformer Engine, and Megatron-LM's --fp8-recipe).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.units import DType


class MatmulRecipe(StrEnum):
    """Number format of a layer's matrix products, and how its scales are found."""

    WORKING = "working"
    """The format of weights and activations: nothing is cast."""
    FP8_DELAYED = "fp8-delayed"
    """One scale a tensor, from the largest values of steps before (Micikevicius et al. 2022, FP8 formats, section 3)."""
    FP8_CURRENT = "fp8-current"
    """One scale a tensor, from the tensor itself: it is read once more before it is cast."""
    FP8_ROWWISE = "fp8-rowwise"
    """One scale a row, found while it is cast."""
    FP8_BLOCKWISE = "fp8-blockwise"
    """One scale for 1 x 128 of activations and 128 x 128 of weights (DeepSeek-V3, section 3.3)."""
    MXFP8 = "mxfp8"
    """One scale for 32 elements, applied by the matrix units (OCP microscaling formats 1.0)."""
    NVFP4 = "nvfp4"
    """4 bits, one scale for 16 elements and one for the tensor, which is read once more for it."""

    @property
    def dtype(self) -> DType | None:
        """Format of the operands; None for the working format."""
        if self is MatmulRecipe.WORKING:
            return None
        return DType.FP4 if self is MatmulRecipe.NVFP4 else DType.FP8

    @property
    def scaling_passes(self) -> int:
        """Times that an operand is read in 16 bits only to find its scale."""
        return 1 if self in (MatmulRecipe.FP8_CURRENT, MatmulRecipe.NVFP4) else 0

    def element_bytes(self, working: DType) -> float:
        """Bytes of an element of an operand, its scales left out (at most 1/16 of it)."""
        return working.size_bytes if self.dtype is None else self.dtype.size_bytes


class SavedFormat(StrEnum):
    """Number format of what layers keep for the backward pass."""

    WORKING = "working"
    """As the operators read it: inputs of products in the recipe's format, all else in the working one."""
    FP8 = "fp8"
    """Inputs of products and of activation functions in fp8, attention's output in 12 bits (DeepSeek-V3 report, section
    3.3.3)."""


ATTENTION_OUTPUT_BYTES = 1.5
"""Of an element of attention's output under `SavedFormat.FP8`: E5M6, since attention's own backward pass reads it as well
(DeepSeek-V3 report, section 3.3.3, low-precision activation)."""


# The stored format of weights: bytes an element with its scales, and the number format that products with them compute in.


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

        4-bit floats compute as such on Blackwell, 8-bit ones from Ada and Hopper on; elsewhere both are widened to 16 bits in
        the kernel (Marlin, from Ampere on). Integers are always widened (weight-only quantisation).
        """
        return next((dtype for dtype in _COMPUTED_IN[self] if dtype in device.peak_flops), _COMPUTED_IN[self][-1])


class FormatWord(StrEnum):
    """Words by which a served model's format is said: what products compute in, or how weights are stored."""

    BF16 = "bf16"
    BFLOAT16 = "bfloat16"
    FP16 = "fp16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    FP4 = "fp4"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def precision(self) -> DType | None:
        """The format that products compute in; None of integers, which any 16-bit format multiplies."""
        return _WORDS[self][0]

    @property
    def weights(self) -> WeightFormat | None:
        """The storage format of weights, where the word says more than what products compute in."""
        return _WORDS[self][1]


_WORDS: Mapping[FormatWord, tuple[DType | None, WeightFormat | None]] = {
    FormatWord.BF16: (DType.BF16, None),
    FormatWord.BFLOAT16: (DType.BF16, None),
    FormatWord.FP16: (DType.FP16, None),
    FormatWord.FLOAT16: (DType.FP16, None),
    FormatWord.FP8: (DType.FP8, None),
    FormatWord.FP8_BLOCK: (DType.FP8, WeightFormat.FP8_BLOCK),
    FormatWord.FP4: (DType.FP4, None),
    FormatWord.NVFP4: (DType.FP4, WeightFormat.NVFP4),
    FormatWord.MXFP4: (DType.FP4, WeightFormat.MXFP4),
    FormatWord.INT8: (None, WeightFormat.INT8),
    FormatWord.INT4: (None, WeightFormat.INT4),
}

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
    WeightFormat.FP8: (DType.FP8, DType.BF16),
    WeightFormat.FP8_BLOCK: (DType.FP8, DType.BF16),
    WeightFormat.NVFP4: (DType.FP4, DType.BF16),
    WeightFormat.MXFP4: (DType.FP4, DType.BF16),
    WeightFormat.INT8: (DType.BF16, DType.FP16),
    WeightFormat.INT4: (DType.BF16, DType.FP16),
}
