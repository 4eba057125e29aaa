"""The reads and writes of the kernels between matrix products, kernel by kernel, as a framework implements each operator.

A kernel is counted by the full-size tensors that it touches, in the activations' number format and in fp32. Eager counts
follow the formulas of PyTorch's autograd for the modules of Hugging Face's and Meta's LLaMA; fused ones are what one
hand-written kernel must touch (Transformer Engine, Apex, flash-attention's rotary and activation kernels). All but gathers
run at the bandwidth of streams: the slower curves of norms and activations are of an inference engine's kernels on few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.model.implementation import LossKernels, VectorKernels
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType


@dataclass(frozen=True, slots=True)
class ElementaryKernel:
    """One kernel: tensors of the operator's size that it reads and writes, in the activations' format and in fp32."""

    narrow: float
    single: float = 0.0
    curve: VectorKernel = VectorKernel.STREAM


@dataclass(frozen=True, slots=True)
class Passes:
    """Kernels of the forward pass and of the backward pass, in order of execution."""

    forward: tuple[ElementaryKernel, ...]
    backward: tuple[ElementaryKernel, ...]


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """A kernel's bytes under local sizes, and the curve of its bandwidth."""

    bytes_moved: float
    curve: VectorKernel


@dataclass(frozen=True, slots=True)
class OperatorTraffic:
    """Traffic of an operator's kernels in both passes."""

    forward: tuple[KernelTraffic, ...]
    backward: tuple[KernelTraffic, ...]


class VectorShape(Enum):
    """The properties of a vector operator that decide its kernels."""

    RMS_NORM = auto()
    LAYER_NORM = auto()
    ROTARY = auto()
    GATED_ACTIVATION = auto()
    PLAIN_ACTIVATION = auto()
    RESIDUAL = auto()
    DROPOUT_RESIDUAL = auto()
    LOSS = auto()
    EMBEDDING = auto()
    OTHER = auto()
    """Anything else: one kernel that reads its inputs and writes its outputs."""


_RMS_FLOPS = 5.0
"""From this count of FLOPs an element on, a norm subtracts a mean (importers count 3 to 4 for RMS, 5 to 7 for layer norms)."""

_CAST = ElementaryKernel(1, 1)
_ROWS = ElementaryKernel(0)
"""A kernel on one value a row: all launch."""
_COPY, _ADD = ElementaryKernel(2), ElementaryKernel(3)
_SINGLE_COPY, _SINGLE_ADD = ElementaryKernel(0, 2), ElementaryKernel(0, 3)


