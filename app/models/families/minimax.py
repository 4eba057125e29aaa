"""MiniMax-M3 (text): block-sparse attention, experts after the first dense layers. Text-01 and M1: lightning attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, BlockSparseAttention, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.linear_mixers import LightningAttention
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, Family, llama_dims, rms_head
from meshwright.app.models.families.linear_attention import LINEAR
from meshwright.app.models.families.moe import MIXTRAL_DEFAULTS, expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    HEAD_DIM,
    HEADS,
    INDEX_DIM,
    INDEX_HEADS,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_STATE,
)

_DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "tie_word_embeddings": False,
    "attention_output_gate": False,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "mlp_layer_types": None,
    "moe_layer_freq": None,
    "layer_types": None,
    "index_n_heads": 4,
    "index_head_dim": 128,
}
_ALIASES = {"num_experts": ("num_local_experts",)}
_SPARSE_ATTENTION = "minimax_m3_sparse"
_DENSE, _SPARSE = "dense", "sparse"
_FUNCTION = "clamped_silu"
"""SiLU with clamped inputs, as in gpt-oss; files call it swigluoai."""


def _read_m3(fields: ConfigFields) -> Architecture:
    fields.refuse("attention_output_gate", because="the gate's projection is not known")
    nested = _nested(fields)
    attention = Attention(qk_norm=QkNorm.PER_HEAD)
    attentions: dict[str, Body] = {FULL: attention, _SPARSE_ATTENTION: BlockSparseAttention(attention)}
    feed_forward: dict[str, Body] = {
        _DENSE: Mlp(Gate.GATED, _FUNCTION),
        _SPARSE: Experts(_FUNCTION, shared=SharedExpert.ADDED),
    }
    layers = tuple(
        Layer((Branch("attn", attentions[kind], NormKind.RMS), Branch("mlp", feed_forward[body], NormKind.RMS)))
        for kind, body in zip(_attention_kinds(fields, nested), _feed_forward_kinds(fields), strict=True)
    )
    width, shared = fields.size("intermediate_size"), fields.size("shared_intermediate_size")
    dims = llama_dims(fields, ffn=fields.size("dense_intermediate_size"))
    dims |= expert_dims(fields, width=width, shared_width=shared)
    dims |= {INDEX_HEADS: nested.size("index_n_heads"), INDEX_DIM: nested.size("index_head_dim")}
    return Architecture(dims, layers, rms_head(fields))


def _nested(fields: ConfigFields) -> ConfigFields:
    """Fields of the indexer, which most files give in an object of their own."""
    given: Mapping[str, Any] | None = fields.document.get("sparse_attention_config")
    if given is None:
        given = {name: fields.document[name] for name in ("index_n_heads", "index_head_dim") if name in fields.document}
    if not isinstance(given, Mapping):
        raise ModelError(f"{fields.family}: 'sparse_attention_config' must be an object", given=given)
    aliases = {"index_n_heads": ("sparse_num_index_heads",), "index_head_dim": ("sparse_index_dim",)}
    return ConfigFields(given, fields.family, _DEFAULTS | {"sparse_attention_freq": None}, aliases)


def _attention_kinds(fields: ConfigFields, nested: ConfigFields) -> tuple[str, ...]:
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, _SPARSE_ATTENTION))
    if listed is not None:
        return listed
    sparse = nested.optional_switches("sparse_attention_freq", least_length=n_layers) or (False,) * n_layers
    return tuple(_SPARSE_ATTENTION if each else FULL for each in sparse[:n_layers])


def _feed_forward_kinds(fields: ConfigFields) -> tuple[str, ...]:
    n_layers = fields.layers()
    listed = fields.optional_words("mlp_layer_types", length=n_layers, allowed=(_DENSE, _SPARSE))
    if listed is not None:
        return listed
    sparse = fields.optional_switches("moe_layer_freq", least_length=n_layers) or (True,) * n_layers
    return tuple(_SPARSE if each else _DENSE for each in sparse[:n_layers])


# MiniMax-Text-01, MiniMax-M1: lightning attention, softmax attention in some layers, experts in all. The constants by which
# residuals and branches are multiplied change neither weights nor work.

_TEXT_DEFAULTS = {
    **MIXTRAL_DEFAULTS,
    "layer_types": None,
    "attn_type_list": None,
    "block_size": 256,
    "shared_intermediate_size": 0,
}


def _read_text_01(fields: ConfigFields) -> Architecture:
    width, function, n_layers = fields.size("intermediate_size"), fields.text("hidden_act"), fields.layers()
    shared = fields.count("shared_intermediate_size")
    attention = Attention(window=fields.optional_size("sliding_window"))
    bodies: dict[str, Body] = {FULL: attention, LINEAR: LightningAttention(fields.size("block_size"), function)}
    experts = Branch("mlp", Experts(function, shared=SharedExpert.GATED if shared else SharedExpert.NONE), NormKind.RMS)
    layers = tuple(Layer((Branch("attn", bodies[kind], NormKind.RMS), experts)) for kind in _text_kinds(fields, n_layers))
    dims = llama_dims(fields, ffn=width) | expert_dims(fields, width=width, shared_width=shared or None)
    heads, head_dim = dims[HEADS], dims[HEAD_DIM]
    dims |= {SSM_HEADS: heads, SSM_GROUPS: heads, SSM_HEAD_DIM: head_dim, SSM_STATE: head_dim}
    return Architecture(dims, layers, rms_head(fields))


def _text_kinds(fields: ConfigFields, n_layers: int) -> tuple[str, ...]:
    """As listed, in words or as 1 for softmax attention; else every layer of an odd number, from 1, sees everything."""
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, LINEAR))
    if listed is not None:
        return listed
    given = fields.optional_switches("attn_type_list", least_length=n_layers)
    if given is not None:
        return tuple(FULL if each else LINEAR for each in given[:n_layers])
    return tuple(FULL if (i + 1) % 2 else LINEAR for i in range(n_layers))


MINIMAX_FAMILIES = (
    Family("minimax_m3_vl_text", ("MiniMaxM3VLForCausalLM",), _read_m3, _DEFAULTS, _ALIASES),
    # The file of the text model alone, of a kind that transformers lacks.
    Family("minimax_m3", ("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"), _read_m3, _DEFAULTS, _ALIASES),
    Family("minimax", ("MiniMaxForCausalLM",), _read_text_01, _TEXT_DEFAULTS, _ALIASES),
    Family("minimax_text_01", ("MiniMaxText01ForCausalLM",), _read_text_01, _TEXT_DEFAULTS, _ALIASES),
    Family("minimax_m1", ("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"), _read_text_01, _TEXT_DEFAULTS, _ALIASES),
)
