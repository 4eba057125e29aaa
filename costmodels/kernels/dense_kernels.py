"""Kernels of dense products that are no linear layers: of two activations, and inside convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.sustained import sustained_matmul_s
from meshwright.costmodels.model.operators import Operator, product_shape
from meshwright.costmodels.units import DType


def product_s(operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType) -> tuple[float, float]:
    """Seconds of a PRODUCT, forward and backward: a batched GEMM, and one for the gradient of each input."""
    m, n, k, batch = product_shape(operator, sizes)
    forward, first, second = (
        sustained_matmul_s(device, dtype, *shape, batch=batch) for shape in ((m, n, k), (m, k, n), (k, n, m))
    )
    return forward, first + second


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
