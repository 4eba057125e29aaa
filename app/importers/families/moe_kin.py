"""Mixture-of-experts decoders whose first layers may be dense: dots.llm1, Solar Open, EXAONE MoE, ERNIE 4.5 MoE, AFMoE,
FlexOlmo, Granite MoE with a shared expert.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.app.importers.architecture import Architecture, Body, Branch, Head, Layer, NormPlace
from meshwright.app.importers.bodies.attention import Attention, OutputGate, Position, QkNorm
from meshwright.app.importers.bodies.experts import Experts, SharedExpert
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import FULL, SLIDING, Family, bias, gated_mlp, llama_dims, rms_head, tie
from meshwright.app.importers.families.llama import listed_windows
from meshwright.app.importers.families.moe import expert_dims, group_dims
from meshwright.app.importers.parts import Bias, NormKind

_COMMON = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "n_group": 1,
    "topk_group": 1,
}
_DOTS1_DEFAULTS = _COMMON | {
    "vocab_size": 152064,
    "hidden_size": 4608,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 62,
    "num_key_value_heads": 32,
    "first_k_dense_replace": 0,
    "sliding_window": 4096,
    "max_window_layers": 62,
    "layer_types": None,
}
_SOLAR_OPEN_DEFAULTS = _COMMON | {
    "vocab_size": 196608,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "moe_intermediate_size": 1280,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_experts": 128,
}
_EXAONE_DEFAULTS = _COMMON | {
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "layer_types": None,
    "mlp_layer_types": None,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
}
_ERNIE_DEFAULTS = _COMMON | {
    "vocab_size": 103424,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "use_bias": False,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 6,
    "num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
_AFMOE_DEFAULTS = _COMMON | {
    "vocab_size": 200192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1408,
    "num_dense_layers": 1,
    "num_attention_heads": 16,
    "head_dim": 128,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "global_attn_every_n_layers": 4,
    "sliding_window": 1024,
    "layer_types": None,
}
_FLEX_OLMO_DEFAULTS = _COMMON | {
    "vocab_size": 100352,
    "intermediate_size": 11008,
    "num_experts_per_tok": 5,
    "num_experts": 7,
}
_GRANITE_DEFAULTS = _COMMON | {
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
}
_ROUTED = {"num_experts": ("n_routed_experts", "num_local_experts")}
_SHARED = _ROUTED | {"n_shared_experts": ("num_shared_experts",)}
_ERNIE_ALIASES = {"num_experts": ("moe_num_experts", "num_local_experts"), "num_experts_per_tok": ("moe_k",)}
_DENSE, _SPARSE = "dense", "sparse"


def _layers(
    attentions: tuple[Attention, ...], body: Callable[[int], Body], place: NormPlace = NormPlace.BEFORE
) -> tuple[Layer, ...]:
    """Return a layer for each attention, with the feed-forward body that ``body`` gives for its index."""
    return tuple(
        Layer((Branch("attn", attention, NormKind.RMS, place), Branch("mlp", body(i), NormKind.RMS, place)))
        for i, attention in enumerate(attentions)
    )


def _shared_dims(fields: ConfigFields, *, ffn: int | None = None) -> dict[str, int]:
    """Sizes of a decoder with ``n_shared_experts`` experts that every token meets, of the width of the routed ones."""
    width = fields.size("moe_intermediate_size")
    shared_width = fields.size("n_shared_experts") * width
    return llama_dims(fields, ffn=ffn) | expert_dims(fields, width=width, shared_width=shared_width) | group_dims(fields)


def _read_dots1(fields: ConfigFields) -> Architecture:
    n_layers, window = fields.layers(), fields.optional_size("sliding_window")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        first_windowed = fields.count("max_window_layers")
        kinds = tuple(SLIDING if i >= first_windowed else FULL for i in range(n_layers))
    attention_bias = bias(fields.flag("attention_bias"))
    attentions = tuple(
        Attention(
            qkv_bias=attention_bias,
            out_bias=attention_bias,
            window=window if kind == SLIDING else None,
            qk_norm=QkNorm.PER_HEAD,
        )
        for kind in kinds
    )
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    n_dense = fields.count("first_k_dense_replace")
    layers = _layers(attentions, lambda i: dense if i < n_dense else experts)
    return Architecture(_shared_dims(fields), layers, rms_head(fields))


def _read_solar_open(fields: ConfigFields) -> Architecture:
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")))
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = _layers((attention,) * fields.layers(), lambda _: experts)
    return Architecture(_shared_dims(fields, ffn=fields.size("moe_intermediate_size")), layers, rms_head(fields))


def _read_exaone_moe(fields: ConfigFields) -> Architecture:
    """Where layers have windows, full ones know nothing of positions."""
    n_layers, mixed = fields.layers(), fields.optional_size("sliding_window") is not None
    attentions = tuple(
        Attention(Position.ELSEWHERE if mixed and window is None else Position.ROTARY, window=window, qk_norm=QkNorm.PER_HEAD)
        for window in listed_windows(fields, pattern=fields.optional_size("sliding_window_pattern") or n_layers + 1)
    )
    kinds = fields.optional_words("mlp_layer_types", length=n_layers, allowed=(_DENSE, _SPARSE))
    if kinds is None:
        n_dense = fields.count("first_k_dense_replace")
        kinds = tuple(_DENSE if i < n_dense else _SPARSE for i in range(n_layers))
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = _layers(attentions, lambda i: dense if kinds[i] == _DENSE else experts)
    return Architecture(_shared_dims(fields), layers, rms_head(fields))


def _read_ernie_moe(fields: ConfigFields) -> Architecture:
    """Experts in every ``moe_layer_interval``-th layer between the first and the last of them; the router has a bias."""
    n_layers, every_bias = fields.layers(), bias(fields.flag("use_bias"))
    attention = Attention(qkv_bias=every_bias, out_bias=every_bias)
    to_the_end = fields.document.get("moe_layer_end_index", -1) == -1
    first, step = fields.count("moe_layer_start_index"), fields.size("moe_layer_interval")
    last = n_layers - 1 if to_the_end else fields.count("moe_layer_end_index")
    width, n_shared = fields.size("moe_intermediate_size"), fields.count("moe_num_shared_experts")
    dense = gated_mlp(fields, with_bias=every_bias)
    experts = Experts(
        fields.text("hidden_act"),
        router_bias=Bias.ADDED,
        shared=SharedExpert.ADDED if n_shared else SharedExpert.NONE,
        shared_bias=every_bias,
    )
    layers = _layers((attention,) * n_layers, lambda i: experts if first <= i <= last and (i + 1) % step == 0 else dense)
    dims = llama_dims(fields) | expert_dims(fields, width=width, shared_width=n_shared * width or None)
    return Architecture(dims, layers, Head(tie(fields), NormKind.RMS, every_bias))


def _read_afmoe(fields: ConfigFields) -> Architecture:
    """A gate on each head's output; norms at both ends; full layers know nothing of positions; the router has a bias."""
    fields.refuse("attention_bias", because="the gate of its heads has none")
    attentions = tuple(
        Attention(
            Position.ELSEWHERE if window is None else Position.ROTARY,
            window=window,
            qk_norm=QkNorm.PER_HEAD,
            output_gate=OutputGate.SIGMOID,
        )
        for window in listed_windows(fields, pattern=fields.size("global_attn_every_n_layers"))
    )
    dense = gated_mlp(fields)
    experts = Experts(fields.text("hidden_act"), router_bias=Bias.ADDED, shared=SharedExpert.ADDED)
    n_dense = fields.count("num_dense_layers")
    layers = _layers(attentions, lambda i: dense if i < n_dense else experts, NormPlace.BOTH)
    return Architecture(_shared_dims(fields), layers, rms_head(fields))


