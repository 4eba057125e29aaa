"""How serving engines split an operator over tp ranks: Megatron-style, the same for every layer.

Query heads, feed-forward columns and the vocabulary are split where an operator has them; a product whose contracted dim is
split leaves partial sums, and an all-reduce (Megatron-LM, Shoeybi et al. 2019, section 3). Few key/value heads are copied;
the vocabulary is padded, so its share is rounded up (vLLM, VocabParallelEmbedding).
"""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.operators import Operator, OperatorKind

HEADS, KV_HEADS, FFN, VOCAB = "heads", "kv_heads", "ffn", "vocab"
SPLIT_DIMS = (HEADS, FFN, VOCAB)


def split_dim(operator: Operator) -> str | None:
    """The dim that is split over tp, None for an operator that every rank runs whole."""
    return next((dim for dim in SPLIT_DIMS if dim in operator.dims), None)


def local_sizes(operator: Operator, sizes: Mapping[str, int], tp: int) -> dict[str, int]:
    """Sizes of dims on one rank."""
    local, dim = dict(sizes), split_dim(operator)
    if dim is not None:
        local[dim] = -(-local[dim] // tp)
        if dim == HEADS and KV_HEADS in local:
            local[KV_HEADS] = max(1, local[KV_HEADS] // tp)
    return local


def leaves_partial_sums(operator: Operator) -> bool:
    """Whether ranks must add up their outputs: the split dim is summed away, or is the table of a lookup."""
    dim = split_dim(operator)
    if dim is None:
        return False
    if operator.kind is OperatorKind.EMBEDDING:
        return True
    return operator.kind is OperatorKind.MATMUL and dim in operator.contracted_dims


def divides(dims: Mapping[str, int], tp: int) -> bool:
    """Whether a model can be split over tp ranks: heads and feed-forward columns evenly, key/value heads evenly or copied."""
    kv = dims.get(KV_HEADS, tp)
    return all(dims.get(dim, tp) % tp == 0 for dim in (HEADS, FFN)) and (kv % tp == 0 or tp % kv == 0)
