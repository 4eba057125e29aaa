"""Time of one operator on one device, forward and backward, from its local sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.hardware.generations import Slowdown, generation_of
from meshwright.costmodels.kernels.compute import (
    attention_backward_s,
    attention_forward_s,
    sustained_matmul_s,
    sustained_memory_s,
)
from meshwright.costmodels.kernels.step_by_step_scan import step_by_step_traffic
from meshwright.costmodels.kernels.vector_traffic import KernelTraffic, vector_traffic
from meshwright.costmodels.model.adapter import Adapter, AdapterKind, BaseFormat, has_adapter
from meshwright.costmodels.model.dims import BATCH, SEQ, WHOLE_SEQUENCE, TokenSlice
from meshwright.costmodels.model.documents import PackedDocuments, flops_of_documents
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    AdapterTarget,
    FlashAttention,
    LossKernels,
    ScanKernels,
    TrainedWeights,
    VectorKernels,
)
from meshwright.costmodels.model.operators import (
    Operator,
    OperatorKind,
    forward_flops,
    key_tokens,
    key_value_elements,
    matmul_groups,
    matmul_shape,
    product_shape,
    query_tokens,
)
from meshwright.costmodels.units import DType


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of the forward pass and of the backward pass (input and weight gradients together)."""

    forward_s: float
    backward_s: float


def operator_time(
    operator: Operator,
    sizes: Mapping[str, int],
    *,
    device: Device,
    dtype: DType,
    cp: int = 1,
    gathers_keys: bool = False,
    gradient_dtype: DType | None = None,
    kernels: VectorKernels = VectorKernels.FUSED,
    attention: FlashAttention = FlashAttention.NATIVE,
    recipe: MatmulRecipe = MatmulRecipe.WORKING,
    trained: TrainedWeights = TrainedWeights.ALL,
    adapter: Adapter | None = None,
    targets: tuple[AdapterTarget, ...] = (),
    scan: ScanKernels = ScanKernels.FUSED,
    loss: LossKernels = LossKernels.BY_HAND,
    place: TokenSlice = WHOLE_SEQUENCE,
    documents: PackedDocuments | None = None,
) -> OperatorTime:
    """Time under local sizes; ``seq`` is a rank's share of the sequence under context parallelism of degree ``cp``,
    whose ranks hold all keys and values if ``gathers_keys``, and pass them on if not.

    ``gradient_dtype`` is the format in which weight gradients add up over micro-batches; None: nothing is added up.
    ``kernels`` is how the framework runs vector operators, ``attention`` the generation of its fused attention, ``recipe`` how
    this operator's products are cast, ``trained`` whether its weights have gradients, ``adapter`` which adapters there are
    instead (None: of an unknown rank beside ``targets``, or each product), ``scan`` how state-space mixers run, ``loss`` how
    the cross entropy, ``place`` where the tokens lie in their sequence (cp 1), ``documents`` what a sequence is packed of.
    """
    if operator.kind is OperatorKind.MATMUL:
        computed, frozen = recipe.dtype or dtype, trained is not TrainedWeights.ALL
        beside = _beside_frozen(operator, sizes, device, computed, adapter, targets) if frozen else None
        time = _matmul_time(operator, sizes, device=device, dtype=computed, beside=beside)
        if recipe.scaling_passes:
            time = _with_scaling(time, operator, sizes, device, dtype, recipe)
        if gradient_dtype is None or frozen:
            return time
        return OperatorTime(time.forward_s, time.backward_s + _accumulation_s(operator, sizes, device, dtype, gradient_dtype))
    if operator.kind is OperatorKind.ATTENTION:
        if documents is not None and documents.masks(operator):
            factors = _attention_factors(attention, recipe, device, documents.document_tokens)
            time = _packed_attention_time(operator, sizes, documents, device=device, dtype=dtype, factors=factors)
            return _with_casts(time, operator, sizes, device, dtype) if recipe.dtype else time
        factors = _attention_factors(attention, recipe, device, sizes[query_tokens(operator)])
        kernels_of = (
            _gathered_kernels(operator, sizes, cp) if gathers_keys else _ring_kernels(operator, sizes, cp, place.earlier)
        )
        time = _attention_time(operator, sizes, kernels_of, device=device, dtype=dtype, factors=factors)
        if recipe.dtype:
            time = _with_casts(time, operator, sizes, device, dtype)
        return _with_slice_gradients(time, operator, sizes, device, dtype, place) if place.later else time
    if operator.kind is OperatorKind.PRODUCT:
        return OperatorTime(*product_s(operator, sizes, device=device, dtype=dtype))
    steps = step_by_step_traffic(operator, sizes, dtype) if scan is ScanKernels.STEP_BY_STEP else None
    if operator.kind is OperatorKind.SCAN and operator.chunk is not None and steps is None:
        return _chunked_scan_time(operator, sizes, device=device, dtype=dtype)
    traffic = steps or vector_traffic(operator, sizes, dtype=dtype, kernels=kernels, curve=vector_kernel(operator), loss=loss)
    moved = OperatorTime(_kernels_s(traffic.forward, device), _kernels_s(traffic.backward, device))
    if operator.kind is OperatorKind.CONVOLUTION:
        forward_s, backward_s = convolution_products_s(operator, sizes, device=device, dtype=dtype)
        return OperatorTime(max(moved.forward_s, forward_s), max(moved.backward_s, backward_s))
    unaligned_s = unaligned_attention_s(operator, sizes, device=device, dtype=dtype)
    return OperatorTime(max(moved.forward_s, unaligned_s), max(moved.backward_s, 2 * unaligned_s)) if unaligned_s else moved


