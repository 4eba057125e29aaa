"""Phi-1, 1.5 and 2, whose branches share a norm, and Phi-3.5-MoE; Phi-3 and 4 are read as Mistral's kin."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Bias, Branch, Head, Joining, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, decoder_dims, llama_dims, tie
from meshwright.app.models.families.moe import expert_dims

_PHI_DEFAULTS = {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "gelu_new",
    "tie_word_embeddings": False,
    "qk_layernorm": False,
}
_PHIMOE_DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "attention_bias": False,
    "lm_head_bias": False,
}
_PHIMOE_ALIASES = {"num_experts": ("num_local_experts",)}


def _read_phi(fields: ConfigFields) -> Architecture:
    attention = Attention(
        qkv_bias=Bias.ADDED,
        out_bias=Bias.ADDED,
        qk_norm=QkNorm.PER_HEAD if fields.flag("qk_layernorm") else QkNorm.NONE,
        qk_norm_kind=NormKind.LAYER,
    )
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED)
    layer = Layer(
        (Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER, NormPlace.SHARED)), Joining.PARALLEL
    )
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"), kv_heads=fields.optional_size("num_key_value_heads"))
    return Architecture(dims, (layer,) * fields.layers(), Head(tie(fields), NormKind.LAYER, Bias.ADDED))


def _read_phimoe(fields: ConfigFields) -> Architecture:
    attention_bias, width = bias(fields.flag("attention_bias")), fields.size("intermediate_size")
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=fields.optional_size("sliding_window"))
    experts = Experts(fields.text("hidden_act"))
    layer = Layer((Branch("attn", attention, NormKind.LAYER), Branch("mlp", experts, NormKind.LAYER)))
    dims = llama_dims(fields, ffn=width)
    head = Head(tie(fields), NormKind.LAYER, bias(fields.flag("lm_head_bias")))
    return Architecture(dims | expert_dims(fields, width=width), (layer,) * fields.layers(), head)


PHI_FAMILIES = (
    Family("phi", ("PhiForCausalLM",), _read_phi, _PHI_DEFAULTS),
    Family("phimoe", ("PhimoeForCausalLM", "PhiMoEForCausalLM"), _read_phimoe, _PHIMOE_DEFAULTS, _PHIMOE_ALIASES),
)
