"""Nemotron-H: every layer is one branch, a Mamba-2 mixer, attention, a feed-forward network or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, Position
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.mixers import Mamba2
from meshwright.app.models.bodies.mlp import Gate, Linear, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, Multiples, bias, decoder_dims, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    CONV_KERNEL,
    EXPERT_LATENT,
    FFN,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_STATE,
)

_NEMOTRON_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "layers_block_type": None,
    "hybrid_override_pattern": None,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "mamba_hidden_act": "silu",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "use_bias": False,
    "use_conv_bias": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
}
_NEMOTRON_ALIASES = {
    "num_experts": ("n_routed_experts", "num_local_experts"),
    "layers_block_type": ("layer_types",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "chunk_size": ("mamba_chunk_size",),
    "use_conv_bias": ("mamba_conv_bias",),
}
# Kinds of Nemotron-H layers: letters of its pattern, names of its lists (older ones too).
_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
_NEMOTRON_DEFAULT_KINDS = ("mamba", "moe", "attention", "mlp")


def _read_nemotron_h(fields: ConfigFields) -> Architecture:
    """Every layer is one branch: a mixer, attention, a feed-forward network or experts."""
    kinds = _nemotron_kinds(fields)
    function, mlp_bias, proj_bias = fields.text("mlp_hidden_act"), bias(fields.flag("mlp_bias")), bias(fields.flag("use_bias"))
    latent = fields.optional_size("moe_latent_size")
    reads = HIDDEN if latent is None else EXPERT_LATENT
    bodies: dict[str, Body] = {
        "mamba": Mamba2(
            fields.size("chunk_size"),
            fields.text("mamba_hidden_act"),
            in_bias=proj_bias,
            conv_bias=bias(fields.flag("use_conv_bias")),
            out_bias=proj_bias,
        ),
        "attention": Attention(Position.ELSEWHERE),
        "mlp": Mlp(Gate.PLAIN, function, mlp_bias),
        "moe": Experts(function, Gate.PLAIN, shared=SharedExpert.ADDED, shared_bias=mlp_bias, reads=reads),
    }
    names = {"mamba": "mamba", "attention": "attn", "mlp": "mlp", "moe": "mlp"}
    layers = tuple(Layer((Branch(names[kind], bodies[kind], NormKind.RMS),)) for kind in kinds)
    dims = decoder_dims(
        fields,
        ffn=fields.size("intermediate_size"),
        head_dim=fields.size("head_dim"),
        kv_heads=fields.optional_size("num_key_value_heads"),
    )
    dims |= {
        SSM_HEADS: fields.size("mamba_num_heads"),
        SSM_HEAD_DIM: fields.size("mamba_head_dim"),
        SSM_GROUPS: fields.size("n_groups"),
        SSM_STATE: fields.size("ssm_state_size"),
        CONV_KERNEL: fields.size("conv_kernel"),
    }
    if "moe" in kinds:
        width, shared_width = fields.size("moe_intermediate_size"), fields.size("moe_shared_expert_intermediate_size")
        dims |= expert_dims(fields, width=width, shared_width=shared_width)
        dims |= {} if latent is None else {EXPERT_LATENT: latent}
    return Architecture(dims, layers, rms_head(fields))


def _nemotron_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """Kind of each layer: as listed, else by the letters of the pattern; their number is the number of layers."""
    listed = fields.optional_words("layers_block_type", length=None, allowed=tuple(_NEMOTRON_WORDS))
    if listed is not None:
        return tuple(_NEMOTRON_WORDS[word] for word in listed)
    pattern = fields.optional_text("hybrid_override_pattern")
    if pattern is None:
        return _NEMOTRON_DEFAULT_KINDS
    unknown = sorted(set(pattern) - set(_NEMOTRON_LETTERS))
    if unknown or not pattern:
        raise ModelError(
            f"{fields.family}: 'hybrid_override_pattern' must be made of known letters",
            given=unknown or pattern,
            allowed=" ".join(_NEMOTRON_LETTERS),
        )
    return tuple(_NEMOTRON_LETTERS[letter] for letter in pattern)


NEMOTRON_FAMILIES = (Family("nemotron_h", ("NemotronHForCausalLM",), _read_nemotron_h, _NEMOTRON_DEFAULTS, _NEMOTRON_ALIASES),)


# Llama-Nemotron (DeciLM): a Llama whose layers were chosen one by one: attention with other groups, as a plain product or not
# at all; feed-forward networks of other widths, as a plain product or not at all.
#
# transformers lacks the kind; the sizes are those of the checkpoint's own class (modeling_decilm.py of
# Llama-3_3-Nemotron-Super).

_DEFAULTS = {
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "block_configs": None,
}
_LAYER_DEFAULTS = {
    "no_op": False,
    "replace_with_linear": False,
    "n_heads_in_group": None,
    "window_length": None,
    "num_sink_tokens": None,
    "ffn_mult": None,
}
# Two thirds of four times the width, times the layer's factor over four: rounded up to whole blocks of columns.
_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The chosen parts of a layer: key heads of its attention and columns of its feed-forward network; None where it has none
    of its own, 0 where a plain product is in the place."""

    kv_heads: int | None
    columns: int | None
    window: int | None


