"""Multi-head, grouped-query and multi-query attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.app.importers.bodies.mlp import activation_operator
from meshwright.app.importers.parts import Bias, NormKind, activation, norm, projection, rope
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, HIDDEN, KV_HEADS
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
    """The gate on each head's output, from the same projection as its query (Qwen3-Next), or none."""

    NONE = "none"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention with one fused projection for Q, K and V.

    window     sliding window in tokens (chunk of a chunked mask), None for full attention
    qk_norm    with its kind in ``qk_norm_kind``
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
        query, key, value = (
            activation("q", HEADS, HEAD_DIM),
            activation("k", KV_HEADS, HEAD_DIM),
            activation("v", KV_HEADS, HEAD_DIM),
        )
        gate = activation("q_gate", HEADS, HEAD_DIM)
        is_gated = self.output_gate is OutputGate.SIGMOID
        outputs = (query, key, value, gate) if is_gated else (query, key, value)
        suffixes = ("q", "k", "v", "_gate")[: len(outputs)]
        steps = [projection("qkv_proj", source=source, outputs=outputs, suffixes=suffixes, bias=self.qkv_bias)]
        if self.qk_norm is not QkNorm.NONE:
            steps += self._norms(query, key)
            query, key = steps[-2].outputs[0], steps[-1].outputs[0]
        if self.position is Position.ROTARY:
            steps.append(rope("rope", query=query, key=key, key_heads_per_query_head=dims[KV_HEADS] / dims[HEADS]))
            query, key = steps[-1].outputs
        context = activation("context", HEADS, HEAD_DIM)
        steps.append(
            attention_kernel(query, key, value, context, mask=self.mask, window=self.window, weights=self.kernel_weights)
        )
        if is_gated:
            gated = activation("context_gated", HEADS, HEAD_DIM)
            steps.append(activation_operator("attn_gate", "sigmoid", inputs=(gate, context), target=gated))
            context = gated
        out = activation("attn_out", HIDDEN)
        steps.append(projection("o_proj", source=context, outputs=(out,), suffixes=("o",), bias=self.out_bias))
        return tuple(steps)

    def _norms(self, query: Tensor, key: Tensor) -> list[Operator]:
        per_head = self.qk_norm is QkNorm.PER_HEAD
        query_dims = (HEAD_DIM,) if per_head else (HEADS, HEAD_DIM)
        key_dims = (HEAD_DIM,) if per_head else (KV_HEADS, HEAD_DIM)
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
