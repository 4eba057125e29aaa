"""Bytes that a block keeps of each saved tensor under each recompute mode, in the form that its framework keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.expert_parallel import expert_region
from costmodels.implementation import Implementation
from costmodels.low_precision import MatmulRecipe
from costmodels.operators import OperatorKind
from costmodels.saved_activations import SavingRules, saved_element_bytes
from costmodels.units import DType
from solver.graph import Block
from solver.recompute import kept_tensors, recomputable


@dataclass(frozen=True)
class KeptBytes:
    """Bytes kept for an element of each tensor, by name: nothing recomputed, and under selective recomputation.

    input_none, input_selective   the same for the block's own input; 0 where it is token ids
    """

    rules: SavingRules
    none: Mapping[str, float]
    selective: Mapping[str, float]
    input_none: float
    input_selective: float


def kept_bytes(block: Block, dtype: DType, implementation: Implementation, recipe: MatmulRecipe) -> KeptBytes:
    """What a block keeps, with activations in ``dtype`` and products by ``recipe``."""
    products = low_precision_products(block) if recipe.dtype else frozenset()
    rules = SavingRules(dtype, implementation.kernels, products, recipe, implementation.loss)
    kept = kept_tensors(block, implementation.selective)
    none = saved_element_bytes(block.operators, rules, kept=kept.none)
    selective = saved_element_bytes(block.operators, rules, kept=kept.selective, rerun=kept.selective_reruns)
    return KeptBytes(rules, none, selective, _of_input(block, none), _of_input(block, selective))


def low_precision_products(block: Block) -> frozenset[str]:
    """Products that a low-precision recipe casts: those of layers, but not the router's, which chooses experts."""
    if not recomputable(block):
        return frozenset()
    experts = expert_region(block.operators).dims
    return frozenset(
        operator.name
        for operator in block.operators
        if operator.kind is OperatorKind.MATMUL and not any(experts & set(tensor.dims) for tensor in operator.outputs)
    )


def _of_input(block: Block, sizes: Mapping[str, float]) -> float:
    """Bytes an element of the residual stream that enters the block; token ids are no activations."""
    if any(operator.kind is OperatorKind.EMBEDDING for operator in block.operators):
        return 0.0
    written = {tensor.name for operator in block.operators for tensor in operator.outputs}
    return max((size for name, size in sizes.items() if name not in written), default=0.0)
