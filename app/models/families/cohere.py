"""Cohere Command R and Command A: attention and feed-forward network read one layer norm that has no shift; tied embeddings."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Head, Joining, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, Position, QkNorm
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, gated_mlp, llama_dims, tie
from meshwright.app.models.families.llama import listed_windows

_COHERE_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "use_qk_norm": False,
}
_COHERE2_DEFAULTS = _COHERE_DEFAULTS | {"sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None}


def _read_cohere(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=QkNorm.ALL_HEADS if fields.flag("use_qk_norm") else QkNorm.NONE,
        qk_norm_kind=NormKind.LAYER_SCALE_ONLY,
    )
    return _architecture(fields, (attention,) * fields.layers())


def _read_cohere2(fields: ConfigFields) -> Architecture:
    """Layers with a window rotate queries and keys; full ones know nothing of positions."""
    attention_bias = bias(fields.flag("attention_bias"))
    windows = listed_windows(fields, pattern=fields.size("sliding_window_pattern"))
    attentions = tuple(
        Attention(Position.ELSEWHERE if window is None else Position.ROTARY, attention_bias, attention_bias, window=window)
        for window in windows
    )
    return _architecture(fields, attentions)


def _architecture(fields: ConfigFields, attentions: tuple[Attention, ...]) -> Architecture:
    mlp = Branch("mlp", gated_mlp(fields), NormKind.LAYER_SCALE_ONLY, NormPlace.SHARED)
    layers = tuple(
        Layer((Branch("attn", attention, NormKind.LAYER_SCALE_ONLY), mlp), Joining.PARALLEL) for attention in attentions
    )
    dims = llama_dims(fields)
    return Architecture(dims, layers, Head(tie(fields), NormKind.LAYER_SCALE_ONLY))


COHERE_FAMILIES = (
    Family("cohere", ("CohereForCausalLM",), _read_cohere, _COHERE_DEFAULTS),
    Family("cohere2", ("Cohere2ForCausalLM",), _read_cohere2, _COHERE2_DEFAULTS),
)
