"""Cross attention: queries of a decoder, keys and values of what an encoder wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.importers.bodies.attention import attention_kernel
from meshwright.app.importers.parts import Bias, activation, projection
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, HIDDEN, KV_HEADS
from meshwright.costmodels.model.operators import AttentionMask, Operator, Tensor

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
