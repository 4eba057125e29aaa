"""Multi-head, grouped-query and multi-query attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.app.models.architecture import Bias, NormKind, activation, norm, projection, rope
from meshwright.app.models.bodies.mlp import activation_operator
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, HIDDEN, INDEX_DIM, INDEX_HEADS, KV_HEADS
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight

RELATIVE_POSITIONS = "relative_positions"


class Position(StrEnum):
    """The way in which attention knows about positions: rotated queries and keys, or nothing of its own (learned, ALiBi,
    none)."""

    ROTARY = "rotary"
    ELSEWHERE = "elsewhere"


class QkNorm(StrEnum):
    """Normalisation of queries and keys: none, of each head (weights shared by heads), or of all heads together."""

    NONE = "none"
    PER_HEAD = "per_head"
    ALL_HEADS = "all_heads"


class OutputGate(StrEnum):
    """The gate on each head's output, or none."""

    NONE = "none"
    SIGMOID = "sigmoid"
    """A number for each number of a head, from the same projection as its query (Qwen3-Next)."""
    PER_HEAD = "per_head"
    """A number for each head, from a projection of its own (Step-3.5)."""


class Values(StrEnum):
    """Where values come from: a projection of their own, or the projection of the keys (Gemma 4)."""

    OWN = "own"
    KEYS = "keys"


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention with one fused projection for Q, K and V.

    window     sliding window in tokens (chunk of a chunked mask), None for full attention
    qk_norm    with its kind in ``qk_norm_kind``
    query, key, value   dims of a token's queries, keys and values, the width of a head last: models whose layers differ in
                        heads or widths have dims beside ``heads``, ``kv_heads`` and ``head_dim``, which all layers share
    value_norm   of each head of the values, if any
    kernel_weights   what the kernel itself learns: a logit for each head that takes attention away from the keys (gpt-oss),
                     a table of relative positions (T5)
    """

    position: Position = Position.ROTARY
    qkv_bias: Bias = Bias.NONE
    out_bias: Bias = Bias.NONE
    window: int | None = None
    mask: AttentionMask = AttentionMask.CAUSAL
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_kind: NormKind = NormKind.RMS
    kernel_weights: tuple[Weight, ...] = ()
    output_gate: OutputGate = OutputGate.NONE
    query: tuple[str, ...] = (HEADS, HEAD_DIM)
    key: tuple[str, ...] = (KV_HEADS, HEAD_DIM)
    value: tuple[str, ...] = (KV_HEADS, HEAD_DIM)
    values: Values = Values.OWN
    value_norm: NormKind | None = None

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks with another kind of attention."""
        if self.mask is AttentionMask.CHUNKED:
            return "chunked"
        if any(weight.name == RELATIVE_POSITIONS for weight in self.kernel_weights):
            return "relative"
        return "full" if self.window is None else "sliding"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        query, key, value = activation("q", *self.query), activation("k", *self.key), activation("v", *self.value)
        gate = activation("q_gate", *(self.query if self.output_gate is OutputGate.SIGMOID else self.query[:-1]))
        projected = [(query, "q"), (key, "k")]
        if self.values is Values.OWN:
            projected.append((value, "v"))
        if self.output_gate is OutputGate.SIGMOID:
            projected.append((gate, "_gate"))
        outputs, suffixes = zip(*projected, strict=True)
        steps = [projection("qkv_proj", source=source, outputs=outputs, suffixes=suffixes, bias=self.qkv_bias)]
        if self.output_gate is OutputGate.PER_HEAD:
            steps.append(projection("gate_proj", source=source, outputs=(gate,), suffixes=("_gate",), bias=Bias.NONE))
        if self.values is Values.KEYS:
            value = key
        if self.value_norm is not None:
            over = value.dims[-1:]
            steps.append(norm("v_norm", self.value_norm, source=value, target="v_normed", over=over))
            value = steps[-1].outputs[0]
        if self.qk_norm is not QkNorm.NONE:
            steps += self._norms(query, key)
            query, key = steps[-2].outputs[0], steps[-1].outputs[0]
        if self.position is Position.ROTARY:
            share = math.prod(dims[dim] for dim in self.key) / math.prod(dims[dim] for dim in self.query)
            steps.append(rope("rope", query=query, key=key, key_heads_per_query_head=share))
            query, key = steps[-1].outputs
        context = activation("context", *self.query[:-1], self.value[-1])
        steps.append(
            attention_kernel(query, key, value, context, mask=self.mask, window=self.window, weights=self.kernel_weights)
        )
        if self.output_gate is not OutputGate.NONE:
            gated = activation("context_gated", *context.dims[2:])
            steps.append(self._gate(gate, context, gated))
            context = gated
        out = activation("attn_out", HIDDEN)
        steps.append(projection("o_proj", source=context, outputs=(out,), suffixes=("o",), bias=self.out_bias))
        return tuple(steps)

    def _gate(self, gate: Tensor, context: Tensor, target: Tensor) -> Operator:
        """The context times the sigmoid of its gate; of a gate for each head the sigmoid is of few numbers."""
        if self.output_gate is OutputGate.SIGMOID:
            return activation_operator("attn_gate", "sigmoid", inputs=(gate, context), target=target)
        inputs = (context, gate)
        saved = tuple(tensor.name for tensor in inputs)
        return Operator(
            "attn_gate", OperatorKind.ELEMENTWISE, inputs=inputs, outputs=(target,), saved=saved, flops_per_element=1.0
        )

    def _norms(self, query: Tensor, key: Tensor) -> list[Operator]:
        per_head = self.qk_norm is QkNorm.PER_HEAD
        query_dims, key_dims = (self.query[-1:], self.key[-1:]) if per_head else (self.query, self.key)
        return [
            norm("q_norm", self.qk_norm_kind, source=query, target="q_normed", over=query_dims),
            norm("k_norm", self.qk_norm_kind, source=key, target="k_normed", over=key_dims),
        ]


