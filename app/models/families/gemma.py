"""Gemma 1, 2 and 3 (text): wide heads, GeGLU, tied embeddings; 2 and 3 norm both ends of a branch and mix windows."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.architecture import Architecture, Bias, Body, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, QkNorm, Values
from meshwright.app.models.bodies.experts import DenseBesideExperts, Experts
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, SLIDING, Family, Multiples, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, KV_HEADS
from meshwright.costmodels.model.operators import AttentionMask

_GEMMA_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_bidirectional_attention": None,
}
_GEMMA2_DEFAULTS = _GEMMA_DEFAULTS | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "layer_types": None,
}
_GEMMA3_DEFAULTS = _GEMMA2_DEFAULTS | {"vocab_size": 262208, "use_bidirectional_attention": False, "sliding_window_pattern": 6}
# Gemma 2 alternates: every second layer sees everything.
_GEMMA2_PATTERN = 2


def _dims(fields: ConfigFields) -> dict[str, int]:
    return decoder_dims(
        fields,
        ffn=fields.size("intermediate_size"),
        head_dim=fields.size("head_dim"),
        kv_heads=fields.size("num_key_value_heads"),
    )


def _mask(fields: ConfigFields) -> AttentionMask:
    return AttentionMask.FULL if fields.optional_flag("use_bidirectional_attention") else AttentionMask.CAUSAL


def _read_gemma(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, mask=_mask(fields))
    layer = Layer((Branch("attn", attention, NormKind.RMS), Branch("mlp", gated_mlp(fields), NormKind.RMS)))
    return Architecture(_dims(fields), (layer,) * fields.layers(), rms_head(fields))


def _read_gemma2(fields: ConfigFields) -> Architecture:
    windows = _windows(fields, pattern=_GEMMA2_PATTERN, window=fields.optional_size("sliding_window"))
    return _alternating(fields, windows, QkNorm.NONE)


def _read_gemma3(fields: ConfigFields) -> Architecture:
    window = fields.optional_size("sliding_window")
    if window is not None and _mask(fields) is AttentionMask.FULL:
        window = window // 2 + 1  # the window then counts tokens on both sides
    return _alternating(fields, _windows(fields, pattern=fields.size("sliding_window_pattern"), window=window), QkNorm.PER_HEAD)


def _windows(fields: ConfigFields, *, pattern: int, window: int | None) -> tuple[int | None, ...]:
    """Window of each layer: as listed in layer_types, else every ``pattern``-th layer is full."""
    n_layers = fields.layers()
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if (i + 1) % pattern else FULL for i in range(n_layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _read_vault(fields: ConfigFields) -> Architecture:
    """Gemma 2 without the norms at the ends of branches."""
    windows = _windows(fields, pattern=_GEMMA2_PATTERN, window=fields.optional_size("sliding_window"))
    return _alternating(fields, windows, QkNorm.NONE, NormPlace.BEFORE)


def _alternating(
    fields: ConfigFields, windows: tuple[int | None, ...], qk_norm: QkNorm, place: NormPlace = NormPlace.BOTH
) -> Architecture:
    attention_bias, mask = bias(fields.flag("attention_bias")), _mask(fields)
    mlp = Branch("mlp", gated_mlp(fields, act="hidden_activation"), NormKind.RMS, place)
    layers = []
    for window in windows:
        attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=window, mask=mask, qk_norm=qk_norm)
        layers.append(Layer((Branch("attn", attention, NormKind.RMS, place), mlp)))
    return Architecture(_dims(fields), tuple(layers), rms_head(fields))


GEMMA_FAMILIES = (
    Family("gemma", ("GemmaForCausalLM",), _read_gemma, _GEMMA_DEFAULTS),
    Family("gemma2", ("Gemma2ForCausalLM",), _read_gemma2, _GEMMA2_DEFAULTS),
    Family("vaultgemma", ("VaultGemmaForCausalLM",), _read_vault, _GEMMA2_DEFAULTS),
    Family("gemma3_text", ("Gemma3ForCausalLM",), _read_gemma3, _GEMMA3_DEFAULTS),
)


# Gemma 4 (text): layers that see everything have wider and fewer heads, whose keys may be the values; experts beside a dense
# network.
#
# Small Gemma 4 models whose last layers share keys and values, or whose layers have embeddings of their own, are refused.

GLOBAL_HEAD_DIM = "global_head_dim"
"""Width of a head in layers that see everything."""

_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_k_eq_v": False,
    "sliding_window": 512,
    "layer_types": None,
    "use_bidirectional_attention": None,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "num_experts": None,
    "num_experts_per_tok": None,
    "moe_intermediate_size": None,
}
_ALIASES = {"num_experts_per_tok": ("top_k_experts",), "moe_intermediate_size": ("expert_intermediate_size",)}
# Every sixth layer sees everything where the file lists nothing; the last one always does.
_PATTERN = 6
_BOTH_WAYS, _IMAGES_ONLY = "all", "vision"


def _read_gemma4(fields: ConfigFields) -> Architecture:
    for name, what in (
        ("num_kv_shared_layers", "layers that read the keys and values of earlier ones"),
        ("hidden_size_per_layer_input", "an embedding of each layer's own"),
    ):
        if fields.count(name):
            raise ModelError(
                f"{fields.family}: '{name}' is not supported: {what}",
                given=fields.count(name),
                allowed="0",
                remedy="--assume-decoder reads it approximately, without these parts",
            )
    kv_heads = fields.size("num_key_value_heads")
    of_global = (fields.optional_size("num_global_key_value_heads") or kv_heads) if _shares_values(fields) else kv_heads
    keys = Multiples.of(KV_HEADS, (kv_heads, of_global))
    attentions = _attentions(fields, keys, kv_heads, of_global)
    place, branch = _feed_forward(fields)
    layers = tuple(
        Layer((Branch("attn", attentions[kind], NormKind.RMS, NormPlace.BOTH), Branch("mlp", branch, NormKind.RMS, place)))
        for kind in _kinds(fields)
    )
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"), head_dim=fields.size("head_dim"), kv_heads=keys.common)
    dims |= keys.sizes((kv_heads, of_global)) | {GLOBAL_HEAD_DIM: fields.size("global_head_dim")}
    if fields.flag("enable_moe_block"):
        dims |= expert_dims(fields, width=fields.size("moe_intermediate_size"))
    return Architecture(dims, layers, rms_head(fields))


def _shares_values(fields: ConfigFields) -> bool:
    return fields.flag("attention_k_eq_v")


def _attentions(fields: ConfigFields, keys: Multiples, kv_heads: int, of_global: int) -> dict[str, Attention]:
    """Attention of layers with a window and of those that see everything; values are normed without weights."""
    attention_bias, seen = bias(fields.flag("attention_bias")), fields.optional_text("use_bidirectional_attention")
    if seen not in (None, _BOTH_WAYS, _IMAGES_ONLY):
        raise ModelError(
            f"{fields.family}: 'use_bidirectional_attention' is unknown", given=seen, allowed=f"{_BOTH_WAYS}, {_IMAGES_ONLY}"
        )
    window, of_window = fields.size("sliding_window"), (*keys.dims(kv_heads), HEAD_DIM)
    sliding = Attention(
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        window=window // 2 + 1 if seen == _BOTH_WAYS else window,  # of tokens on each side
        mask=AttentionMask.FULL if seen == _BOTH_WAYS else AttentionMask.CAUSAL,
        qk_norm=QkNorm.PER_HEAD,
        key=of_window,
        value=of_window,
        value_norm=NormKind.RMS_FIXED,
    )
    of_all = (*keys.dims(of_global), GLOBAL_HEAD_DIM)
    values = Values.KEYS if _shares_values(fields) else Values.OWN
    full = replace(sliding, window=None, query=(HEADS, GLOBAL_HEAD_DIM), key=of_all, value=of_all, values=values)
    return {SLIDING: sliding, FULL: full}


def _feed_forward(fields: ConfigFields) -> tuple[NormPlace, Body]:
    dense = gated_mlp(fields, act="hidden_activation")
    if not fields.flag("enable_moe_block"):
        return NormPlace.BOTH, dense
    return NormPlace.INSIDE, DenseBesideExperts(dense, Experts(fields.text("hidden_activation"), router_bias=Bias.ADDED))


def _kinds(fields: ConfigFields) -> tuple[str, ...]:
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if listed is None:
        listed = tuple(SLIDING if (i + 1) % _PATTERN else FULL for i in range(n_layers))
    return (*listed[:-1], FULL)


GEMMA4_FAMILIES = (Family("gemma4_text", ("Gemma4ForCausalLM",), _read_gemma4, _DEFAULTS, _ALIASES),)
