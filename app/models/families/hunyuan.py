"""Hunyuan with experts (Hunyuan-Large, Hunyuan-A13B); the dense models are in `llama`."""

from __future__ import annotations

from typing import Any

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import KIN_DEFAULTS, Family, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError

_DEFAULTS = {
    **KIN_DEFAULTS,
    "vocab_size": 290943,
    "use_qk_norm": True,
    "use_mixed_mlp_moe": True,
    "moe_intermediate_size": None,
    "moe_layer_num_skipped": 0,
    "num_shared_expert": 1,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "use_cla": False,
    "cla_share_factor": 1,
}
_ALIASES = {
    "num_experts_per_tok": ("moe_topk",),
    "num_experts": ("num_local_experts",),
    "head_dim": ("attention_head_dim",),
}
_LISTS = ("num_experts", "num_experts_per_tok", "moe_topk", "moe_intermediate_size", "num_shared_expert", "intermediate_size")


def _read_hunyuan_moe(given: ConfigFields) -> Architecture:
    """A shared expert in every layer, as wide as ``intermediate_size`` says for each of ``num_shared_expert``."""
    fields = _of_equal_layers(given)
    if fields.flag("use_cla") and fields.size("cla_share_factor") > 1:
        raise ModelError(
            f"{fields.family}: keys and values that layers share (cross-layer attention) are not supported",
            given={"cla_share_factor": fields.size("cla_share_factor")},
            allowed="1",
        )
    attention_bias, n_layers = bias(fields.flag("attention_bias")), fields.layers()
    qk_norm = QkNorm.PER_HEAD if fields.flag("use_qk_norm") else QkNorm.NONE
    attention = Branch("attn", Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=qk_norm), NormKind.RMS)
    ffn = fields.size("intermediate_size")
    dims = decoder_dims(
        fields, ffn=ffn, head_dim=fields.optional_size("head_dim"), kv_heads=fields.optional_size("num_key_value_heads")
    )
    dense = Layer((attention, Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS)))
    if fields.size("num_experts") == 1 and given.family != _WITH_EXPERTS:
        return Architecture(dims, (dense,) * n_layers, rms_head(fields))
    n_shared = fields.count("num_shared_expert") if fields.optional_flag("use_mixed_mlp_moe") else 0
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED if n_shared else SharedExpert.NONE)
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    width = fields.optional_size("moe_intermediate_size") or ffn
    dims |= expert_dims(fields, width=width, shared_width=n_shared * ffn or None)
    n_dense = min(fields.count("moe_layer_num_skipped"), n_layers)
    return Architecture(dims, (dense,) * n_dense + (sparse,) * (n_layers - n_dense), rms_head(fields))


def _of_equal_layers(fields: ConfigFields) -> ConfigFields:
    """The fields with one value in the place of a list for all layers; raises ModelError where layers differ."""
    document: dict[str, Any] = dict(fields.document)
    for name in _LISTS:
        values = document.get(name)
        if not isinstance(values, list):
            continue
        if not values or any(value != values[0] for value in values):
            raise ModelError(f"{fields.family}: layers that differ in '{name}' are not supported", given=values[:8])
        document[name] = values[0]
    if isinstance(document.get("use_mixed_mlp_moe"), int):
        document["use_mixed_mlp_moe"] = bool(document["use_mixed_mlp_moe"])
    return ConfigFields(document, fields.family, fields.defaults, fields.aliases)


_WITH_EXPERTS = "hunyuan_v1_moe"

HUNYUAN_FAMILIES = (
    Family(_WITH_EXPERTS, ("HunYuanMoEV1ForCausalLM",), _read_hunyuan_moe, _DEFAULTS, _ALIASES),
    # The older kind of both, dense where the file names no experts.
    Family(
        "hunyuan",
        ("HunYuanForCausalLM", "HunYuanMoEV1ForCausalLM", "HunYuanDenseV1ForCausalLM"),
        _read_hunyuan_moe,
        _DEFAULTS,
        _ALIASES,
    ),
)