def attention_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    *,
    mask: AttentionMask,
    window: int | None,
    weights: tuple[Weight, ...] = (),
    name: str = "attention",
) -> Operator:
    """Flash attention: keeps its inputs and its output; scores are computed again in the backward pass."""
    return Operator(
        name,
        OperatorKind.ATTENTION,
        inputs=(query, key, value),
        outputs=(context,),
        weights=weights,
        saved=(query.name, key.name, value.name, context.name),
        mask=mask,
        window=window,
    )


# Attention whose keys a few narrow heads choose in blocks first (MiniMax-M3).

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


# Cross attention: queries of a decoder, keys and values of what an encoder wrote.

ENCODED = "encoded"
"""Tensor that a decoder's layers read besides their own input: the normed output of the encoder."""


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of every token to every token of the encoder; names carry ``cross_``."""

    bias: Bias = Bias.NONE

    @property
    def tag(self) -> str:
        """Word that tells blocks with this body from blocks without."""
        return "cross"

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the (normed) input to the output projection, whose output is the body's."""
        query = activation("cross_q", HEADS, HEAD_DIM)
        key, value = (activation(f"cross_{name}", KV_HEADS, HEAD_DIM) for name in "kv")
        context, out = activation("cross_context", HEADS, HEAD_DIM), activation("cross_out", HIDDEN)
        encoded = activation(ENCODED, HIDDEN)
        return (
            projection("cross_q_proj", source=source, outputs=(query,), suffixes=("q",), bias=self.bias),
            projection("cross_kv_proj", source=encoded, outputs=(key, value), suffixes=("k", "v"), bias=self.bias),
            attention_kernel(query, key, value, context, mask=AttentionMask.FULL, window=None, name="cross_attention"),
            projection("cross_o_proj", source=context, outputs=(out,), suffixes=("o",), bias=self.bias),
        )