def _read_nas(fields: ConfigFields) -> Architecture:
    chosen = [_layer(fields, entry) for entry in _entries(fields)]
    every_kv = [layer.kv_heads for layer in chosen if layer.kv_heads] or [fields.size("num_attention_heads")]
    every_width = [layer.columns for layer in chosen if layer.columns] or [_COLUMNS]
    keys, widths = Multiples.of(KV_HEADS, every_kv), Multiples.of(FFN, every_width)
    layers = tuple(Layer(_branches(fields, layer, keys, widths)) for layer in chosen)
    dims = decoder_dims(fields, ffn=widths.common, kv_heads=keys.common)
    return Architecture(dims | keys.sizes(every_kv) | widths.sizes(every_width), layers, rms_head(fields))


def _entries(fields: ConfigFields) -> list[Mapping[str, Any]]:
    given, n_layers = fields.document.get("block_configs"), fields.layers()
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        raise ModelError(f"{fields.family}: 'block_configs' must be a list of objects", given=type(given).__name__)
    if len(given) != n_layers:
        raise ModelError(
            f"{fields.family}: 'block_configs' must have an entry for each layer", given=len(given), allowed=str(n_layers)
        )
    return given


def _layer(fields: ConfigFields, entry: Mapping[str, Any]) -> _Chosen:
    attention, feed_forward = (_part(fields, entry, name) for name in ("attention", "ffn"))
    if attention.optional_size("num_sink_tokens") is not None:
        raise ModelError(f"{fields.family}: attention with sink tokens is not supported", given=dict(attention.document))
    heads = fields.size("num_attention_heads")
    kv_heads, columns = _absent(attention), _absent(feed_forward)
    if kv_heads is None and not attention.flag("no_op"):
        group = attention.size("n_heads_in_group")
        if heads % group:
            raise ModelError(
                f"{fields.family}: 'n_heads_in_group' must divide the query heads",
                given=group,
                allowed=f"a divisor of {heads}",
            )
        kv_heads = heads // group
    if columns is None and not feed_forward.flag("no_op"):
        factor = feed_forward.optional_number("ffn_mult")
        wanted = int(2 * (factor or 0) * fields.size("hidden_size") / 3)
        if not wanted:
            raise ModelError(f"{fields.family}: 'ffn_mult' must be above 0", given=factor)
        columns = -(-wanted // _COLUMNS) * _COLUMNS
    return _Chosen(kv_heads, columns, attention.optional_size("window_length"))


def _part(fields: ConfigFields, entry: Mapping[str, Any], name: str) -> ConfigFields:
    given = entry.get(name)
    if not isinstance(given, Mapping):
        raise ModelError(f"{fields.family}: each of 'block_configs' must have an object '{name}'", given=given)
    return ConfigFields(given, f"{fields.family} block_configs.{name}", _LAYER_DEFAULTS)


def _absent(part: ConfigFields) -> int | None:
    """0 for a plain product in the place of the part, None otherwise."""
    return 0 if part.flag("replace_with_linear") else None


def _branches(fields: ConfigFields, layer: _Chosen, keys: Multiples, widths: Multiples) -> tuple[Branch, ...]:
    attention_bias, branches = bias(fields.flag("attention_bias")), []
    if layer.kv_heads:
        of_keys = (*keys.dims(layer.kv_heads), HEAD_DIM)
        attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=layer.window, key=of_keys, value=of_keys)
        branches.append(Branch("attn", attention, NormKind.RMS))
    elif layer.kv_heads == 0:
        branches.append(Branch("attn", Linear("attn", attention_bias), NormKind.RMS))
    mlp_bias = bias(fields.flag("mlp_bias"))
    if layer.columns:
        mlp = Mlp(Gate.GATED, fields.text("hidden_act"), mlp_bias, widths.dims(layer.columns))
        branches.append(Branch("mlp", mlp, NormKind.RMS))
    elif layer.columns == 0:
        branches.append(Branch("mlp", Linear("mlp", mlp_bias), NormKind.RMS))
    if not branches:
        raise ModelError(f"{fields.family}: a layer with neither attention nor a feed-forward network")
    return tuple(branches)


NEMOTRON_NAS_FAMILIES = (Family("nemotron-nas", ("DeciLMForCausalLM",), _read_nas, _DEFAULTS),)
