"""MiMo, a Qwen2; MiMo-V2-Flash: windows with attention sinks and more key heads, narrow values, experts.

Layers for multi-token prediction are not built, as transformers builds none.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, SLIDING, Family, Multiples, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.models.families.llama import QWEN_DEFAULTS, read_qwen2
from meshwright.app.models.families.moe import expert_dims, group_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, KV_HEADS, V_HEAD_DIM
from meshwright.costmodels.model.operators import Weight

_MIMO_DEFAULTS = QWEN_DEFAULTS | {"vocab_size": 151680, "intermediate_size": 11008, "num_hidden_layers": 36}
_V2_DEFAULTS = {
    "vocab_size": 152576,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "sliding_window": 129,
    "layer_types": None,
    "hybrid_layer_pattern": None,
    "mlp_layer_types": None,
    "moe_layer_freq": None,
    "moe_intermediate_size": 2048,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
}
_V2_ALIASES = {"num_experts": ("n_routed_experts", "num_local_experts")}
# Layers with a window have twice the key heads of others (modeling_mimo_v2_flash), and the file's own fields say no other.
_WINDOW_KEYS = 2
_SAME_AS_FULL = (
    ("swa_num_attention_heads", "num_attention_heads", 1),
    ("swa_num_key_value_heads", "num_key_value_heads", _WINDOW_KEYS),
    ("swa_head_dim", "head_dim", 1),
    ("swa_v_head_dim", "v_head_dim", 1),
)
# The first layer and every sixth see everything where the file lists nothing.
_PATTERN = 6
_DENSE, _SPARSE = "dense", "sparse"


def _read_v2(fields: ConfigFields) -> Architecture:
    for given, of_full, factor in _SAME_AS_FULL:
        expected = factor * fields.size(of_full)
        if fields.document.get(given, expected) != expected:
            raise ModelError(
                f"{fields.family}: layers with a window differ from the others in a way that is not supported",
                given={given: fields.document[given]},
                allowed=str(expected),
            )
    kv_heads, attention_bias = fields.size("num_key_value_heads"), bias(fields.flag("attention_bias"))
    of_keys = (kv_heads, _WINDOW_KEYS * kv_heads)
    keys = Multiples.of(KV_HEADS, of_keys)
    full = Attention(qkv_bias=attention_bias, value=(KV_HEADS, V_HEAD_DIM))
    many = keys.dims(of_keys[1])
    windowed = replace(
        full,
        window=fields.optional_size("sliding_window"),
        key=(*many, HEAD_DIM),
        value=(*many, V_HEAD_DIM),
        kernel_weights=(Weight("sinks", (HEADS,)),),
    )
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"))
    layers = tuple(
        Layer(
            (
                Branch("attn", full if kind == FULL else windowed, NormKind.RMS),
                Branch("mlp", _body(feed_forward, dense, experts), NormKind.RMS),
            )
        )
        for kind, feed_forward in zip(_attention_kinds(fields), _feed_forward_kinds(fields), strict=True)
    )
    head_dim = fields.size("head_dim")
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"), head_dim=head_dim, kv_heads=kv_heads)
    dims |= keys.sizes(of_keys) | {V_HEAD_DIM: fields.size("v_head_dim")}
    dims |= expert_dims(fields, width=fields.size("moe_intermediate_size")) | group_dims(fields)
    return Architecture(dims, layers, rms_head(fields))


def _body(kind: str, dense: Body, experts: Body) -> Body:
    return dense if kind == _DENSE else experts


def _attention_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """As listed in words or in switches, where 1 is a window."""
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if listed is not None:
        return listed
    windowed = fields.optional_switches("hybrid_layer_pattern", least_length=n_layers)
    if windowed is not None:
        return tuple(SLIDING if each else FULL for each in windowed[:n_layers])
    return tuple(SLIDING if i and (i + 1) % _PATTERN else FULL for i in range(n_layers))


def _feed_forward_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """As listed in words or in switches, where 1 has experts; else experts in all layers but the first."""
    n_layers = fields.layers()
    listed = fields.optional_words("mlp_layer_types", length=n_layers, allowed=(_DENSE, _SPARSE))
    if listed is not None:
        return listed
    sparse = fields.optional_switches("moe_layer_freq", least_length=n_layers)
    if sparse is not None:
        return tuple(_SPARSE if each else _DENSE for each in sparse[:n_layers])
    return tuple(_SPARSE if i else _DENSE for i in range(n_layers))


MIMO_FAMILIES = (
    Family("mimo", ("MiMoForCausalLM",), read_qwen2, _MIMO_DEFAULTS),
    Family("mimo_v2_flash", ("MiMoV2FlashForCausalLM",), _read_v2, _V2_DEFAULTS, _V2_ALIASES),
)
