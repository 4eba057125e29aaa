"""Mixture-of-experts decoders with grouped-query attention: Mixtral, Qwen-MoE, gpt-oss, Llama 4 (text), MiniMax-M2."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.app.models.architecture import Architecture, Bias, Body, Branch, Head, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, OutputGate, Position, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, SLIDING, Family, bias, gated_mlp, llama_dims, rms_head, tie
from meshwright.app.models.families.llama import listed_windows, window_pattern
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERT_GROUPS, EXPERTS, HEADS, SHARED_FFN, TOP_GROUPS, TOP_K
from meshwright.costmodels.model.operators import AttentionMask, Weight

_EXPERT_ALIASES = {"num_experts": ("num_local_experts",)}
MIXTRAL_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_experts": 8,
}
_QWEN2_MOE_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "mlp_only_layers": None,
    "qkv_bias": True,
}
_QWEN3_MOE_DEFAULTS = _QWEN2_MOE_DEFAULTS | {
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "attention_bias": False,
}
_QWEN3_VL_MOE_DEFAULTS = _QWEN3_MOE_DEFAULTS | {
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "sliding_window": None,
}
_QWEN3_OMNI_DEFAULTS = _QWEN3_MOE_DEFAULTS | {
    "vocab_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "sliding_window": None,
}
_GRANITE_MOE_DEFAULTS = MIXTRAL_DEFAULTS | {"intermediate_size": 11008, "num_key_value_heads": None, "attention_bias": False}
_MINIMAX_M2_DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
_GPT_OSS_DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "sliding_window": 128,
    "layer_types": None,
    "num_experts_per_tok": 4,
    "num_experts": 128,
    "attention_bias": True,
}
_LLAMA4_DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_experts_per_tok": 1,
    "num_experts": 16,
    "moe_layers": None,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "layer_types": None,
    "attention_bias": False,
}
_CHUNKED = "chunked_attention"
_SINKS = (Weight("sinks", (HEADS,)),)


def expert_dims(fields: ConfigFields, *, width: int, shared_width: int | None = None) -> dict[str, int]:
    """Sizes of the dims of routed and shared experts."""
    experts, top_k = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if top_k > experts:
        raise ModelError(
            f"{fields.family}: a token can't be sent to more experts than there are",
            given={"num_experts": experts, "num_experts_per_tok": top_k},
        )
    sizes = {EXPERTS: experts, TOP_K: top_k, EXPERT_FFN: width}
    return sizes if shared_width is None else sizes | {SHARED_FFN: shared_width}


def group_dims(fields: ConfigFields) -> dict[str, int]:
    """Groups of experts of which a token may use some alone (``n_group``, ``topk_group``); nothing where it may use all."""
    groups, most = fields.optional_size("n_group") or 1, fields.optional_size("topk_group") or 1
    if groups == 1 or most >= groups:
        return {}
    experts, top_k = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if experts % groups or top_k > most * (experts // groups):
        raise ModelError(
            f"{fields.family}: groups of experts must be equal, and hold enough of them",
            given={"num_experts": experts, "n_group": groups, "topk_group": most, "num_experts_per_tok": top_k},
            allowed="a divisor of the experts, and as many in topk_group groups as a token picks",
        )
    return {EXPERT_GROUPS: groups, TOP_GROUPS: most}


def _layer(attention: Attention, feed_forward: Body) -> Layer:
    return Layer((Branch("attn", attention, NormKind.RMS), Branch("mlp", feed_forward, NormKind.RMS)))


def _read_mixtral(fields: ConfigFields) -> Architecture:
    width = fields.size("intermediate_size")
    attention = Attention(window=fields.optional_size("sliding_window"))
    layer = _layer(attention, Experts(fields.text("hidden_act")))
    dims = llama_dims(fields, ffn=width) | expert_dims(fields, width=width)
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


def _read_granite_moe(fields: ConfigFields) -> Architecture:
    width, attention_bias = fields.size("intermediate_size"), bias(fields.flag("attention_bias"))
    layer = _layer(Attention(qkv_bias=attention_bias, out_bias=attention_bias), Experts(fields.text("hidden_act")))
    dims = llama_dims(fields, ffn=width) | expert_dims(fields, width=width)
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


def _read_minimax_m2(fields: ConfigFields) -> Architecture:
    """Queries and keys are normed over all heads; the bias that corrects routing is a buffer, no parameter."""
    width = fields.size("intermediate_size")
    layer = _layer(Attention(qk_norm=QkNorm.ALL_HEADS), Experts(fields.text("hidden_act")))
    dims = llama_dims(fields, ffn=width) | expert_dims(fields, width=width)
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


def _read_qwen2_moe(fields: ConfigFields) -> Architecture:
    qkv_bias = bias(fields.flag("qkv_bias"))
    attentions = tuple(Attention(qkv_bias=qkv_bias, window=window) for window in _qwen2_moe_windows(fields))
    return _qwen_moe(fields, attentions, SharedExpert.GATED)


def _read_qwen3_moe(fields: ConfigFields) -> Architecture:
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window") else None
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=window, qk_norm=QkNorm.PER_HEAD)
    return _qwen_moe(fields, (attention,) * fields.layers(), SharedExpert.NONE)


def _qwen_moe(fields: ConfigFields, attentions: tuple[Attention, ...], shared: SharedExpert) -> Architecture:
    """Experts in every ``decoder_sparse_step``-th layer that is not among ``mlp_only_layers``."""
    dims = llama_dims(fields, ffn=fields.size("intermediate_size"))
    dense, experts = gated_mlp(fields), Experts(fields.text("hidden_act"), shared=shared)
    step, mlp_only = fields.size("decoder_sparse_step"), fields.optional_indices("mlp_only_layers") or frozenset()
    has_experts = fields.count("num_experts") > 0
    sparse = [has_experts and (i + 1) % step == 0 and i not in mlp_only for i in range(len(attentions))]
    if any(sparse):
        shared_width = None if shared is SharedExpert.NONE else fields.size("shared_expert_intermediate_size")
        dims |= expert_dims(fields, width=fields.size("moe_intermediate_size"), shared_width=shared_width)
    layers = tuple(
        _layer(attention, experts if is_sparse else dense) for attention, is_sparse in zip(attentions, sparse, strict=True)
    )
    return Architecture(dims, layers, rms_head(fields))


def _qwen2_moe_windows(fields: ConfigFields) -> tuple[int | None, ...]:
    n_layers = fields.layers()
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window") else None
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        last = fields.count("max_window_layers")
        kinds = tuple(SLIDING if (i + 1) % 2 and i < last else FULL for i in range(n_layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _read_gpt_oss(fields: ConfigFields) -> Architecture:
    n_layers, width = fields.layers(), fields.size("intermediate_size")
    attention_bias, window = bias(fields.flag("attention_bias")), fields.optional_size("sliding_window")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if (i + 1) % 2 else FULL for i in range(n_layers))
    experts = Experts("clamped_silu", bias=Bias.ADDED, router_bias=Bias.ADDED)
    layers = tuple(
        _layer(
            Attention(
                qkv_bias=attention_bias,
                out_bias=attention_bias,
                window=window if kind == SLIDING else None,
                kernel_weights=_SINKS,
            ),
            experts,
        )
        for kind in kinds
    )
    return Architecture(llama_dims(fields, ffn=width) | expert_dims(fields, width=width), layers, rms_head(fields))


def _read_llama4(fields: ConfigFields) -> Architecture:
    n_layers, width = fields.layers(), fields.size("intermediate_size")
    step = fields.size("interleave_moe_layer_step")
    moe_layers = fields.optional_indices("moe_layers")
    sparse = frozenset(range(step - 1, n_layers, step)) if moe_layers is None else moe_layers
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    dense = gated_mlp(fields)
    attentions = _llama4_attentions(fields, n_layers)
    layers = tuple(_layer(attentions[i], experts if i in sparse else dense) for i in range(n_layers))
    dims = llama_dims(fields, ffn=fields.size("intermediate_size_mlp"))
    return Architecture(dims | expert_dims(fields, width=width, shared_width=width), layers, rms_head(fields))


def _llama4_attentions(fields: ConfigFields, n_layers: int) -> list[Attention]:
    """Rotary layers attend in chunks and norm queries and keys; every ``no_rope_layer_interval``-th does neither."""
    attention_bias, chunk = bias(fields.flag("attention_bias")), fields.optional_size("attention_chunk_size")
    interval = fields.size("no_rope_layer_interval")
    rotary = fields.optional_switches("no_rope_layers", least_length=n_layers)
    if not rotary:
        rotary = tuple((i + 1) % interval != 0 for i in range(n_layers))
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, _CHUNKED))
    if kinds is None:
        kinds = tuple(_CHUNKED if rotary[i] else FULL for i in range(n_layers))
    norm_rotary = fields.flag("use_qk_norm")
    attentions = []
    for i in range(n_layers):
        chunked = kinds[i] == _CHUNKED and chunk is not None
        attentions.append(
            Attention(
                Position.ROTARY if rotary[i] else Position.ELSEWHERE,
                attention_bias,
                attention_bias,
                window=chunk if chunked else None,
                mask=AttentionMask.CHUNKED if chunked else AttentionMask.CAUSAL,
                qk_norm=QkNorm.PER_HEAD if norm_rotary and rotary[i] else QkNorm.NONE,
                qk_norm_kind=NormKind.RMS_FIXED,
            )
        )
    return attentions


MOE_FAMILIES = (
    Family("mixtral", ("MixtralForCausalLM",), _read_mixtral, MIXTRAL_DEFAULTS, _EXPERT_ALIASES),
    Family("qwen2_moe", ("Qwen2MoeForCausalLM",), _read_qwen2_moe, _QWEN2_MOE_DEFAULTS),
    Family("qwen3_moe", ("Qwen3MoeForCausalLM",), _read_qwen3_moe, _QWEN3_MOE_DEFAULTS, _EXPERT_ALIASES),
    Family("qwen3_omni_moe_text", (), _read_qwen3_moe, _QWEN3_OMNI_DEFAULTS, _EXPERT_ALIASES),
    Family("qwen3_vl_moe_text", (), _read_qwen3_moe, _QWEN3_VL_MOE_DEFAULTS, _EXPERT_ALIASES),
    Family("granitemoe", ("GraniteMoeForCausalLM",), _read_granite_moe, _GRANITE_MOE_DEFAULTS, _EXPERT_ALIASES),
    Family("minimax_m2", ("MiniMaxM2ForCausalLM",), _read_minimax_m2, _MINIMAX_M2_DEFAULTS, _EXPERT_ALIASES),
    Family("gpt_oss", ("GptOssForCausalLM",), _read_gpt_oss, _GPT_OSS_DEFAULTS, _EXPERT_ALIASES),
    Family("llama4_text", ("Llama4ForCausalLM",), _read_llama4, _LLAMA4_DEFAULTS, _EXPERT_ALIASES),
)


# Mixture-of-experts decoders whose first layers may be dense: dots.llm1, Solar Open, EXAONE MoE, ERNIE 4.5 MoE, AFMoE,
# FlexOlmo, Granite MoE with a shared expert.

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
        for window in listed_windows(fields, pattern=window_pattern(fields))
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
