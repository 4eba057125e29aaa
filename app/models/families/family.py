"""Family: how the config.json files of one model_type are read; helpers that most families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.app.models.architecture import Architecture, Bias, EncoderDecoder, Head, NormKind, Tie
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB

FULL = "full_attention"
SLIDING = "sliding_attention"


KIN_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
"""Defaults of Llama's class, which those of many kin repeat."""


@dataclass(frozen=True)
class Family:
    """One model_type of transformers.

    architectures   class names that its files may carry; the first is what a file without any means
    defaults        class defaults of the fields that the reader asks for (transformers 5.23)
    aliases         other names of fields, from the config class's attribute_map and older files
    """

    model_type: str
    architectures: tuple[str, ...]
    read: Callable[[ConfigFields], Architecture | EncoderDecoder]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def decoder_dims(
    fields: ConfigFields, *, ffn: int, head_dim: int | None = None, kv_heads: int | None = None, vocab: int | None = None
) -> dict[str, int]:
    """Sizes of the dims of a decoder; what is not given: as many key/value heads as heads, head_dim
    hidden / heads, vocab_size as the file has it.
    """
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    if heads % kv_heads:
        raise ModelError(
            f"{fields.family}: query heads must be a multiple of key/value heads",
            given={"num_attention_heads": heads, "num_key_value_heads": kv_heads},
        )
    if head_dim is None:
        if hidden % heads:
            raise ModelError(
                f"{fields.family}: hidden_size must be a multiple of num_attention_heads",
                given={"hidden_size": hidden, "num_attention_heads": heads},
                remedy="give 'head_dim' if the model has heads of another width",
            )
        head_dim = hidden // heads
    sizes = {HIDDEN: hidden, HEADS: heads, KV_HEADS: kv_heads, HEAD_DIM: head_dim, FFN: ffn}
    return sizes | {VOCAB: fields.size("vocab_size") if vocab is None else vocab}


def llama_dims(fields: ConfigFields, *, ffn: int | None = None) -> dict[str, int]:
    """Sizes of the dims of a decoder whose file names heads as Llama's does; ``ffn`` is intermediate_size unless given."""
    return decoder_dims(
        fields,
        ffn=fields.size("intermediate_size") if ffn is None else ffn,
        head_dim=fields.optional_size("head_dim"),
        kv_heads=fields.optional_size("num_key_value_heads"),
    )


def bias(present: bool) -> Bias:
    """A config flag as Bias."""
    return Bias.ADDED if present else Bias.NONE


def tie(fields: ConfigFields) -> Tie:
    """Return the tie between the vocabulary head and the embedding."""
    return Tie.TIED if fields.flag("tie_word_embeddings") else Tie.SEPARATE


def rms_head(fields: ConfigFields) -> Head:
    """RMS norm and vocabulary head."""
    return Head(tie(fields), NormKind.RMS)


def gated_mlp(fields: ConfigFields, *, act: str = "hidden_act", with_bias: Bias = Bias.NONE) -> Mlp:
    """Gated feed-forward network with the activation function that field ``act`` names."""
    return Mlp(Gate.GATED, fields.text(act), with_bias)


# Dims of models whose layers differ in heads or widths: what all layers have in common, and each layer's multiple of it.
#
# A graph has one size for each dim. Splits go over ``heads``, ``kv_heads`` and ``ffn``, which are then the largest sizes that
# divide those of every layer; a layer with more has one dim beside them.


@dataclass(frozen=True, slots=True)
class Multiples:
    """Sizes of a dim in layers that differ: ``common`` divides all of them."""

    dim: str
    common: int

    @classmethod
    def of(cls, dim: str, sizes: Iterable[int]) -> Multiples:
        """Return the multiples of the largest size that divides all of these."""
        return cls(dim, math.gcd(*sizes))

    def dims(self, size: int) -> tuple[str, ...]:
        """Return the dims of a layer with that size: the common one, and a second where it has a multiple of it."""
        return (self.dim,) if size == self.common else (self.dim, f"{self.dim}_times_{size // self.common}")

    def sizes(self, sizes: Iterable[int]) -> dict[str, int]:
        """Return the sizes of all these dims, of layers with these sizes."""
        times = {size // self.common for size in sizes}
        return {self.dim: self.common} | {f"{self.dim}_times_{each}": each for each in sorted(times) if each > 1}
