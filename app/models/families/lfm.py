"""LFM2: gated short convolutions, and grouped-query attention in the layers that the file lists; LFM2-MoE has experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.bodies.mixers import ShortConvolution
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, Family, bias, llama_dims, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import CONV_KERNEL, HIDDEN, SSM_INNER

_CONV = "conv"
_FUNCTION = "silu"
_LFM2_DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "tie_word_embeddings": True,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_ff_dim": None,
    "tie_embedding": None,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "full_attn_idxs": None,
    "layer_types": None,
}
_LFM2_MOE_DEFAULTS = _LFM2_DEFAULTS | {
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}


def _read_lfm2(fields: ConfigFields) -> Architecture:
    mlp = Mlp(Gate.GATED, _FUNCTION)
    return _architecture(fields, llama_dims(fields, ffn=_adjusted_width(fields)), lambda _: mlp)


def _read_lfm2_moe(fields: ConfigFields) -> Architecture:
    dense, experts, n_dense = Mlp(Gate.GATED, _FUNCTION), Experts(_FUNCTION), fields.count("num_dense_layers")
    dims = llama_dims(fields) | expert_dims(fields, width=fields.size("moe_intermediate_size"))
    return _architecture(fields, dims, lambda i: dense if i < n_dense else experts)


def _architecture(fields: ConfigFields, dims: dict[str, int], feed_forward: Callable[[int], Body]) -> Architecture:
    attention, convolution = Attention(qk_norm=QkNorm.PER_HEAD), ShortConvolution(bias(fields.flag("conv_bias")))
    layers = tuple(
        Layer(
            (
                Branch("mixer", convolution if kind == _CONV else attention, NormKind.RMS),
                Branch("mlp", feed_forward(i), NormKind.RMS),
            )
        )
        for i, kind in enumerate(_kinds(fields))
    )
    dims |= {SSM_INNER: dims[HIDDEN], CONV_KERNEL: fields.size("conv_L_cache")}
    given = fields if fields.document.get("tie_embedding") is None else _with_tie(fields)
    return Architecture(dims, layers, rms_head(given))


def _with_tie(fields: ConfigFields) -> ConfigFields:
    """The fields with the older name of the tie, which goes before the newer one."""
    return replace(fields, document={**fields.document, "tie_word_embeddings": fields.flag("tie_embedding")})


def _kinds(fields: ConfigFields) -> tuple[str, ...]:
    """As listed; else attention in the layers of ``full_attn_idxs``, in all layers without these."""
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, _CONV))
    if listed is not None:
        return listed
    attending = fields.optional_indices("full_attn_idxs")
    return tuple(FULL if attending is None or i in attending else _CONV for i in range(n_layers))


def _adjusted_width(fields: ConfigFields) -> int:
    """Two thirds of the width that is given, times a factor, rounded up to a multiple; the width itself without adjustment."""
    width = fields.optional_size("block_ff_dim") or fields.size("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    factor = fields.optional_number("block_ffn_dim_multiplier")
    if factor is None:
        return width
    multiple = fields.size("block_multiple_of")
    adjusted = -(-int(factor * width) // multiple) * multiple
    if not adjusted:
        raise ModelError(f"{fields.family}: the feed-forward network has no columns", given=factor, allowed="a factor above 0")
    return adjusted


LFM_FAMILIES = (
    Family("lfm2", ("Lfm2ForCausalLM",), _read_lfm2, _LFM2_DEFAULTS),
    Family("lfm2_moe", ("Lfm2MoeForCausalLM",), _read_lfm2_moe, _LFM2_MOE_DEFAULTS),
)
