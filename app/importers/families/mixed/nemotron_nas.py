"""Llama-Nemotron (DeciLM): a Llama whose layers were chosen one by one: attention with other groups, as a plain product or not
at all; feed-forward networks of other widths, as a plain product or not at all.

transformers lacks the kind; the sizes are those of the checkpoint's own class (modeling_decilm.py of Llama-3_3-Nemotron-Super).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.importers.architecture import Architecture, Branch, Layer
from meshwright.app.importers.bodies.attention import Attention
from meshwright.app.importers.bodies.linear import Linear
from meshwright.app.importers.bodies.mlp import Gate, Mlp
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import Family, bias, decoder_dims, rms_head
from meshwright.app.importers.families.mixed.multiples import Multiples
from meshwright.app.importers.parts import NormKind
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import FFN, HEAD_DIM, KV_HEADS

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
