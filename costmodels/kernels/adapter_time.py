"""Time that adapters of low rank, and frozen weights of four bits, add to a product."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.sustained import sustained_matmul_s, sustained_memory_s
from meshwright.costmodels.model.adapter import NF4_BYTES, Adapter
from meshwright.costmodels.model.operators import Operator, matmul_shape
from meshwright.costmodels.units import DType


def adapter_s(
    adapter: Adapter, operator: Operator, sizes: Mapping[str, int], *, device: Device, dtype: DType
) -> tuple[float, float]:
    """Return the seconds forward and backward beside a product and its input gradient.

    Forward two thin products and a sum with the product's output; backward the gradients of the latent, of both matrices and of
    the input, and a sum with the product's input gradient (Hu et al. 2021, section 4.1). A weight of four bits is read and
    written in the working format before each pass (Dettmers et al. 2023, eq. 5).
    """
    rows, _, _ = matmul_shape(operator, sizes)
    size, rank = dtype.size_bytes, adapter.rank
    unpacking_s = sum(sustained_memory_s(device, n * (NF4_BYTES + size)) for n in adapter.packed(operator, sizes))
    forward_s = backward_s = unpacking_s

    def product_s(m: int, n: int, k: int) -> float:
        moved_s = sustained_memory_s(device, (m * k + k * n + m * n) * size)
        return max(moved_s, sustained_matmul_s(device, dtype, m, n, k))

    for inputs, outputs in adapter.sides(operator, sizes):
        forward_s += product_s(rows, rank, inputs) + product_s(rows, outputs, rank)
        forward_s += sustained_memory_s(device, 3 * rows * outputs * size)
        backward_s += product_s(rows, rank, outputs) + product_s(rank, outputs, rows)
        backward_s += product_s(inputs, rank, rows) + product_s(rows, inputs, rank)
        backward_s += sustained_memory_s(device, 3 * rows * inputs * size)
    return forward_s, backward_s
