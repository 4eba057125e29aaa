"""The optimizer Muon: momentum of each matrix of the layers, orthogonalized by Newton-Schulz steps; AdamW for all else.

Embedding, head and vectors are AdamW's (Jordan et al. 2024, "Muon: an optimizer for hidden layers"; Megatron-LM's --optimizer
muon and DeepSpeed's Muon do the same).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import matmul_s
from meshwright.costmodels.model.operators import Operator, OperatorKind, Weight
from meshwright.costmodels.units import DType

NEWTON_SCHULZ_STEPS = 5
"""Steps of the iteration, in bf16 (Jordan et al. 2024; the default of Megatron-LM's --muon-num-ns-steps and of DeepSpeed)."""


@lru_cache(maxsize=4096)
def orthogonalization_s(device: Device, *, rows: int, columns: int, matrices: int = 1) -> float:
    """Seconds of orthogonalizing ``matrices`` of a size, one after another.

    Of X with the short side n before the long one, a step takes A = X X^T, A A and A X: 4 n^2 long + 2 n^3 FLOPs.
    """
    n, long = min(rows, columns), max(rows, columns)
    step_s = sum(float(matmul_s(device, DType.BF16, n, *sizes)) for sizes in ((n, long), (n, n), (long, n)))
    return matrices * NEWTON_SCHULZ_STEPS * step_s


def matrices_of(operator: Operator, dims: Mapping[str, int]) -> list[tuple[int, int, int]]:
    """(rows, columns, number) of the matrices that an operator's weights are: those of products, an expert's each by itself."""
    if operator.kind is not OperatorKind.MATMUL:
        return []
    contracted = set(operator.contracted_dims)
    matrices = (weight for weight in operator.weights if weight.tied_to is None and contracted <= set(weight.dims))
    return [_matrix(weight, operator, dims) for weight in matrices]


def _matrix(weight: Weight, operator: Operator, dims: Mapping[str, int]) -> tuple[int, int, int]:
    contracted, routed = set(operator.contracted_dims), set(operator.routed_dims)
    rows = math.prod(dims[dim] for dim in weight.dims if dim in contracted)
    number = math.prod(dims[dim] for dim in weight.dims if dim in routed)
    return rows, weight.elements(dims) // (rows * number), number
