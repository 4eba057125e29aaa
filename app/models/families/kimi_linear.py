"""Kimi-Linear: delta attention, latent attention without rotation in some layers, and experts after the first dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.linear_mixers import KDA_RANK, DeltaAttention
from meshwright.app.models.bodies.mla import LatentAttention
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.deepseek import latent_dims
from meshwright.app.models.families.family import FULL, Family, bias, gated_mlp, rms_head
from meshwright.app.models.families.linear_attention import LINEAR
from meshwright.app.models.families.moe import expert_dims, group_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import CONV_KERNEL, SSM_GROUPS, SSM_HEAD_DIM, SSM_HEADS, SSM_STATE

DENSE, SPARSE = "dense", "sparse"

_DEFAULTS = {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_layer_types": None,
    "layer_types": None,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
}
_ALIASES = {
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token",),
    "n_shared_experts": ("num_shared_experts",),
    "n_group": ("num_expert_group",),
}
_NESTED_ALIASES = {
    "linear_head_dim": ("head_dim",),
    "linear_num_heads": ("num_heads",),
    "linear_conv_kernel_dim": ("short_conv_kernel_size",),
}
# Fields of later models of the kind, which have parts beside these.
_UNKNOWN_PARTS = ("mla_use_output_gate", "latent_moe_use_norm")
_LATENT_EXPERTS = "routed_expert_hidden_size"


def _read_kimi_linear(fields: ConfigFields) -> Architecture:
    for name in _UNKNOWN_PARTS:
        if fields.document.get(name):
            raise ModelError(f"{fields.family}: '{name}' is not supported: unknown parts", given=True, allowed="false")
    if fields.document.get(_LATENT_EXPERTS) is not None:
        raise ModelError(
            f"{fields.family}: experts of another width than the stream are not supported",
            given={_LATENT_EXPERTS: fields.document[_LATENT_EXPERTS]},
            allowed="null",
        )
    nested = _nested(fields)
    latent, delta = LatentAttention(bias(fields.flag("attention_bias"))), DeltaAttention()
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = tuple(
        Layer(
            (
                Branch("attn", latent if kind == FULL else delta, NormKind.RMS),
                Branch("mlp", experts if body == SPARSE else dense, NormKind.RMS),
            )
        )
        for kind, body in zip(_attention_kinds(fields, nested), feed_forward_kinds(fields), strict=True)
    )
    width, head_width = fields.size("moe_intermediate_size"), nested.size("linear_head_dim")
    dims = latent_dims(fields) | group_dims(fields)
    dims |= delta_dims(heads=nested.size("linear_num_heads"), width=head_width, kernel=nested.size("linear_conv_kernel_dim"))
    dims |= {KDA_RANK: head_width}
    dims |= expert_dims(fields, width=width, shared_width=fields.size("n_shared_experts") * width)
    return Architecture(dims, layers, rms_head(fields))


def delta_dims(*, heads: int, width: int, kernel: int) -> dict[str, int]:
    """Sizes of the dims of a delta attention whose keys and values have ``width`` numbers a head."""
    return {SSM_HEADS: heads, SSM_GROUPS: heads, SSM_HEAD_DIM: width, SSM_STATE: width, CONV_KERNEL: kernel}


def feed_forward_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """Kind of each layer's feed-forward network: as listed, else dense in the first ``first_k_dense_replace``."""
    n_layers = fields.layers()
    listed = fields.optional_words("mlp_layer_types", length=n_layers, allowed=(DENSE, SPARSE))
    if listed is not None:
        return listed
    n_dense = fields.count("first_k_dense_replace")
    return tuple(DENSE if i < n_dense else SPARSE for i in range(n_layers))


def _nested(fields: ConfigFields) -> ConfigFields:
    """Fields of the linear layers, which published files give in an object of their own."""
    given: Mapping[str, Any] | None = fields.document.get("linear_attn_config")
    if given is None:
        return fields
    if not isinstance(given, Mapping):
        raise ModelError(f"{fields.family}: 'linear_attn_config' must be an object", given=given)
    return ConfigFields(given, fields.family, {**_DEFAULTS, "full_attn_layers": None}, _NESTED_ALIASES)


def _attention_kinds(fields: ConfigFields, nested: ConfigFields) -> tuple[str, ...]:
    """As listed; else by the numbers of the full layers, from 1; else every fourth after the first is full."""
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, LINEAR))
    if listed is not None:
        return listed
    full = None if nested is fields else nested.optional_indices("full_attn_layers")
    if full is not None:
        return tuple(FULL if i + 1 in full else LINEAR for i in range(n_layers))
    return tuple(FULL if i and i % 4 == 0 else LINEAR for i in range(n_layers))


KIMI_LINEAR_FAMILIES = (Family("kimi_linear", ("KimiLinearForCausalLM",), _read_kimi_linear, _DEFAULTS, _ALIASES),)
