"""Architecture: what a family's reader says about a model, in the words of transformers, before it is a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshwright.app.importers.parts import Bias, NormKind
from meshwright.costmodels.model.dims import HIDDEN, VOCAB
from meshwright.costmodels.model.operators import Operator, Tensor


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
    """Dense layer with activation function and norm before a vocabulary head, in a dim of its own."""

    dim: str
    function: str
    norm: NormKind


@dataclass(frozen=True, slots=True)
class Head:
    """Final norm and transform (if any) and vocabulary head; ``width`` as in Embedding."""

    tie: Tie
    norm: NormKind | None
    bias: Bias = Bias.NONE
    width: str = HIDDEN
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class ClassHead:
    """Final norm and a classifier of one token into the classes of ``dim``: the vocabulary, or labels beside one."""

    norm: NormKind | None
    bias: Bias = Bias.ADDED
    dim: str = VOCAB


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
