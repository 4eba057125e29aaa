"""LongCat-Flash: layers of two latent attentions and two dense networks, with experts beside; some experts do nothing."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.bodies.mla import LatentAttention
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.deepseek import latent_dims
from meshwright.app.models.families.family import Family, bias, gated_mlp, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.model.dims import TOP_K

IDLE_EXPERTS = "idle_experts"
"""Dim of the experts that hand a token back as it is."""

_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "intermediate_size": 12288,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts_per_tok": 12,
    "num_experts": 512,
    "zero_expert_num": 256,
    "moe_intermediate_size": 2048,
    "router_bias": False,
}
_ALIASES = {
    "num_hidden_layers": ("num_layers",),
    "intermediate_size": ("ffn_hidden_size",),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "num_experts_per_tok": ("moe_topk",),
    "num_experts": ("n_routed_experts", "num_local_experts"),
}


def _read_longcat(fields: ConfigFields) -> Architecture:
    """Each layer is two of the graph; experts read what the first dense network reads.

    Of the experts of a token those count that work when all are chosen alike: 8 of 12 where 256 of 768 do nothing.
    """
    attention = Branch("attn", LatentAttention(bias(fields.flag("attention_bias"))), NormKind.RMS)
    dense = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    n_idle = fields.count("zero_expert_num")
    experts = Experts(
        fields.text("hidden_act"),
        router_bias=bias(fields.flag("router_bias")),
        idle=IDLE_EXPERTS if n_idle else None,
    )
    with_experts = Layer((attention, dense, Branch("moe", experts, NormKind.RMS, NormPlace.SHARED)))
    dims = latent_dims(fields) | expert_dims(fields, width=fields.size("moe_intermediate_size"))
    if n_idle:
        n_experts = fields.size("num_experts")
        dims |= {IDLE_EXPERTS: n_idle, TOP_K: max(1, round(dims[TOP_K] * n_experts / (n_experts + n_idle)))}
    return Architecture(dims, (with_experts, Layer((attention, dense))) * _n_layers(fields), rms_head(fields))


def _n_layers(fields: ConfigFields) -> int:
    """``num_layers``; files of transformers may state twice that as ``num_hidden_layers`` beside it or alone."""
    if "num_layers" in fields.document or "num_hidden_layers" not in fields.document:
        return ConfigFields(
            {key: value for key, value in fields.document.items() if key != "num_hidden_layers"},
            fields.family,
            fields.defaults,
            fields.aliases,
        ).layers()
    return max(1, fields.layers() // 2)


LONGCAT_FAMILIES = (
    Family("longcat_flash", ("LongcatFlashForCausalLM", "LongcatCausalLM"), _read_longcat, _DEFAULTS, _ALIASES),
)
