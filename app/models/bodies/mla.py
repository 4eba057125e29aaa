"""Multi-head latent attention (DeepSeek-V2 and later): queries, keys and values go through low-rank latents.

With an indexer (DeepSeek sparse attention) a few narrow heads choose the keys of each query first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.app.models.architecture import ROPE_FLOPS, Bias, NormKind, activation, norm, projection
from meshwright.app.models.bodies.attention import attention_kernel
from meshwright.costmodels.model.dims import (
    HEADS,
    HIDDEN,
    INDEX_DIM,
    INDEX_HEADS,
    KV_RANK,
    Q_RANK,
    QK_HEAD_DIM,
    QK_NOPE_DIM,
    QK_ROPE_DIM,
    V_HEAD_DIM,
)
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor

# A product and a sum for each number of an index head, a ReLU and a weighted sum over heads.
_INDEX_FLOPS = 4.0


class Indexer(StrEnum):
    """The choice of the keys that a layer's queries see: none, by projections of its own, or the choice of a layer before."""

    NONE = "none"
    OWN = "own"
    SHARED = "shared"


class HeadGate(StrEnum):
    """The gate on the output of each head: none, or one number a head."""

    NONE = "none"
    PER_HEAD = "per_head"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA as it trains: latents are expanded to full heads. ``Q_RANK`` not in dims means queries without a latent.

    bias   of the projections into the latents and out of the heads; the expansions have none
    gate   a number for each head that scales its output, from a projection of its own, or none
    indexer  its projections are counted; attention is priced over all keys, an upper bound of that over the chosen ones
    """

    bias: Bias = Bias.NONE
    indexer: Indexer = Indexer.NONE
    gate: HeadGate = HeadGate.NONE

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with another kind of attention."""
        return "mla" if self.indexer is not Indexer.OWN else "dsa"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        steps = self._queries(source, dims)
        query = steps[-1].outputs[0]
        if self.indexer is Indexer.OWN:
            steps += _indexer(source, query_latent=steps[-1].inputs[0])
        steps += self._keys_and_values(source)
        k_nope, value = steps[-1].outputs
        rope = _rope(query, k_nope, dims)
        q_rot, k_rot = rope.outputs
        context = activation("context", HEADS, V_HEAD_DIM)
        kernel = attention_kernel(q_rot, k_rot, value, context, mask=AttentionMask.CAUSAL, window=None)
        after = self._gated(source, context) if self.gate is HeadGate.PER_HEAD else []
        out, context = activation("attn_out", HIDDEN), after[-1].outputs[0] if after else context
        o_proj = projection("o_proj", source=context, outputs=(out,), suffixes=("o",), bias=self.bias)
        return (*steps, rope, kernel, *after, o_proj)

    def _gated(self, source: Tensor, context: Tensor) -> list[Operator]:
        gate, gated = activation("head_gate", HEADS), Tensor("context_gated", context.dims)
        inputs = (context, gate)
        saved = tuple(tensor.name for tensor in inputs)
        return [
            projection("gate_proj", source=source, outputs=(gate,), suffixes=("_gate",), bias=Bias.NONE),
            Operator("attn_gate", OperatorKind.ELEMENTWISE, inputs, (gated,), saved=saved, flops_per_element=1.0),
        ]

    def _queries(self, source: Tensor, dims: Mapping[str, int]) -> list[Operator]:
        query = activation("q", HEADS, QK_HEAD_DIM)
        if Q_RANK not in dims:
            return [projection("q_proj", source=source, outputs=(query,), suffixes=("q",), bias=Bias.NONE)]
        latent = activation("q_latent", Q_RANK)
        down = projection("q_a_proj", source=source, outputs=(latent,), suffixes=("q_a",), bias=self.bias)
        normed = norm("q_a_norm", NormKind.RMS, source=latent, target="q_latent_normed", over=(Q_RANK,))
        up = projection("q_b_proj", source=normed.outputs[0], outputs=(query,), suffixes=("q_b",), bias=Bias.NONE)
        return [down, normed, up]

    def _keys_and_values(self, source: Tensor) -> list[Operator]:
        latents = (activation("kv_latent", KV_RANK), activation("k_rope", QK_ROPE_DIM))
        expanded = (activation("k_nope", HEADS, QK_NOPE_DIM), activation("v", HEADS, V_HEAD_DIM))
        down = projection("kv_a_proj", source=source, outputs=latents, suffixes=("kv_a", "k_rope"), bias=self.bias)
        normed = norm("kv_a_norm", NormKind.RMS, source=latents[0], target="kv_latent_normed", over=(KV_RANK,))
        up = projection("kv_b_proj", source=normed.outputs[0], outputs=expanded, suffixes=("k_b", "v_b"), bias=Bias.NONE)
        return [down, normed, up]


def _indexer(source: Tensor, *, query_latent: Tensor) -> list[Operator]:
    """Index queries from the query latent, one index key and the weights of heads from the stream (DeepSeek-V3.2, section 2.1).

    No gradient passes through the choice, so nothing is kept.
    """
    query, key = activation("index_q", INDEX_HEADS, INDEX_DIM), activation("index_k", INDEX_DIM)
    weights, normed = activation("index_weights", INDEX_HEADS), "index_k_normed"
    steps = [
        projection("index_q_proj", source=query_latent, outputs=(query,), suffixes=("_index_q",), bias=Bias.NONE),
        projection("index_k_proj", source=source, outputs=(key,), suffixes=("_index_k",), bias=Bias.NONE),
        norm("index_k_norm", NormKind.LAYER, source=key, target=normed, over=(INDEX_DIM,)),
        projection("index_weights_proj", source=source, outputs=(weights,), suffixes=("_index",), bias=Bias.NONE),
    ]
    choose = Operator(
        "index",
        OperatorKind.ELEMENTWISE,
        inputs=(query, Tensor(normed, key.dims), weights),
        outputs=(Tensor("index_scores", weights.dims),),
        flops_per_element=_INDEX_FLOPS,
    )
    return [replace(step, saved=()) for step in (*steps, choose)]


def _rope(query: Tensor, k_nope: Tensor, dims: Mapping[str, int]) -> Operator:
    """Rotate the rotary part of queries and the one rotary key, and join it to the keys of all heads."""
    rotated_share = dims[QK_ROPE_DIM] / dims[QK_HEAD_DIM]
    return Operator(
        "rope",
        OperatorKind.ELEMENTWISE,
        inputs=(query, k_nope, activation("k_rope", QK_ROPE_DIM)),
        outputs=(Tensor("q_rot", query.dims), activation("k_rot", HEADS, QK_HEAD_DIM)),
        flops_per_element=ROPE_FLOPS * rotated_share * (1.0 + 1.0 / dims[HEADS]),
    )