def _kernels_s(kernels: tuple[KernelTraffic, ...], device: Device) -> float:
    return sum(sustained_memory_s(device, kernel.bytes_moved, kernel=kernel.curve) for kernel in kernels)


def _matmul_time(
    operator: Operator,
    sizes: Mapping[str, int],
    *,
    device: Device,
    dtype: DType,
    beside: OperatorTime | None,
) -> OperatorTime:
    """One GEMM forward, two backward; with routed weights a grouped GEMM whose rows are spread evenly over the experts.

    Frozen weights have no gradient, but ``beside`` them work of their own.
    """
    m, n, k = matmul_shape(operator, sizes)
    groups = min(matmul_groups(operator, sizes), max(1, m))
    rows = -(-m // groups)
    forward = sustained_matmul_s(device, dtype, rows, n, k, batch=groups)
    # Input gradient dY W^T is (m, k, n); weight gradient X^T dY is (k, n, m).
    input_gradient = sustained_matmul_s(device, dtype, rows, k, n, batch=groups)
    if beside is not None:
        return OperatorTime(forward + beside.forward_s, input_gradient + beside.backward_s)
    weight_gradient = sustained_matmul_s(device, dtype, k, n, rows, batch=groups)
    return OperatorTime(forward, input_gradient + weight_gradient)


class Product(Enum):
    """A product that a MATMUL operator runs on rows of tokens: forward, or backward for its input's gradient."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"


def product_in_parts_s(
    product: Product, operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType, parts: int
) -> tuple[float, float]:
    """Seconds of a product of a MATMUL operator in one piece, and of one of ``parts`` pieces of its rows."""
    m, n, k = matmul_shape(operator, sizes)
    n, k = (n, k) if product is Product.OUTPUT else (k, n)
    whole_s, part_s = (sustained_matmul_s(device, dtype, rows, n, k) for rows in (m, -(-m // parts)))
    return whole_s, part_s


def weight_gradient_s(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType) -> float:
    """Seconds of a product's weight gradient alone."""
    m, n, k = matmul_shape(operator, sizes)
    groups = min(matmul_groups(operator, sizes), max(1, m))
    return sustained_matmul_s(device, dtype, k, n, -(-m // groups), batch=groups)


def _beside_frozen(
    operator: Operator,
    sizes: Mapping[str, int],
    device: Device,
    dtype: DType,
    adapter: Adapter | None,
    targets: tuple[AdapterTarget, ...],
) -> OperatorTime:
    if adapter is not None:
        return OperatorTime(*adapter_s(adapter, operator, sizes, device=device, dtype=dtype))
    if has_adapter(operator, TrainedWeights.ADAPTERS, adapter, targets):
        return _adapter_time(operator, sizes, device, dtype)
    return OperatorTime(0.0, 0.0)


def _adapter_time(operator: Operator, sizes: Mapping[str, int], device: Device, dtype: DType) -> OperatorTime:
    """A low-rank adapter, its rank far below the sizes of the product: one thin product reads the input, one writes an output
    that is added to the product's. Backward, three read the output's gradient or the input, one writes an input gradient,
    which is added too (Hu et al. 2021, section 4.1).
    """
    inputs, outputs = (
        sum(tensor.elements(sizes) for tensor in tensors) * max(dtype.size_bytes, DType.BF16.size_bytes)
        for tensors in (operator.inputs, operator.outputs)
    )
    return OperatorTime(
        sum(sustained_memory_s(device, moved) for moved in (inputs, outputs, 3 * outputs)),
        sum(sustained_memory_s(device, moved) for moved in (outputs, outputs, inputs, inputs, 3 * inputs)),
    )


def _with_scaling(
    time: OperatorTime, operator: Operator, sizes: Mapping[str, int], device: Device, dtype: DType, recipe: MatmulRecipe
) -> OperatorTime:
    """The time with a reading of the input, and backward of the output's gradient, to find their scales.

    Casts are in the products' own times: the tables of fp8 and fp4 kernels hold an activation's quantisation.
    """
    inputs, outputs = (
        recipe.scaling_passes * sustained_memory_s(device, sum(t.elements(sizes) for t in tensors) * dtype.size_bytes)
        for tensors in (operator.inputs, operator.outputs)
    )
    return OperatorTime(time.forward_s + inputs, time.backward_s + outputs)


def _accumulation_s(operator: Operator, sizes: Mapping[str, int], device: Device, dtype: DType, gradient_dtype: DType) -> float:
    """Adding a weight gradient to the sum of those before, in the epilogue of its GEMM (Megatron-LM's gradient accumulation
    fusion): the sum is read and written instead of a gradient in ``dtype`` being written, which the GEMM's time counts.

    A tied weight's gradient is added where it is used. No kernel of its own: the bytes alone take time.
    """
    elements = sum(weight.elements(sizes) for weight in operator.weights)
    more_bytes = max(0.0, elements * (2 * gradient_dtype.size_bytes - dtype.size_bytes))
    return sustained_memory_s(device, 2 * more_bytes) - sustained_memory_s(device, more_bytes)


def _chunked_scan_time(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType) -> OperatorTime:
    """State-space duality: four batched products a chunk and head, or its memory traffic where that takes longer.

    C B^T (l, l, n), its product with x (l, p, l), states of chunks (p, n, l) and what they add to outputs (l, p, n):
    survey 5.3, steps 1 to 5. Each product has two in the backward pass.
    """
    assert operator.chunk is not None, "only chunked scans come here"
    x, b = operator.inputs[0], operator.inputs[1]
    width, state = sizes[x.dims[-1]], sizes[b.dims[-1]]
    chunk = min(operator.chunk, sizes[SEQ])
    batch = max(1, x.elements(sizes) // (width * chunk))
    shapes = ((chunk, chunk, state), (chunk, width, chunk), (width, state, chunk), (chunk, width, state))
    products = sum(sustained_matmul_s(device, dtype, m, n, k, batch=batch) for m, n, k in shapes)
    # What a delta rule computes besides is products of the same sides.
    products *= 1.0 + operator.flops_per_element * x.elements(sizes) / sum(2.0 * batch * m * n * k for m, n, k in shapes)
    traffic = vector_traffic(operator, sizes, dtype=dtype, kernels=VectorKernels.FUSED, curve=VectorKernel.STREAM)
    return OperatorTime(
        max(products, _kernels_s(traffic.forward, device)), max(2 * products, _kernels_s(traffic.backward, device))
    )


def _with_slice_gradients(
    time: OperatorTime, operator: Operator, sizes: Mapping[str, int], device: Device, dtype: DType, place: TokenSlice
) -> OperatorTime:
    """The time with adding a slice's gradients of keys and values to those of the slices behind it, which ran before: sums and
    addends are read, sums written. The last slice of a sequence writes its own as the sums."""
    of_keys = key_value_elements(operator, sizes) * (1.0 + place.earlier / sizes[SEQ])
    return OperatorTime(time.forward_s, time.backward_s + sustained_memory_s(device, 3 * of_keys * dtype.size_bytes))


@dataclass(frozen=True, slots=True)
class _AttentionKernels:
    """Equal kernels of attention on one rank: how many, the FLOPs, queries and keys of each, and merges of their outputs."""

    number: int
    flops: float
    queries: float
    keys: float
    merges: int = 0


def _ring_kernels(operator: Operator, sizes: Mapping[str, int], cp: int, earlier: int) -> _AttentionKernels:
    """One kernel; in a ring (cp > 1) one a chunk of keys, and a merge of the partial outputs after each.

    Zig-zag chunks balance the causal mask, so each step has 1/cp of the rank's pairs. A token slice reads the ``earlier`` keys
    of its sequence, too.
    """
    queries, keys = sizes[query_tokens(operator)], sizes[key_tokens(operator)]
    flops = forward_flops(operator, sizes, keys * cp, earlier=earlier) / cp
    return _AttentionKernels(cp, flops, queries, keys + earlier, merges=cp - 1)


def _gathered_kernels(operator: Operator, sizes: Mapping[str, int], cp: int) -> _AttentionKernels:
    """Each of a rank's two zig-zag chunks of queries over all keys up to its end (Llama 3 report, section 3.3.2).

    Both kernels run at once, so that tiles of one fill the waves of the other (Transformer Engine gives them a stream each).
    Of 2 cp chunks the i-th sees i, and its rank's other one 2 cp + 1 - i: in the mean each sees half of 2 cp + 1.
    """
    queries, keys = sizes[query_tokens(operator)], sizes[key_tokens(operator)]
    return _AttentionKernels(1, forward_flops(operator, sizes, keys * cp), queries, keys / 2 * (2 * cp + 1) / 2)


def _attention_time(
    operator: Operator,
    sizes: Mapping[str, int],
    kernels: _AttentionKernels,
    *,
    device: Device,
    dtype: DType,
    factors: tuple[float, float],
) -> OperatorTime:
    """Flash attention in these kernels. A merge reads the running output and the new one, and writes the running one, all in
    fp32 (Liu et al. 2023, Ring Attention, algorithm 1).
    """
    query, key, _ = operator.inputs
    head_dim = sizes[query.dims[-1]]
    queries, keys = sizes[query_tokens(operator)], sizes[key_tokens(operator)]
    forward, backward = (
        kernels.number
        * float(
            pass_s(
                device,
                dtype,
                flops=kernels.flops,
                q_tokens=kernels.queries,
                kv_tokens=kernels.keys,
                batch=sizes[BATCH],
                heads=query.elements(sizes) // (sizes[BATCH] * queries * head_dim),
                kv_heads=key.elements(sizes) // (sizes[BATCH] * keys * sizes[key.dims[-1]]),
                head_dim=head_dim,
            )
        )
        for pass_s in (attention_forward_s, attention_backward_s)
    )
    forward, backward = forward * factors[0], backward * factors[1]
    if kernels.merges:
        outputs = sum(tensor.elements(sizes) for tensor in operator.outputs)
        merge = sustained_memory_s(device, 3 * outputs * DType.FP32.size_bytes)
        # Backward adds up the query gradient the same way.
        forward, backward = forward + kernels.merges * merge, backward + kernels.merges * merge
    return OperatorTime(forward, backward)


def _packed_attention_time(
    operator: Operator,
    sizes: Mapping[str, int],
    documents: PackedDocuments,
    *,
    device: Device,
    dtype: DType,
    factors: tuple[float, float],
) -> OperatorTime:
    """Flash attention over documents of many lengths in one kernel, as over equal ones of as many tokens and pairs.

    The kernel takes the documents of a batch as one list of tokens with their borders (FlashAttention's varlen functions).
    """
    query, key, _ = operator.inputs
    head_dim, tokens = sizes[query.dims[-1]], sizes[SEQ]
    each = documents.document_tokens
    forward, backward = (
        float(
            pass_s(
                device,
                dtype,
                flops=flops_of_documents(operator, sizes, documents),
                q_tokens=each,
                kv_tokens=each,
                batch=sizes[BATCH] * tokens / each,
                heads=query.elements(sizes) // (sizes[BATCH] * tokens * head_dim),
                kv_heads=key.elements(sizes) // (sizes[BATCH] * tokens * sizes[key.dims[-1]]),
                head_dim=head_dim,
            )
        )
        for pass_s in (attention_forward_s, attention_backward_s)
    )
    return OperatorTime(forward * factors[0], backward * factors[1])


def _with_casts(time: OperatorTime, operator: Operator, sizes: Mapping[str, int], device: Device, dtype: DType) -> OperatorTime:
    """The time with casts around attention in fp8: of its inputs before the kernel and of its output behind it; backward of the
    output's gradient and of those of the inputs, as many."""
    elements = sum(tensor.elements(sizes) for tensor in (*operator.inputs, *operator.outputs))
    casts_s = sustained_memory_s(device, elements * (dtype.size_bytes + DType.FP8.size_bytes))
    return OperatorTime(time.forward_s + casts_s, time.backward_s + casts_s)


def vector_kernel(operator: Operator) -> VectorKernel:
    """The kind of memory-bound kernel that runs a vector operator; one FLOP an element is an addition."""
    if operator.kind is OperatorKind.NORM and not operator.weights:
        # A fused softmax holds its row in registers; the curve of norms is of kernels that read their rows twice.
        return VectorKernel.STREAM
    if operator.kind in (OperatorKind.NORM, OperatorKind.LOSS):
        return VectorKernel.NORM
    if operator.kind is OperatorKind.EMBEDDING:
        return VectorKernel.GATHER
    return VectorKernel.ACTIVATION if operator.flops_per_element > 1 else VectorKernel.STREAM


# Kernels of dense products that are no linear layers: of two activations, and inside convolutions.


def product_s(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType) -> tuple[float, float]:
    """Seconds of a PRODUCT, forward and backward: a batched GEMM, and one for the gradient of each input."""
    m, n, k, batch = product_shape(operator, sizes)
    forward, first, second = (
        sustained_matmul_s(device, dtype, *shape, batch=batch) for shape in ((m, n, k), (m, k, n), (k, n, m))
    )
    return forward, first + second


ALIGNED_BYTES = 16
"""Rows of 16-bit matrices that matrix units read are multiples of it (NVIDIA, Matrix Multiplication Background User's Guide,
section 2.2)."""


def unaligned_attention_s(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType) -> float:
    """Seconds of a product of attention without a fused kernel, forward, where rows of a head are no multiple of
    `ALIGNED_BYTES`; 0 elsewhere, and of other operators: then its memory traffic decides.

    Vector units compute in fp32 what matrix units can't read. The rate is that of the data sheet, nothing is fitted: in trials
    of a model that differ in heads alone (BigScience's), heads of 108 cost 40 s beside the 103 to 125 of others.
    """
    pairs = next((tensor for tensor in (*operator.inputs, *operator.outputs) if tensor.dims.count(SEQ) == 2), None)
    other = next((tensor for tensor in operator.inputs if tensor.dims.count(SEQ) == 1), None)
    if pairs is None or other is None or dtype not in (DType.BF16, DType.FP16) or DType.FP32 not in device.peak_flops:
        return 0.0
    tokens, width = sizes[SEQ], sizes[other.dims[-1]]
    if width * dtype.size_bytes % ALIGNED_BYTES == 0:
        return 0.0
    n, k = (tokens, width) if pairs in operator.outputs else (width, tokens)
    return sustained_matmul_s(device, DType.FP32, tokens, n, k, batch=pairs.elements(sizes) // tokens**2)


def convolution_products_s(
    operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType
) -> tuple[float, float]:
    """Seconds of the products of a CONVOLUTION, forward and backward; none of a depthwise one, which only moves its tensors.

    One that sums over channels runs as an implicit GEMM (Chetlur et al. 2014, cuDNN): positions x output channels x the
    rest of the kernel.
    """
    read = {dim for tensor in operator.inputs for dim in tensor.dims}
    forward = backward = 0.0
    for tensor, weight in zip(operator.outputs, operator.weights, strict=False):
        channels = [dim for dim in weight.dims if dim in tensor.dims]
        if not any(dim in read for dim in weight.dims if dim not in tensor.dims):
            continue
        groups = math.prod(sizes[dim] for dim in channels if dim in read)
        n = math.prod(sizes[dim] for dim in channels if dim not in read)
        k = weight.elements(sizes) // (groups * n)
        m = tensor.elements(sizes) // (groups * n)
        forward += sustained_matmul_s(device, dtype, m, n, k, batch=groups)
        backward += sum(sustained_matmul_s(device, dtype, *shape, batch=groups) for shape in ((m, k, n), (k, n, m)))
    return forward, backward


# Time that adapters of low rank, and frozen weights of four bits, add to a product.


_DORA_FORWARD, _DORA_BACKWARD = 9, 14
"""Times that rows of outputs are read or written beside LoRA's (PEFT's dora.py, kernel by kernel): forward the weight's part is
scaled (2), the adapter's twice (4), and both are summed (3); backward each scaling passes the gradient on (2 each, three of
them), and of the two with a trained factor the gradient is multiplied by the rows and summed (4 each)."""


def _cast_bytes(operator: Operator, sizes: Mapping[str, int], size: float) -> float:
    """Bytes of casting an int8 product's input and 32-bit output, beyond the output in the working format."""
    read = sum(tensor.elements(sizes) for tensor in operator.inputs)
    written = sum(tensor.elements(sizes) for tensor in operator.outputs)
    return read * (size + DType.INT8.size_bytes) + written * 2 * DType.FP32.size_bytes


def adapter_s(
    adapter: Adapter, operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType
) -> tuple[float, float]:
    """Return the seconds forward and backward beside a product and its input gradient.

    Forward two thin products and a sum with the product's output; backward the gradients of the latent, of both matrices and of
    the input, and a sum with the product's input gradient (Hu et al. 2021, section 4.1). A weight of four bits is read and
    written in the working format before each pass (Dettmers et al. 2023, eq. 5), one of eight bits before the second, and for
    the first its input is cast, and its output comes in 32 bits (Dettmers et al. 2022, section 2.1).
    """
    rows, _, _ = matmul_shape(operator, sizes)
    size, rank = dtype.size_bytes, adapter.rank
    packed = sum(adapter.packed(operator, sizes))
    backward_s = sustained_memory_s(device, adapter.packed_bytes(operator, sizes) + packed * size) if packed else 0.0
    forward_s = backward_s
    if packed and adapter.base_format is BaseFormat.INT8:
        forward_s = sustained_memory_s(device, _cast_bytes(operator, sizes, size))

    def product_s(m: int, n: int, k: int) -> float:
        moved_s = sustained_memory_s(device, (m * k + k * n + m * n) * size)
        return max(moved_s, sustained_matmul_s(device, dtype, m, n, k))

    for inputs, outputs in adapter.sides(operator, sizes):
        forward_s += product_s(rows, rank, inputs) + product_s(rows, outputs, rank)
        if adapter.kind is AdapterKind.DORA:
            # The adapter as a matrix, made of an identity, its sum with the weight, and the norm of that.
            forward_s += product_s(inputs, rank, inputs) + product_s(inputs, outputs, rank)
            forward_s += sustained_memory_s(device, 4 * inputs * outputs * size)
            forward_s += sustained_memory_s(device, _DORA_FORWARD * rows * outputs * size)
            backward_s += sustained_memory_s(device, _DORA_BACKWARD * rows * outputs * size)
        forward_s += sustained_memory_s(device, 3 * rows * outputs * size)
        backward_s += product_s(rows, rank, outputs) + product_s(rank, outputs, rows)
        backward_s += product_s(inputs, rank, rows) + product_s(rows, inputs, rank)
        backward_s += sustained_memory_s(device, 3 * rows * inputs * size)
    return forward_s, backward_s


# The slowdown of earlier generations of attention kernels against a device's fastest ones, as their authors measured.

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


def _attention_factors(attention: FlashAttention, recipe: MatmulRecipe, device: Device, tokens: float) -> tuple[float, float]:
    """Time of attention's passes over that of the kernels that the device's calibration measured in 16 bits. Below these there
    is one format, fp8; where it was not measured, it gains nothing."""
    slowdown = attention_slowdown(attention, device)
    speedup = None if recipe.dtype is None else generation_of(calibration_key(device.calibration)).fp8_attention_speedup
    forward, backward = (1.0, 1.0) if speedup is None else speedup.at(tokens)
    return slowdown.forward / forward, slowdown.backward / backward
