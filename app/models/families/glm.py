"""GLM-4 and GLM-4.5 to 4.7: biases on queries, keys and values alone, experts after dense layers. GLM-5 is in `deepseek`."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.moe import expert_dims, group_dims

_GLM_DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": True,
}
_GLM_MOE_DEFAULTS = _GLM_DEFAULTS | {
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": None,
    "attention_bias": False,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
}
_GLM4V_MOE_DEFAULTS = _GLM_MOE_DEFAULTS | {"vocab_size": 151424, "attention_bias": True}
_EXPERT_ALIASES = {"num_experts": ("n_routed_experts", "num_local_experts")}


def _read_glm(fields: ConfigFields) -> Architecture:
    return _dense(fields, NormPlace.BEFORE)


def _read_glm4(fields: ConfigFields) -> Architecture:
    """Norm both ends of each branch."""
    return _dense(fields, NormPlace.BOTH)


def _dense(fields: ConfigFields, place: NormPlace) -> Architecture:
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")))
    layer = Layer((Branch("attn", attention, NormKind.RMS, place), Branch("mlp", gated_mlp(fields), NormKind.RMS, place)))
    return Architecture(llama_dims(fields), (layer,) * fields.layers(), rms_head(fields))


def _read_glm4_moe(fields: ConfigFields) -> Architecture:
    """The first layers are dense; the multi-token-prediction layer is not built, as transformers does not build it."""
    n_layers, width = fields.layers(), fields.size("moe_intermediate_size")
    attention = Attention(
        qkv_bias=bias(fields.flag("attention_bias")),
        qk_norm=QkNorm.PER_HEAD if fields.flag("use_qk_norm") else QkNorm.NONE,
    )
    branch = Branch("attn", attention, NormKind.RMS)
    dense = Layer((branch, Branch("mlp", gated_mlp(fields), NormKind.RMS)))
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    sparse = Layer((branch, Branch("mlp", experts, NormKind.RMS)))
    n_dense = min(fields.count("first_k_dense_replace"), n_layers)
    dims = llama_dims(fields) | expert_dims(fields, width=width, shared_width=fields.size("n_shared_experts") * width)
    return Architecture(dims | group_dims(fields), (dense,) * n_dense + (sparse,) * (n_layers - n_dense), rms_head(fields))


GLM_FAMILIES = (
    Family("glm", ("GlmForCausalLM",), _read_glm, _GLM_DEFAULTS),
    Family("glm4", ("Glm4ForCausalLM",), _read_glm4, _GLM_DEFAULTS),
    # The text decoder of GLM-4.1V and GLM-4.6V, which has no class of its own to name.
    Family("glm4v_text", (), _read_glm4, _GLM_DEFAULTS | {"head_dim": None}),
    Family("glm4_moe", ("Glm4MoeForCausalLM",), _read_glm4_moe, _GLM_MOE_DEFAULTS, _EXPERT_ALIASES),
    Family("glm4v_moe_text", (), _read_glm4_moe, _GLM4V_MOE_DEFAULTS, _EXPERT_ALIASES),
)
