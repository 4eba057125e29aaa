"""The split of a layer over the ranks of one pipeline stage in serving engines.

Query heads, feed-forward columns, state-space heads and the vocabulary are split where an operator has them; a product whose
contracted dim is split leaves partial sums, and an all-reduce (Megatron-LM, Shoeybi et al. 2019, section 3). Few key/value
heads are copied; the vocabulary is padded, so its share is rounded up (vLLM, VocabParallelEmbedding). Experts lie whole on
``ep`` groups of ranks and are split inside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.model.dims import (
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEADS,
    KV_HEADS,
    SHARED_FFN,
    SSM_GROUPS,
    SSM_HEADS,
    SSM_INNER,
    TOP_K,
    VOCAB,
)
from meshwright.costmodels.model.operators import Operator, OperatorKind

SPLIT_DIMS = (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER, VOCAB)
_COPIED_DIMS = {HEADS: KV_HEADS, SSM_HEADS: SSM_GROUPS}
"""Dims that go with a split one, copied where there are fewer of them than ranks."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Ranks of one pipeline stage of a replica.

    tp             ranks that share the heads of attention, each with its own part of the cache
    kvp            ranks among which each cache is split along the sequence (Medha, Helix; vLLM's decode context parallelism);
                   outside attention over the cache they are more ranks of tensor parallelism
    cp             groups of tp x kvp ranks that share the tokens of a prompt: each runs dense layers and attention for its own
                   tokens and holds all keys and values (context parallelism of prefill workers)
    attention_dp   groups of tp x kvp x cp ranks that run attention and dense layers for requests of their own
    ep             groups of ranks that hold whole experts; an expert is split over ranks / ep
    """

    tp: int = 1
    kvp: int = 1
    attention_dp: int = 1
    ep: int = 1
    cp: int = 1

    @property
    def token_groups(self) -> int:
        """Groups of ranks that come to the experts with tokens of their own."""
        return self.attention_dp * self.cp

    @property
    def dense_tp(self) -> int:
        """Ranks that share dense operators."""
        return self.tp * self.kvp

    @property
    def ranks(self) -> int:
        """All ranks of the stage."""
        return self.tp * self.kvp * self.cp * self.attention_dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        return self.ranks // self.ep


def split_dim(operator: Operator) -> str | None:
    """The dim that dense ranks split, None for an operator that every rank runs whole."""
    return next((dim for dim in SPLIT_DIMS if dim in operator.dims), None)


def local_sizes(operator: Operator, sizes: Mapping[str, int], grid: RankGrid) -> dict[str, int]:
    """Sizes of dims on one rank: of a dense operator its share, of routed weights those of the experts it holds."""
    local, dim = dict(sizes), split_dim(operator)
    if is_routed(operator):
        local[EXPERTS] = -(-local[EXPERTS] // grid.ep)
        if EXPERT_FFN in local:
            local[EXPERT_FFN] = -(-local[EXPERT_FFN] // grid.expert_tp)
    elif dim is not None:
        local[dim] = -(-local[dim] // grid.dense_tp)
        copied = _COPIED_DIMS.get(dim)
        if copied in local:
            local[copied] = max(1, local[copied] // grid.dense_tp)
    return local


def cache_sizes(operator: Operator, sizes: Mapping[str, int], grid: RankGrid) -> dict[str, int]:
    """Sizes of an attention operator over the cache: heads are split over tp alone, the ranks of kvp see them all."""
    return local_sizes(operator, sizes, RankGrid(tp=grid.tp))


def is_routed(operator: Operator) -> bool:
    """Return True if each row meets the weights of one expert."""
    return EXPERTS in operator.routed_dims


def is_expert_step(operator: Operator) -> bool:
    """Return True if an operator is part of the fused expert kernels: routed products, and what moves or activates their
    rows."""
    inside = any(TOP_K in tensor.dims and len(tensor.dims) > 3 for tensor in (*operator.inputs, *operator.outputs))
    return is_routed(operator) or (operator.kind is OperatorKind.ELEMENTWISE and inside)


def leaves_partial_sums(operator: Operator) -> bool:
    """Return True if dense ranks must add up their outputs: the split dim is summed away, or is the table of a lookup."""
    dim = split_dim(operator)
    if dim is None or is_routed(operator):
        return False
    if operator.kind is OperatorKind.EMBEDDING:
        return True
    return operator.kind is OperatorKind.MATMUL and dim in operator.contracted_dims


def divides(dims: Mapping[str, int], grid: RankGrid) -> bool:
    """Return True if a model can be split so: heads, columns and experts evenly, key/value heads and groups evenly or
    copied."""
    dense, tp = grid.dense_tp, grid.tp
    evenly = all(dims.get(dim, dense) % dense == 0 for dim in (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER))
    kv, groups = dims.get(KV_HEADS, tp), dims.get(SSM_GROUPS, dense)
    copied = all(have % over == 0 or over % have == 0 for have, over in ((kv, tp), (kv, dense), (groups, dense)))
    experts = grid.ranks % grid.ep == 0 and dims.get(EXPERTS, grid.ep) % grid.ep == 0
    return evenly and copied and experts and dims.get(EXPERT_FFN, grid.expert_tp) % grid.expert_tp == 0
