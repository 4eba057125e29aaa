"""Attention whose keys a few narrow heads choose in blocks first (MiniMax-M3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.app.importers.bodies.attention import Attention
from meshwright.app.importers.parts import Bias, NormKind, activation, norm, projection
from meshwright.costmodels.model.dims import INDEX_DIM, INDEX_HEADS
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor

# A product and a sum for each number of an index head, and the maximum of a block.
_CHOICE_FLOPS = 3.0


@dataclass(frozen=True, slots=True)
class BlockSparseAttention:
    """Index queries and one index key from the stream, normed by head; then attention.

    Attention is priced over all keys, an upper bound of that over the chosen ones.
    """

    attention: Attention

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with another kind of attention."""
        return "sparse"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection; no gradient passes the choice, so it keeps nothing."""
        query, key = activation("index_q", INDEX_HEADS, INDEX_DIM), activation("index_k", INDEX_DIM)
        normed = Tensor("index_q_normed", query.dims), Tensor("index_k_normed", key.dims)
        choice = (
            projection("index_q_proj", source=source, outputs=(query,), suffixes=("_index_q",), bias=Bias.NONE),
            projection("index_k_proj", source=source, outputs=(key,), suffixes=("_index_k",), bias=Bias.NONE),
            norm("index_q_norm", NormKind.RMS, source=query, target=normed[0].name, over=(INDEX_DIM,)),
            norm("index_k_norm", NormKind.RMS, source=key, target=normed[1].name, over=(INDEX_DIM,)),
            Operator(
                "index",
                OperatorKind.ELEMENTWISE,
                inputs=normed,
                outputs=(activation("index_scores", INDEX_HEADS),),
                flops_per_element=_CHOICE_FLOPS,
            ),
        )
        return (*(replace(step, saved=()) for step in choice), *self.attention.operators(source, dims))
