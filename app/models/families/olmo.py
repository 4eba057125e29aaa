"""OLMo 3 and OLMoE: queries and keys are normed over all heads; 3 norms the output of a branch and mixes windows."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.llama import listed_windows
from meshwright.app.models.families.moe import expert_dims

_OLMO3_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "sliding_window": 4096,
    "layer_types": None,
}
_OLMOE_DEFAULTS = _OLMO3_DEFAULTS | {
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_experts_per_tok": 8,
    "num_experts": 64,
}
# OLMo 3: every fourth layer sees everything.
_OLMO3_PATTERN = 4


def _read_olmo3(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS, NormPlace.AFTER)
    layers = []
    for window in listed_windows(fields, pattern=_OLMO3_PATTERN):
        attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=window, qk_norm=QkNorm.ALL_HEADS)
        layers.append(Layer((Branch("attn", attention, NormKind.RMS, NormPlace.AFTER), mlp)))
    return Architecture(llama_dims(fields), tuple(layers), rms_head(fields))


def _read_olmoe(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.ALL_HEADS)
    experts = Experts(fields.text("hidden_act"))
    layer = Layer((Branch("attn", attention, NormKind.RMS), Branch("mlp", experts, NormKind.RMS)))
    dims = llama_dims(fields) | expert_dims(fields, width=fields.size("intermediate_size"))
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


OLMO_FAMILIES = (
    Family("olmo3", ("Olmo3ForCausalLM",), _read_olmo3, _OLMO3_DEFAULTS),
    Family("olmoe", ("OlmoeForCausalLM",), _read_olmoe, _OLMOE_DEFAULTS, {"num_experts": ("num_local_experts",)}),
)
