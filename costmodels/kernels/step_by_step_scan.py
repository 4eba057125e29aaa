"""A Mamba-2 mixer without fused kernels: the chunked scan as batched products with copies and element-wise kernels between.

Counted as the state-space duality's formula runs in PyTorch (Dao and Gu 2024, listing 1; Huawei's MindSpeed-LLM,
tasks/models/ssm/state_space_duality.py and core/ssm/mamba_mixer.py, which have no fused scan for Ascend): B and C are repeated
for every head, operands are brought from token-major to head-major layout, and the decay of each chunk is a matrix in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.kernels.vector_traffic import KernelTraffic, OperatorTraffic
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.units import DType


@dataclass(frozen=True, slots=True)
class ScanElements:
    """Elements of the tensors of a chunked scan.

    inner      x, the time step times x, outputs: one a token and channel
    repeated   B or C once a head: one a token, head and state
    scores     matrices inside chunks: one a token, head and token of its chunk
    states     of chunks: one a chunk, channel and state
    """

    inner: int
    repeated: int
    scores: int
    states: int


def scan_elements(operator: Operator, sizes: Mapping[str, int]) -> ScanElements:
    """Sizes of a chunked scan's tensors under local sizes."""
    assert operator.chunk is not None, "only scans in chunks have them"
    x, b = operator.inputs[0], operator.inputs[1]
    width, state = sizes[x.dims[-1]], sizes[b.dims[-1]]
    chunk = min(operator.chunk, sizes[SEQ])
    inner = x.elements(sizes)
    heads_and_tokens = inner // width
    return ScanElements(inner, heads_and_tokens * state, heads_and_tokens * chunk, inner * state // chunk)


_N_PRODUCTS = 5


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels by the tensors that each reads and writes: in the activations' format, and in fp32."""

    narrow: tuple[int, ...] = ()
    single: tuple[int, ...] = ()

    def bytes_moved(self, elements: int, dtype: DType) -> Iterable[float]:
        """Bytes of each kernel on tensors of that many elements."""
        yield from (elements * count * dtype.size_bytes for count in self.narrow)
        yield from (elements * count * DType.FP32.size_bytes for count in self.single)


# Forward: time step times x, head-major layout, the chunks' outputs back to token-major layout, outputs of states scaled and
# brought back, the sum of both, D times x, their sum.
_INNER_FORWARD = _Kernels(narrow=(2, 2, 2, 2, 2, 3, 2, 3))
# Gradients by x and by the time step (product, sum), of D's product likewise and of the scaling; layouts; three sums where a
# tensor was read twice.
_INNER_BACKWARD = _Kernels(narrow=(2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 2, 2, 3, 3, 3))
# B and C repeated (written), in head-major layout, B scaled by its decay and laid out.
_REPEATED_FORWARD = _Kernels(narrow=(1, 1, 2, 2, 2, 2))
# Sums over a group's heads, layouts, both gradients of the scaling, a sum of gradients of each.
_REPEATED_BACKWARD = _Kernels(narrow=(1, 1, 2, 2, 2, 2, 3, 1, 3, 3))
# The segmented sum (repeated, masked, summed, masked), its exponential, to 16 bits; scores times decay.
_SCORES_FORWARD = _Kernels(narrow=(3,), single=(1, 2, 2, 2, 2, 1))
# Made again first; then both gradients of the product, through exponential, masks and sum.
_SCORES_BACKWARD = _Kernels(narrow=(3, 3, 3), single=(1, 2, 2, 2, 2, 1, 1, 3, 2, 6, 2, 1))
# Layouts around the product that makes states, the one over chunks and the one with C; a zero state put in front.
_STATES = _Kernels(narrow=(2, 2, 2, 2, 2, 2))
# Head-major layout, convolution, activation function, layout; backward both gradients of the convolution.
_CONVOLUTION_FORWARD = _Kernels(narrow=(2, 2, 2, 2))
_CONVOLUTION_BACKWARD = _Kernels(narrow=(2, 3, 2, 2, 2))


def step_by_step_traffic(operator: Operator, sizes: Mapping[str, int], dtype: DType) -> OperatorTraffic | None:
    """Traffic of a mixer's kernels beside its products; None for operators that are the same either way."""
    if operator.kind is OperatorKind.CONVOLUTION:
        elements = sum(tensor.elements(sizes) for tensor in operator.outputs)
        return OperatorTraffic(
            _traffic([(_CONVOLUTION_FORWARD, elements)], dtype), _traffic([(_CONVOLUTION_BACKWARD, elements)], dtype)
        )
    if operator.kind is not OperatorKind.SCAN or operator.chunk is None:
        return None
    of = scan_elements(operator, sizes)
    forward = ((_INNER_FORWARD, of.inner), (_REPEATED_FORWARD, of.repeated), (_SCORES_FORWARD, of.scores), (_STATES, of.states))
    backward = (
        (_INNER_BACKWARD, of.inner),
        (_REPEATED_BACKWARD, of.repeated),
        (_SCORES_BACKWARD, of.scores),
        (_STATES, of.states),
    )
    products = _products(of, dtype)
    return OperatorTraffic((*products, *_traffic(forward, dtype)), (*products, *products, *_traffic(backward, dtype)))


def _products(of: ScanElements, dtype: DType) -> tuple[KernelTraffic, ...]:
    """The batched products: C B^T, with x, states, over chunks, with C (survey section 5.3, steps 1 to 5).

    They move memory: with sides of a chunk, a head and a state they do a third to two thirds of a side's FLOPs for each byte,
    an eighth of what the device's matrix units could. Backward has two for each.
    """
    moved = (
        2 * of.repeated + of.scores,
        of.scores + 2 * of.inner,
        of.repeated + of.inner + of.states,
        2 * of.states,
        of.repeated + of.states + of.inner,
    )
    return tuple(KernelTraffic(float(elements * dtype.size_bytes), VectorKernel.STREAM) for elements in moved)


def _traffic(kernels: Iterable[tuple[_Kernels, int]], dtype: DType) -> tuple[KernelTraffic, ...]:
    return tuple(
        KernelTraffic(moved, VectorKernel.STREAM) for each, elements in kernels for moved in each.bytes_moved(elements, dtype)
    )


def step_by_step_launches(operator: Operator) -> tuple[int, int] | None:
    """Kernels of a mixer's operator, forward and backward, products of the scan with them; None as above."""
    if operator.kind is OperatorKind.CONVOLUTION:
        return len(_CONVOLUTION_FORWARD.narrow), len(_CONVOLUTION_BACKWARD.narrow)
    if operator.kind is not OperatorKind.SCAN or operator.chunk is None:
        return None
    forward = (_INNER_FORWARD, _REPEATED_FORWARD, _SCORES_FORWARD, _STATES)
    backward = (_INNER_BACKWARD, _REPEATED_BACKWARD, _SCORES_BACKWARD, _STATES)
    counts = [sum(len(each.narrow) + len(each.single) for each in kernels) for kernels in (forward, backward)]
    return counts[0] + _N_PRODUCTS, counts[1] + 2 * _N_PRODUCTS


def step_by_step_kept_bytes(operator: Operator, sizes: Mapping[str, int], dtype: DType) -> float:
    """Return the bytes that backward needs beside the inputs of a chunked scan.

    B once repeated and once more laid out, C laid out; states before and after the recurrence; x times the time step, and what
    states add to outputs before it is scaled. Matrices inside chunks are made again.
    """
    if operator.kind is not OperatorKind.SCAN or operator.chunk is None:
        return 0.0
    of = scan_elements(operator, sizes)
    return (3.0 * of.repeated + 2.0 * of.states + 2.0 * of.inner) * dtype.size_bytes