def _read_flex_olmo(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.ALL_HEADS)
    experts = Experts(fields.text("hidden_act"))
    layers = _layers((attention,) * fields.layers(), lambda _: experts, NormPlace.AFTER)
    dims = llama_dims(fields) | expert_dims(fields, width=fields.size("intermediate_size"))
    return Architecture(dims, layers, rms_head(fields))


def _read_granite_shared(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    shared_width = fields.count("shared_intermediate_size") or None
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED if shared_width else SharedExpert.NONE)
    layers = _layers((attention,) * fields.layers(), lambda _: experts)
    dims = llama_dims(fields) | expert_dims(fields, width=fields.size("intermediate_size"), shared_width=shared_width)
    return Architecture(dims, layers, rms_head(fields))


MOE_KIN_FAMILIES = (
    Family("dots1", ("Dots1ForCausalLM",), _read_dots1, _DOTS1_DEFAULTS, _SHARED),
    Family("solar_open", ("SolarOpenForCausalLM",), _read_solar_open, _SOLAR_OPEN_DEFAULTS, _SHARED),
    Family("exaone_moe", ("ExaoneMoeForCausalLM",), _read_exaone_moe, _EXAONE_DEFAULTS, _SHARED),
    Family("ernie4_5_moe", ("Ernie4_5_MoeForCausalLM",), _read_ernie_moe, _ERNIE_DEFAULTS, _ERNIE_ALIASES),
    Family("afmoe", ("AfmoeForCausalLM",), _read_afmoe, _AFMOE_DEFAULTS, _SHARED),
    Family("flex_olmo", ("FlexOlmoForCausalLM",), _read_flex_olmo, _FLEX_OLMO_DEFAULTS, _ROUTED),
    Family("granitemoeshared", ("GraniteMoeSharedForCausalLM",), _read_granite_shared, _GRANITE_DEFAULTS, _ROUTED),
)
