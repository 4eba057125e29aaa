"""Small operators that every importer builds layers from: norms, projections, activations, residual adds.

``saved`` follows a Megatron-like bf16 implementation with flash attention: a norm and a projection keep their input,
an activation function keeps its inputs, rotary embedding and residual adds keep nothing (Korthikanti et al. 2022,
section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight


class NormKind(StrEnum):
    """The kind of a normalisation; it decides which of scale and shift are learned."""

    RMS = "rms"
    RMS_FIXED = "rms_fixed"
    LAYER = "layer"
    LAYER_SCALE_ONLY = "layer_scale_only"
    LAYER_FIXED = "layer_fixed"


class Bias(StrEnum):
    """The learned bias that a projection adds, or none."""

    NONE = "none"
    ADDED = "added"
    EXCEPT_KEYS = "except_keys"
    """To queries and values alone: one on keys would add the same to all scores of a query (Whisper)."""


# FLOPs per element, counted on the formulas: x * rsqrt(mean(x^2)) * w is a square, a sum and two products.
_NORM_FLOPS = {
    NormKind.RMS: 4.0,
    NormKind.RMS_FIXED: 3.0,
    # Mean, subtraction, square, sum, product with 1/std; then scale and shift where they are learned.
    NormKind.LAYER: 7.0,
    NormKind.LAYER_SCALE_ONLY: 6.0,
    NormKind.LAYER_FIXED: 5.0,
}
_NORM_WEIGHTS = {
    NormKind.RMS: ("weight",),
    NormKind.RMS_FIXED: (),
    NormKind.LAYER: ("weight", "bias"),
    NormKind.LAYER_SCALE_ONLY: ("weight",),
    NormKind.LAYER_FIXED: (),
}

# SiLU: survey section 5.2 counts 4 for the sigmoid of x (its product with x and the gate is the fifth of SwiGLU).
_SILU_FLOPS = 4.0
# 0.5 x (1 + erf(x / sqrt 2)): three products, a sum and erf.
_GELU_ERF_FLOPS = 5.0
# 0.5 x (1 + tanh(c (x + 0.044715 x^3))): six products, two sums and tanh.
_GELU_TANH_FLOPS = 9.0
ACTIVATION_FLOPS = {
    "silu": _SILU_FLOPS,
    "sigmoid": _SILU_FLOPS,
    "swish": _SILU_FLOPS,
    "gelu": _GELU_ERF_FLOPS,
    "gelu_python": _GELU_ERF_FLOPS,
    "gelu_new": _GELU_TANH_FLOPS,
    "gelu_fast": _GELU_TANH_FLOPS,
    "gelu_pytorch_tanh": _GELU_TANH_FLOPS,
    "quick_gelu": _SILU_FLOPS + 1.0,
    # gpt-oss: three clamps, the sum up + 1 and the product with alpha on top of SiLU.
    "clamped_silu": _SILU_FLOPS + 5.0,
    "relu": 1.0,
    "relu2": 2.0,
}
# Two products and a sum an element: x cos + rotate(x) sin.
ROPE_FLOPS = 3.0


def activation(name: str, *dims: str) -> Tensor:
    """An activation of every token: batch and sequence first, then ``dims``."""
    return Tensor(name, (BATCH, SEQ, *dims))


def activation_flops(function: str) -> float:
    """FLOPs per element of an activation function; raises ModelError for one we have no count of."""
    if function not in ACTIVATION_FLOPS:
        raise ModelError("unknown activation function", given=function, allowed=", ".join(sorted(ACTIVATION_FLOPS)))
    return ACTIVATION_FLOPS[function]


def norm(name: str, kind: NormKind, *, source: Tensor, target: str, over: Sequence[str] = (HIDDEN,)) -> Operator:
    """Normalise ``source`` over the dims ``over``, its learned vectors having these dims too."""
    return Operator(
        name,
        OperatorKind.NORM,
        inputs=(source,),
        outputs=(Tensor(target, source.dims),),
        weights=tuple(Weight(weight, tuple(over)) for weight in _NORM_WEIGHTS[kind]),
        saved=(source.name,),
        flops_per_element=_NORM_FLOPS[kind],
    )


def projection(name: str, *, source: Tensor, outputs: Sequence[Tensor], suffixes: Sequence[str], bias: Bias) -> Operator:
    """One kernel that multiplies ``source`` by a weight for each output; ``suffixes`` name weights w_* and biases b_*.

    Dims of the source that no output has are contracted; those that it shares with the outputs are its rows.
    """
    kept = {dim for tensor in outputs for dim in tensor.dims}
    contracted = tuple(dim for dim in source.dims if dim not in kept)
    weights: list[Weight] = []
    for tensor, suffix in zip(outputs, suffixes, strict=True):
        features = tuple(dim for dim in tensor.dims if dim not in source.dims)
        weights.append(Weight(f"w{suffix}", (*contracted, *features)))
        if bias is Bias.ADDED or (bias is Bias.EXCEPT_KEYS and suffix != "k"):
            weights.append(Weight(f"b{suffix}", features))
    return Operator(
        name, OperatorKind.MATMUL, inputs=(source,), outputs=tuple(outputs), weights=tuple(weights), saved=(source.name,)
    )


def rope(name: str, *, query: Tensor, key: Tensor, key_heads_per_query_head: float) -> Operator:
    """Rotary embedding of query and key in one kernel; FLOPs are per element of the query, keys being a share."""
    return Operator(
        name,
        OperatorKind.ELEMENTWISE,
        inputs=(query, key),
        outputs=(Tensor("q_rot", query.dims), Tensor("k_rot", key.dims)),
        flops_per_element=ROPE_FLOPS * (1.0 + key_heads_per_query_head),
    )


def residual_add(name: str, *, stream: Tensor, branch: Tensor, target: str) -> Operator:
    """Add a branch to the residual stream."""
    return Operator(
        name, OperatorKind.ELEMENTWISE, inputs=(stream, branch), outputs=(Tensor(target, stream.dims),), flops_per_element=1.0
    )
