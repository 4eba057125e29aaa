"""Ling and Ring (BailingMoE): grouped-query attention with experts, and the hybrid of delta attention and latent attention."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.linear_mixers import DeltaAttention
from meshwright.app.models.bodies.mla import HeadGate, LatentAttention
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.deepseek import latent_dims
from meshwright.app.models.families.family import FULL, Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.kimi_linear import SPARSE, delta_dims, feed_forward_kinds
from meshwright.app.models.families.linear_attention import LINEAR
from meshwright.app.models.families.moe import expert_dims, group_dims

_MOE_DEFAULTS = {
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": False,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": None,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 0,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
}
_HYBRID_DEFAULTS = {
    "vocab_size": 157184,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 8,
    "topk_group": 4,
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 2,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
    "layer_group_size": 6,
    "layer_types": None,
    "mlp_layer_types": None,
}
_HYBRID_ALIASES = {
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token",),
    "n_shared_experts": ("num_shared_experts",),
    "n_group": ("num_expert_group",),
}


def _read_moe(fields: ConfigFields) -> Architecture:
    """Experts after the first dense layers; the bias that corrects routing is no parameter."""
    every_bias, n_layers = bias(fields.flag("use_bias")), fields.layers()
    attention = Branch(
        "attn",
        Attention(
            qkv_bias=bias(fields.flag("use_bias") or fields.flag("use_qkv_bias")),
            out_bias=every_bias,
            qk_norm=QkNorm.PER_HEAD if fields.flag("use_qk_norm") else QkNorm.NONE,
        ),
        NormKind.RMS,
    )
    n_shared, width = fields.count("num_shared_experts"), fields.size("moe_intermediate_size")
    shared_width = n_shared * (fields.optional_size("moe_shared_expert_intermediate_size") or width)
    experts = Experts(
        fields.text("hidden_act"),
        bias=every_bias,
        shared=SharedExpert.ADDED if n_shared else SharedExpert.NONE,
        shared_bias=every_bias,
    )
    dense = Layer((attention, Branch("mlp", gated_mlp(fields, with_bias=every_bias), NormKind.RMS)))
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    n_dense = min(fields.count("first_k_dense_replace"), n_layers)
    dims = llama_dims(fields) | expert_dims(fields, width=width, shared_width=shared_width or None) | group_dims(fields)
    return Architecture(dims, (dense,) * n_dense + (sparse,) * (n_layers - n_dense), rms_head(fields))


def _read_hybrid(fields: ConfigFields) -> Architecture:
    """Delta attention, and latent attention with a gate for each head in the last layer of every group."""
    n_layers, every = fields.layers(), fields.size("layer_group_size")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, LINEAR))
    if kinds is None:
        kinds = tuple(LINEAR if (i + 1) % every else FULL for i in range(n_layers))
    latent = LatentAttention(bias(fields.flag("attention_bias")), gate=HeadGate.PER_HEAD)
    delta = DeltaAttention(low_rank=False)
    width = fields.size("moe_intermediate_size")
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = tuple(
        Layer(
            (
                Branch("attn", latent if kind == FULL else delta, NormKind.RMS),
                Branch("mlp", experts if body == SPARSE else dense, NormKind.RMS),
            )
        )
        for kind, body in zip(kinds, feed_forward_kinds(fields), strict=True)
    )
    dims = latent_dims(fields) | group_dims(fields)
    dims |= delta_dims(
        heads=fields.size("num_attention_heads"), width=fields.size("head_dim"), kernel=fields.size("short_conv_kernel_size")
    )
    dims |= expert_dims(fields, width=width, shared_width=fields.size("n_shared_experts") * width)
    return Architecture(dims, layers, rms_head(fields))


BAILING_FAMILIES = (
    Family("bailing_moe", ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"), _read_moe, _MOE_DEFAULTS),
    Family("bailing_moe_v2", ("BailingMoeV2ForCausalLM",), _read_moe, _MOE_DEFAULTS),
    Family("bailing_hybrid", ("BailingHybridForCausalLM",), _read_hybrid, _HYBRID_DEFAULTS, _HYBRID_ALIASES),
)