_EAGER_RMS_NORM = Passes(
    # x in fp32, its square, the mean, + eps, 1/sqrt, x times that, back to 16 bits, times the weight.
    forward=(_CAST, _SINGLE_COPY, ElementaryKernel(0, 1), _ROWS, _ROWS, _SINGLE_COPY, _CAST, _COPY),
    # Gradient times weight; weight gradient: product with the normed x, sum over rows; to fp32; times 1/rms; its product
    # with x, sum over a row, and on to the mean (three kernels of rows); x to the first power, twice that, times the
    # mean's gradient; sum of both ways; back to 16 bits.
    backward=(
        _COPY, _ADD, ElementaryKernel(1), _CAST, _SINGLE_COPY, _SINGLE_ADD, ElementaryKernel(0, 1), _ROWS, _ROWS, _ROWS,
        _SINGLE_COPY, _SINGLE_COPY, _SINGLE_COPY, _SINGLE_ADD, _CAST,
    ),
)  # fmt: skip
_EAGER_ROTARY = Passes(
    # x cos; the rotated half: negation of one half, concatenation; times sin; sum.
    forward=(_COPY, ElementaryKernel(1), _COPY, _COPY, _ADD),
    # Gradient times sin; of each slice a zeroed tensor and a copied half; negation; sum of both; times cos; sum.
    backward=(
        _COPY, ElementaryKernel(1), ElementaryKernel(1), ElementaryKernel(1), ElementaryKernel(1), ElementaryKernel(1), _ADD,
        _COPY, _ADD,
    ),
)  # fmt: skip
_EAGER_LOSS = Passes(
    # Logits in fp32, log-softmax, the targets' entries.
    forward=(_CAST, _SINGLE_COPY, _ROWS),
    # Zeros with the targets' entries set, log-softmax backward, back to 16 bits.
    backward=(ElementaryKernel(0, 1), _ROWS, _SINGLE_ADD, _CAST),
)
_VOCAB_PARALLEL_LOSS = Passes(
    # Megatron-LM core/tensor_parallel/cross_entropy.py: to fp32, maximum, difference, targets' entries, exponential, sum,
    # division; backward the targets' entries, times the gradient, back to 16 bits.
    forward=(
        _CAST, ElementaryKernel(0, 1), _SINGLE_COPY, _ROWS, _SINGLE_COPY, ElementaryKernel(0, 1), _ROWS, _SINGLE_COPY
    ),
    backward=(_ROWS, _SINGLE_COPY, _CAST),
)  # fmt: skip
_FUSED_RMS_NORM = Passes((_COPY,), (_ADD,))
# Input gradient, then the gradients of scale and shift: a second pass over gradient and x in PyTorch's kernels.
_EAGER_LAYER_NORM = Passes((_COPY,), (_ADD, _COPY))
_EMBEDDING = Passes(
    (ElementaryKernel(2, curve=VectorKernel.GATHER),),
    # Reads the output gradient and adds it into the table's rows.
    (ElementaryKernel(3, curve=VectorKernel.GATHER),),
)
# A residual stream feeds the branch and the sum, so their gradients are added up.
_PLAIN_RESIDUAL = Passes((_ADD,), (_ADD,))
_HALF_MASK = 0.5
"""A dropout mask is a byte an element, half a 16-bit tensor."""

_FUSED: Mapping[VectorShape, Passes] = {
    VectorShape.RMS_NORM: _FUSED_RMS_NORM,
    VectorShape.LAYER_NORM: _FUSED_RMS_NORM,
    VectorShape.ROTARY: Passes((_COPY,), (_COPY,)),
    VectorShape.GATED_ACTIVATION: Passes((_ADD,), (ElementaryKernel(5),)),
    VectorShape.PLAIN_ACTIVATION: Passes((_COPY,), (_ADD,)),
    VectorShape.RESIDUAL: _PLAIN_RESIDUAL,
    VectorShape.DROPOUT_RESIDUAL: Passes((ElementaryKernel(3 + _HALF_MASK),), (ElementaryKernel(2 + _HALF_MASK), _ADD)),
    VectorShape.EMBEDDING: _EMBEDDING,
}
_EAGER: Mapping[VectorShape, Passes] = {
    VectorShape.RMS_NORM: _EAGER_RMS_NORM,
    VectorShape.LAYER_NORM: _EAGER_LAYER_NORM,
    VectorShape.ROTARY: _EAGER_ROTARY,
    # Function, product; of the product two gradients, then the function's.
    VectorShape.GATED_ACTIVATION: Passes((_COPY, _ADD), (_ADD, _ADD, _ADD)),
    VectorShape.PLAIN_ACTIVATION: Passes((_COPY,), (_ADD,)),
    VectorShape.RESIDUAL: _PLAIN_RESIDUAL,
    VectorShape.DROPOUT_RESIDUAL: Passes((ElementaryKernel(2 + _HALF_MASK), _ADD), (ElementaryKernel(2 + _HALF_MASK), _ADD)),
    VectorShape.EMBEDDING: _EMBEDDING,
}
_COMPILED: Mapping[VectorShape, Passes] = {
    **_FUSED,
    # The sum before a norm stays in registers: the norm reads nothing of its own, and backward adds the stream's gradient.
    VectorShape.RESIDUAL: Passes((_COPY,), (ElementaryKernel(1),)),
}
_LOSSES: Mapping[LossKernels, Passes] = {
    LossKernels.BY_HAND: _VOCAB_PARALLEL_LOSS,
    LossKernels.FUSED_IN_PARTS: _VOCAB_PARALLEL_LOSS,
    LossKernels.EAGER: _EAGER_LOSS,
    LossKernels.COMPILED: Passes((_COPY,), (_COPY,)),
}
_IMPLEMENTATIONS: Mapping[VectorKernels, Mapping[VectorShape, Passes]] = {
    VectorKernels.EAGER: _EAGER,
    VectorKernels.FUSED_NORMS: {**_EAGER, VectorShape.RMS_NORM: _FUSED_RMS_NORM, VectorShape.LAYER_NORM: _FUSED_RMS_NORM},
    VectorKernels.FUSED: _FUSED,
    VectorKernels.COMPILED: _COMPILED,
}


