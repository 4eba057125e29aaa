"""Architecture: what a family's reader says about a model, in the words of transformers, before it is a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ, VOCAB
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight

# Small operators that every importer builds layers from: norms, projections, activations, residual adds.
#
# ``saved`` follows a Megatron-like bf16 implementation with flash attention: a norm and a projection keep their input,
# an activation function keeps its inputs, rotary embedding and residual adds keep nothing (Korthikanti et al. 2022,
# section 4).


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
    # xIELU (arXiv 2411.13010): a square, an exponential, three products, two sums and the choice between its sides.
    "xielu": 8.0,
    "tanh": 5.0,
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


class Body(Protocol):
    """The computation of a branch of a layer. Bodies are frozen and compare by value, so that equal layers fold."""

    @property
    def tag(self) -> str:
        """Word for the names of blocks that differ in this body."""

    def operators(self, source: Tensor, dims: Mapping[str, int]) -> tuple[Operator, ...]:
        """Operators from the body's input to its output (first output of the last operator)."""


class NormPlace(StrEnum):
    """Where a branch normalises: its input, its output, both, or the sum that it is added to."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"
    ON_SUM = "on_sum"
    SHARED = "shared"
    """The branch reads the normed input of the branch before it."""
    INSIDE = "inside"
    """The body norms what it reads itself."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A body with its norms, added to the residual stream; ``name`` prefixes them: attn_norm, attn_residual."""

    name: str
    body: Body
    norm: NormKind
    place: NormPlace = NormPlace.BEFORE


class Joining(StrEnum):
    """The joining of a layer's branches: they follow one another, or all read the layer's input."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class Layer:
    """Branches of a layer in order."""

    branches: tuple[Branch, ...]
    joining: Joining = Joining.SEQUENTIAL


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token embedding, and what is added to it.

    width                   dim of the embedding; when it is not ``hidden``, a projection follows
    position_dim, type_dim  dims of learned tables of positions and of token types, if any
    norm                    normalisation of the sum, if any
    """

    width: str = HIDDEN
    position_dim: str | None = None
    type_dim: str | None = None
    norm: NormKind | None = None


@dataclass(frozen=True, slots=True)
class PatchEmbedding:
    """Projection of image patches of ``patch_dim`` numbers, a class token and learned positions."""

    patch_dim: str
    position_dim: str


@dataclass(frozen=True, slots=True)
class AudioEmbedding:
    """Two convolutions over frames of ``frame_dim`` numbers, the second with a stride of two, and learned positions.

    A token stands for ``stride_dim`` frames; ``width_dim`` is the width between the convolutions, ``kernel_dim`` their length.
    """

    frame_dim: str
    stride_dim: str
    width_dim: str
    kernel_dim: str
    position_dim: str
    function: str


class Tie(StrEnum):
    """The tie between the vocabulary head and the token embedding: they share a weight, or do not."""

    TIED = "tied"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True)
class Transform:
    """Dense layer with activation function and norm (if any) before a head, in a dim of its own."""

    dim: str
    function: str
    norm: NormKind | None
    bias: Bias = Bias.ADDED


@dataclass(frozen=True, slots=True)
class Head:
    """Final norm and transform (if any) and vocabulary head; ``width`` as in Embedding.

    pooler   dense layer over one token that the model has without its vocabulary head, if any
    """

    tie: Tie
    norm: NormKind | None
    bias: Bias = Bias.NONE
    width: str = HIDDEN
    transform: Transform | None = None
    pooler: Transform | None = None


@dataclass(frozen=True, slots=True)
class ClassHead:
    """Final norm and a classifier of one token into the classes of ``dim``: the vocabulary, or labels beside one.

    dim         None where the token's vector is all that is wanted: an embedding of the sequence
    transform   dense layer before it, if any
    """

    norm: NormKind | None
    bias: Bias = Bias.ADDED
    dim: str | None = VOCAB
    transform: Transform | None = None


@dataclass(frozen=True)
class Architecture:
    """A stack of layers: sizes of dims, embedding, every layer in order, head."""

    dims: Mapping[str, int]
    layers: tuple[Layer, ...]
    head: Head | ClassHead
    embedding: Embedding | PatchEmbedding = Embedding()


@dataclass(frozen=True)
class EncoderDecoder:
    """Two stacks: layers of the decoder read the normed output of the encoder too.

    source, target   embeddings of the encoder and of the decoder; without the second, the decoder shares the first's table
    """

    dims: Mapping[str, int]
    encoder: tuple[Layer, ...]
    decoder: tuple[Layer, ...]
    norm: NormKind
    head: Head
    source: Embedding | AudioEmbedding = Embedding()
    target: Embedding | None = None
