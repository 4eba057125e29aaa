"""Llama and the families that differ from it in biases, q/k norms, windows or the place of norms."""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Branch, Layer, NormPlace
from meshwright.app.importers.bodies.attention import Attention, QkNorm
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import FULL, SLIDING, Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.importers.parts import Bias, NormKind

_COMMON = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_DEFAULTS = _COMMON | {"vocab_size": 32000, "intermediate_size": 11008}
_MISTRAL_DEFAULTS = _COMMON | {
    "vocab_size": 32000,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
QWEN_DEFAULTS = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN3_DEFAULTS = QWEN_DEFAULTS | {"head_dim": 128}
_PHI3_DEFAULTS = _COMMON | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "sliding_window": None}
_MINISTRAL3_DEFAULTS = _MISTRAL_DEFAULTS | {
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "sliding_window": None,
}
_QWEN2_VL_DEFAULTS = QWEN_DEFAULTS | {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_window_layers": 80,
}
_OLMO2_DEFAULTS = _COMMON | {"vocab_size": 50304, "intermediate_size": 11008}


def pre_norm_layer(attention: Attention, mlp_branch: Branch) -> Layer:
    """RMS norm, attention, add; then the feed-forward branch."""
    return Layer((Branch("attn", attention, NormKind.RMS), mlp_branch))


def windows(fields: ConfigFields, n_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer of a Qwen2-like config, None where attention is full."""
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window") else None
    given = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if given is not None:
        return tuple(window if kind == SLIDING else None for kind in given)
    first_windowed = fields.count("max_window_layers")
    return tuple(window if i >= first_windowed else None for i in range(n_layers))


def listed_windows(fields: ConfigFields, *, pattern: int) -> tuple[int | None, ...]:
    """Sliding window of each layer as listed, else of all but every ``pattern``-th; None where attention is full."""
    n_layers, window = fields.layers(), fields.optional_size("sliding_window")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if (i + 1) % pattern else FULL for i in range(n_layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _read_llama(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    mlp = Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS)
    return Architecture(llama_dims(fields), (pre_norm_layer(attention, mlp),) * fields.layers(), rms_head(fields))


def _read_mistral(fields: ConfigFields) -> Architecture:
    attention = Attention(window=fields.optional_size("sliding_window"))
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    return Architecture(llama_dims(fields), (pre_norm_layer(attention, mlp),) * fields.layers(), rms_head(fields))


def read_qwen2(fields: ConfigFields) -> Architecture:
    """Qwen2: biases of queries, keys and values; windows in some layers."""
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    layers = tuple(
        pre_norm_layer(Attention(qkv_bias=Bias.ADDED, window=window), mlp) for window in windows(fields, fields.layers())
    )
    # Qwen2 has no head_dim field: a file that gives one is read as transformers reads it.
    return Architecture(llama_dims(fields), layers, rms_head(fields))


def _read_qwen3(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    layers = tuple(
        pre_norm_layer(Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=window, qk_norm=QkNorm.PER_HEAD), mlp)
        for window in windows(fields, fields.layers())
    )
    return Architecture(llama_dims(fields), layers, rms_head(fields))


def _read_olmo2(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.ALL_HEADS)
    layer = Layer(
        (
            Branch("attn", attention, NormKind.RMS, NormPlace.AFTER),
            Branch("mlp", gated_mlp(fields), NormKind.RMS, NormPlace.AFTER),
        )
    )
    return Architecture(llama_dims(fields), (layer,) * fields.layers(), rms_head(fields))


LLAMA_FAMILIES = (
    Family("llama", ("LlamaForCausalLM",), _read_llama, _LLAMA_DEFAULTS),
    # Granite scales embeddings, logits and residuals by constants, which changes neither weights nor work.
    Family("granite", ("GraniteForCausalLM",), _read_llama, _LLAMA_DEFAULTS),
    Family("mistral", ("MistralForCausalLM",), _read_mistral, _MISTRAL_DEFAULTS),
    Family("phi3", ("Phi3ForCausalLM",), _read_mistral, _PHI3_DEFAULTS),
    Family("qwen2", ("Qwen2ForCausalLM",), read_qwen2, QWEN_DEFAULTS),
    Family("qwen3", ("Qwen3ForCausalLM",), _read_qwen3, _QWEN3_DEFAULTS),
    Family("ministral3", ("Ministral3ForCausalLM",), _read_mistral, _MINISTRAL3_DEFAULTS),
    # Text decoders of models of text and images, which have no class of their own to name.
    Family("qwen2_vl_text", (), read_qwen2, _QWEN2_VL_DEFAULTS),
    Family("qwen2_5_vl_text", (), read_qwen2, _QWEN2_VL_DEFAULTS),
    Family("qwen3_vl_text", (), _read_qwen3, _QWEN3_DEFAULTS),
    Family("olmo2", ("Olmo2ForCausalLM",), _read_olmo2, _OLMO2_DEFAULTS),
)