def vector_shape(operator: Operator) -> VectorShape:
    """Return the known vector operator that this operator is."""
    match operator.kind:
        case OperatorKind.LOSS:
            return VectorShape.LOSS
        case OperatorKind.EMBEDDING:
            return VectorShape.EMBEDDING
        case OperatorKind.NORM if operator.weights and len(operator.inputs) == 1:
            return VectorShape.RMS_NORM if operator.flops_per_element < _RMS_FLOPS else VectorShape.LAYER_NORM
        case OperatorKind.ELEMENTWISE:
            return _elementwise_shape(operator)
        case _:
            return VectorShape.OTHER


def _elementwise_shape(operator: Operator) -> VectorShape:
    inputs, outputs = operator.inputs, operator.outputs
    if len(inputs) == len(outputs) == 2 and all(i.dims == o.dims for i, o in zip(inputs, outputs, strict=True)):
        return VectorShape.ROTARY
    if operator.flops_per_element > 1:
        return {1: VectorShape.PLAIN_ACTIVATION, 2: VectorShape.GATED_ACTIVATION}.get(len(inputs), VectorShape.OTHER)
    if len(inputs) == 2 and inputs[0].dims == inputs[1].dims == outputs[0].dims:
        return VectorShape.DROPOUT_RESIDUAL if len(outputs) == 2 else VectorShape.RESIDUAL
    return VectorShape.OTHER


def vector_passes(operator: Operator, kernels: VectorKernels, loss: LossKernels) -> Passes | None:
    """Kernels of a vector operator; None where it is none of the known ones, and runs as one kernel each way."""
    if operator.kind is OperatorKind.LOSS:
        return _LOSSES[loss]
    return _IMPLEMENTATIONS[kernels].get(vector_shape(operator))


def vector_traffic(
    operator: Operator,
    sizes: Mapping[str, int],
    *,
    dtype: DType,
    kernels: VectorKernels,
    curve: VectorKernel,
    loss: LossKernels = LossKernels.BY_HAND,
) -> OperatorTraffic:
    """Bytes of each kernel of a vector operator; ``curve`` is that of an operator that is none of the known ones."""
    passes = vector_passes(operator, kernels, loss)
    if passes is None:
        inputs = sum(tensor.elements(sizes) for tensor in operator.inputs) * dtype.size_bytes
        outputs = sum(tensor.elements(sizes) for tensor in operator.outputs) * dtype.size_bytes
        # Backward reads the inputs and the output gradient, and writes the input gradients.
        return OperatorTraffic((KernelTraffic(inputs + outputs, curve),), (KernelTraffic(2 * inputs + outputs, curve),))
    elements = _elements(operator, sizes)
    forward, backward = (
        tuple(
            KernelTraffic(elements * (kernel.narrow * dtype.size_bytes + kernel.single * DType.FP32.size_bytes), kernel.curve)
            for kernel in kernels_of_pass
            if not (kernel is _CAST and dtype is DType.FP32)
        )
        for kernels_of_pass in (passes.forward, passes.backward)
    )
    return OperatorTraffic(forward, backward)


def _elements(operator: Operator, sizes: Mapping[str, int]) -> int:
    """Elements of a tensor of the operator's size."""
    match vector_shape(operator):
        case VectorShape.ROTARY:
            return sum(tensor.elements(sizes) for tensor in operator.inputs)
        case VectorShape.LOSS | VectorShape.RMS_NORM | VectorShape.LAYER_NORM:
            return operator.inputs[0].elements(sizes)
        case _:
            return operator.outputs[0].elements(sizes)
