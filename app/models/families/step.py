"""Step-3.5 and the text decoder of Step-3.7: gated heads, more of them in layers with a window; experts and a shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.app.base.digits import is_digits
from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, OutputGate, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, SLIDING, Family, Multiples, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS

_DEFAULTS = {
    "vocab_size": 128815,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "layer_types": None,
    "num_sliding_attention_heads": None,
    "attention_other_setting": None,
    "mlp_layer_types": None,
    "moe_layers_enum": None,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "num_experts": 288,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 0,
}
_ALIASES = {
    "num_key_value_heads": ("num_attention_groups",),
    "num_experts": ("n_routed_experts", "moe_num_experts", "num_local_experts"),
    "num_experts_per_tok": ("moe_top_k",),
    "share_expert_dim": ("share_expert_dims",),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}
_DENSE, _SPARSE = "dense", "sparse"
# Layers without experts where the file lists none (transformers 5.23, Step3p7TextConfig).
_FIRST_DENSE = 3


def _read_step(fields: ConfigFields) -> Architecture:
    attention_bias, heads = bias(fields.flag("attention_bias")), fields.size("num_attention_heads")
    of_window = _window_heads(fields) or heads
    queries = Multiples.of(HEADS, (heads, of_window))
    full = Attention(
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=QkNorm.PER_HEAD,
        output_gate=OutputGate.PER_HEAD,
        query=(*queries.dims(heads), HEAD_DIM),
    )
    windowed = replace(full, window=fields.optional_size("sliding_window"), query=(*queries.dims(of_window), HEAD_DIM))
    mlp_bias = bias(fields.flag("mlp_bias"))
    dense = gated_mlp(fields, with_bias=mlp_bias)
    feed_forward: dict[str, Body] = {
        _DENSE: dense,
        _SPARSE: Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED, shared_bias=mlp_bias),
    }
    layers = tuple(
        Layer(
            (
                Branch("attn", full if kind == FULL else windowed, NormKind.RMS),
                Branch("mlp", feed_forward[body], NormKind.RMS),
            )
        )
        for kind, body in zip(_attention_kinds(fields), _feed_forward_kinds(fields), strict=True)
    )
    # Query heads of all layers must be multiples of the key heads; so is what they have in common, or the file is refused.
    common = replace(fields, document={**fields.document, "num_attention_heads": queries.common})
    ffn, kv_heads = fields.size("intermediate_size"), fields.size("num_key_value_heads")
    dims = decoder_dims(common, ffn=ffn, head_dim=fields.size("head_dim"), kv_heads=kv_heads)
    dims |= queries.sizes((heads, of_window))
    dims |= expert_dims(fields, width=fields.size("moe_intermediate_size"), shared_width=fields.size("share_expert_dim"))
    return Architecture(dims, layers, rms_head(fields))


def _window_heads(fields: ConfigFields) -> int | None:
    """Query heads of layers with a window, where they have a number of their own."""
    given = fields.optional_size("num_sliding_attention_heads")
    other = fields.document.get("attention_other_setting")
    if given is not None or other is None:
        return given
    if not isinstance(other, Mapping):
        raise ModelError(f"{fields.family}: 'attention_other_setting' must be an object", given=other)
    return ConfigFields(other, fields.family, {"num_attention_heads": None}).optional_size("num_attention_heads")


def _attention_kinds(fields: ConfigFields) -> tuple[str, ...]:
    listed = _listed(fields, "layer_types", (FULL, SLIDING))
    return (FULL,) * fields.layers() if listed is None else listed


def _feed_forward_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """As listed in words, else by the indices of layers with experts, else experts in all layers but the first three."""
    listed = _listed(fields, "mlp_layer_types", (_DENSE, _SPARSE))
    if listed is not None:
        return listed
    enumerated = fields.document.get("moe_layers_enum")
    if isinstance(enumerated, str):
        enumerated = [int(word) if is_digits(word.strip()) else word for word in enumerated.split(",") if word.strip()]
    sparse = replace(fields, document={"moe_layers_enum": enumerated}).optional_indices("moe_layers_enum")
    if sparse is None:
        sparse = frozenset(range(_FIRST_DENSE, fields.layers()))
    return tuple(_SPARSE if i in sparse else _DENSE for i in range(fields.layers()))


def _listed(fields: ConfigFields, name: str, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    """Words of a list with an entry for each layer, after which those of layers that predict further tokens may follow."""
    n_layers, given = fields.layers(), fields.document.get(name)
    longer = n_layers + fields.count("num_nextn_predict_layers")
    cut = given[:n_layers] if isinstance(given, list) and len(given) == longer else given
    return replace(fields, document={name: cut}).optional_words(name, length=n_layers, allowed=allowed)


STEP_FAMILIES = (Family("step3p5", ("Step3p5ForCausalLM",), _read_step, _DEFAULTS, _ALIASES),)
