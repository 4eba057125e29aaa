"""DBRX: experts in every layer, layer norms without a shift; sizes stand in objects for attention and feed-forward networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.models.architecture import Architecture, Branch, Head, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, decoder_dims, tie
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "tie_word_embeddings": False,
}
_ALIASES = {"hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",)}
_ATTENTION_DEFAULTS = {"kv_n_heads": 1}
_FFN_DEFAULTS = {"ffn_hidden_size": 3584, "num_experts": 4, "num_experts_per_tok": 1, "name": "silu"}
_FFN_ALIASES = {"num_experts": ("moe_num_experts",), "num_experts_per_tok": ("moe_top_k",)}


def _read_dbrx(fields: ConfigFields) -> Architecture:
    attention = ConfigFields(_nested(fields, "attn_config"), fields.family, _ATTENTION_DEFAULTS)
    ffn = ConfigFields(_nested(fields, "ffn_config"), fields.family, _FFN_DEFAULTS, _FFN_ALIASES)
    function = ConfigFields(_nested(ffn, "ffn_act_fn"), fields.family, _FFN_DEFAULTS).text("name")
    kind, width = NormKind.LAYER_SCALE_ONLY, ffn.size("ffn_hidden_size")
    layer = Layer((Branch("attn", Attention(), kind), Branch("mlp", Experts(function), kind)))
    dims = decoder_dims(fields, ffn=width, kv_heads=attention.size("kv_n_heads")) | expert_dims(ffn, width=width)
    return Architecture(dims, (layer,) * fields.layers(), Head(tie(fields), kind))


def _nested(fields: ConfigFields, name: str) -> Mapping[str, Any]:
    given = fields.document.get(name) or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"{fields.family}: '{name}' must be an object", given=given)
    return given


DBRX_FAMILIES = (Family("dbrx", ("DbrxForCausalLM",), _read_dbrx, _DEFAULTS, _ALIASES),)
