"""Bytes that a block keeps of each saved tensor under each recompute mode, in the form that its framework keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from meshwright.costmodels.memory.saved_activations import SavingRules, saved_element_bytes
from meshwright.costmodels.model.expert_parallel import expert_region
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.model.low_precision import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.recompute import KeptTensors, kept_tensors, recomputable
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.graph import Block


@dataclass(frozen=True)
class KeptBytes:
    """Bytes kept for an element of each tensor, by recompute mode and name.

    tensors   what each mode keeps and runs again
    inputs    bytes kept for an element of the block's own input; 0 where it is token ids
    """

    rules: SavingRules
    tensors: Mapping[Recompute, KeptTensors]
    by_mode: Mapping[Recompute, Mapping[str, float]]
    inputs: Mapping[Recompute, float]


PARTIAL_MODES = (Recompute.NONE, Recompute.FINE_GRAINED, Recompute.SELECTIVE)
"""Recompute modes that keep some of what a block writes."""


@lru_cache(maxsize=512)
def kept_bytes(
    block: Block,
    dtype: DType,
    implementation: Implementation,
    recipe: MatmulRecipe,
    saved: SavedFormat = SavedFormat.WORKING,
    *,
    cp: int = 1,
) -> KeptBytes:
    """Return the bytes that a block keeps, with activations in ``dtype``, products by ``recipe``, saved tensors in the format
    ``saved``, and attention over ``cp`` ranks."""
    products = low_precision_products(block) if recipe.dtype or saved is SavedFormat.FP8 else frozenset()
    rules = SavingRules(
        dtype,
        implementation.kernels,
        products,
        recipe,
        implementation.loss,
        saved,
        implementation.projections,
        cp,
        implementation.value,
    )
    tensors = {mode: kept_tensors(block, mode, implementation.selective) for mode in PARTIAL_MODES}
    by_mode = {
        mode: saved_element_bytes(block.operators, rules, kept=each.tensors, rerun=each.reruns)
        for mode, each in tensors.items()
    }
    return KeptBytes(rules, tensors, by_mode, {mode: _of_input(block, each) for mode, each in by_mode.items()})


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
