"""RecurrentGemma: recurrent blocks with a state for each channel, and attention under a window in some layers."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Bias, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention
from meshwright.app.models.bodies.linear_mixers import LRU_BLOCK, LRU_STATE, GatedRecurrence
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, decoder_dims, rms_head
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import CONV_KERNEL, SSM_INNER

_RECURRENT, _ATTENTION = "recurrent", "attention"
_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "num_key_value_heads": None,
    "lru_width": None,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "block_types": [_RECURRENT, _RECURRENT, _ATTENTION],
    "attention_bias": False,
    "tie_word_embeddings": True,
}


def _read_recurrent_gemma(fields: ConfigFields) -> Architecture:
    """``block_types`` is repeated; ``intermediate_size`` counts gate and up projection."""
    heads, hidden, width = fields.size("num_attention_heads"), fields.size("hidden_size"), fields.size("intermediate_size")
    lru_width = fields.optional_size("lru_width") or hidden
    for name, size, parts in (("lru_width", lru_width, heads), ("intermediate_size", width, 2)):
        if size % parts:
            raise ModelError(f"{fields.family}: '{name}' must be a multiple of {parts}", given=size)
    function = fields.text("hidden_activation")
    window = fields.optional_size("attention_window_size")
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")), out_bias=Bias.ADDED, window=window)
    mlp = Branch("mlp", Mlp(Gate.GATED, function, Bias.ADDED), NormKind.RMS)
    bodies: dict[str, Body] = {_RECURRENT: GatedRecurrence(function), _ATTENTION: attention}
    kinds = fields.optional_words("block_types", length=None, allowed=(_RECURRENT, _ATTENTION)) or (_RECURRENT,)
    layers = tuple(Layer((Branch("mixer", bodies[kinds[i % len(kinds)]], NormKind.RMS), mlp)) for i in range(fields.layers()))
    dims = decoder_dims(fields, ffn=width // 2, kv_heads=fields.optional_size("num_key_value_heads"))
    dims |= {SSM_INNER: lru_width, LRU_BLOCK: lru_width // heads, LRU_STATE: 1, CONV_KERNEL: fields.size("conv1d_width")}
    return Architecture(dims, layers, rms_head(fields))


RECURRENT_GEMMA_FAMILIES = (
    Family(
        "recurrent_gemma",
        ("RecurrentGemmaForCausalLM",),
        _read_recurrent_gemma,
        _DEFAULTS,
        {"attention_window_size": ("sliding_window",)},
    ),
)
