"""Gemma 1, 2 and 3 (text): wide heads, GeGLU, tied embeddings; 2 and 3 norm both ends of a branch and mix windows."""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Branch, Layer, NormPlace
from meshwright.app.importers.bodies.attention import Attention, QkNorm
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import FULL, SLIDING, Family, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.importers.parts import NormKind
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
