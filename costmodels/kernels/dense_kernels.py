"""Kernels of dense products that are no linear layers: of two activations, and inside convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.sustained import sustained_matmul_s
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.operators import Operator, product_shape
from meshwright.costmodels.units import DType


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
