"""A decoder that no family is known of, read as its fields say: Llama's layers, with routed experts where the file has them.

Biases, norms of queries and keys, windows and shared experts that the file does not name are missing: parameters and work are
approximate, within a few percent for most decoders of today. Layers that are no attention (state space, linear) are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.importers.architecture import Architecture, Branch, Layer
from meshwright.app.importers.bodies.attention import Attention
from meshwright.app.importers.bodies.experts import Experts, SharedExpert
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import bias, gated_mlp, llama_dims, rms_head
from meshwright.app.importers.families.moe import expert_dims
from meshwright.app.importers.parts import NormKind

_DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_experts": None,
    "moe_intermediate_size": None,
    "n_shared_experts": None,
    "first_k_dense_replace": 0,
}
_ALIASES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("ffn_hidden_size", "ffn_dim", "n_inner"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads"),
    "hidden_act": ("hidden_activation", "activation_function"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_topk", "moe_k", "top_k_experts"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "first_k_dense_replace": ("num_dense_layers",),
}


def read_assumed_decoder(document: Mapping[str, Any], model_type: str) -> Architecture:
    """Return the decoder that the fields of an unknown kind of config.json describe; raises ModelError for what is missing."""
    fields = ConfigFields(document, model_type, _DEFAULTS, _ALIASES)
    attention_bias = bias(fields.optional_flag("attention_bias"))
    attention = Branch("attn", Attention(qkv_bias=attention_bias, out_bias=attention_bias), NormKind.RMS)
    n_layers, n_experts = fields.layers(), fields.optional_size("num_experts")
    if n_experts is None:
        layer = Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS)))
        return Architecture(llama_dims(fields), (layer,) * n_layers, rms_head(fields))
    n_dense = min(fields.count("first_k_dense_replace"), n_layers)
    width = fields.optional_size("moe_intermediate_size") or fields.size("intermediate_size")
    n_shared = fields.optional_size("n_shared_experts")
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.NONE if n_shared is None else SharedExpert.ADDED)
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    dense = (Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS))),) * n_dense
    dims = llama_dims(fields, ffn=None if n_dense else width)
    dims |= expert_dims(fields, width=width, shared_width=None if n_shared is None else n_shared * width)
    return Architecture(dims, (*dense, *(sparse,) * (n_layers - n_dense)), rms_head(fields))
