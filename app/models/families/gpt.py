"""GPT-2 and its kin: layer norms with shifts, plain feed-forward networks, biases; GPT-NeoX, OPT, BLOOM, Falcon."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Bias, Branch, Embedding, Head, Joining, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, Position, QkNorm
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, decoder_dims, gated_mlp, llama_dims, tie
from meshwright.costmodels.model.dims import HIDDEN, POSITIONS

_GPT2_DEFAULTS = {
    "vocab_size": 50257,
    "max_position_embeddings": 1024,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
GPT2_ALIASES = {
    "hidden_size": ("n_embd",),
    "max_position_embeddings": ("n_positions",),
    "num_attention_heads": ("n_head",),
    "num_hidden_layers": ("n_layer",),
}
_NEOX_DEFAULTS = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "attention_bias": True,
}
_OPT_DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}
_BLOOM_DEFAULTS = {
    "vocab_size": 250880,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "tie_word_embeddings": True,
}
# BLOOM has no field for its activation function: its own GELU is the tanh form.
_BLOOM_ACTIVATION = "gelu_new"
_BLOOM_ALIASES = {"hidden_size": ("n_embed",), "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",)}
_FALCON_DEFAULTS = {
    "vocab_size": 65024,
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_ln_in_parallel_attn": None,
    "num_kv_heads": None,
    "alibi": False,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "ffn_hidden_size": None,
    "activation": "gelu",
    "tie_word_embeddings": True,
}

# OPT's table of positions starts at 2 (modeling_opt.OPTLearnedPositionalEmbedding).
_OPT_POSITION_OFFSET = 2
_EMBED_WIDTH = "embed_width"
# Where a family has no field for the feed-forward width, it is four times the hidden size.
FFN_RATIO = 4


def _read_gpt2(fields: ConfigFields) -> Architecture:
    fields.refuse("add_cross_attention", because="layers that read an encoder are not a decoder's")
    ffn = fields.optional_size("n_inner") or FFN_RATIO * fields.size("hidden_size")
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED)
    mlp = Mlp(Gate.PLAIN, fields.text("activation_function"), Bias.ADDED)
    layer = Layer((Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER)))
    return Architecture(
        decoder_dims(fields, ffn=ffn) | {POSITIONS: fields.size("max_position_embeddings")},
        (layer,) * fields.layers(),
        Head(tie(fields), NormKind.LAYER),
        Embedding(position_dim=POSITIONS),
    )


def _read_gpt_neox(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), Bias.ADDED)
    layer = Layer(
        (Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER)),
        Joining.PARALLEL if fields.flag("use_parallel_residual") else Joining.SEQUENTIAL,
    )
    dims = decoder_dims(fields, ffn=fields.size("intermediate_size"))
    return Architecture(dims, (layer,) * fields.layers(), Head(tie(fields), NormKind.LAYER))


def _read_opt(fields: ConfigFields) -> Architecture:
    dims = decoder_dims(fields, ffn=fields.size("ffn_dim"))
    dims[POSITIONS] = fields.size("max_position_embeddings") + _OPT_POSITION_OFFSET
    width = HIDDEN
    embed_width = fields.optional_size("word_embed_proj_dim")
    if embed_width is not None and embed_width != dims[HIDDEN]:
        width, dims[_EMBED_WIDTH] = _EMBED_WIDTH, embed_width
    layer_bias = bias(fields.flag("enable_bias"))
    kind = NormKind.LAYER if fields.flag("layer_norm_elementwise_affine") else NormKind.LAYER_FIXED
    pre_norm = fields.flag("do_layer_norm_before")
    place = NormPlace.BEFORE if pre_norm else NormPlace.ON_SUM
    attention = Attention(Position.ELSEWHERE, layer_bias, layer_bias)
    mlp = Mlp(Gate.PLAIN, fields.text("activation_function"), layer_bias)
    final_norm = kind if pre_norm and not fields.flag("_remove_final_layer_norm") else None
    return Architecture(
        dims,
        (Layer((Branch("attn", attention, kind, place), Branch("mlp", mlp, kind, place))),) * fields.layers(),
        Head(tie(fields), final_norm, width=width),
        Embedding(width, POSITIONS),
    )


def _read_bloom(fields: ConfigFields) -> Architecture:
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED)
    mlp = Mlp(Gate.PLAIN, _BLOOM_ACTIVATION, Bias.ADDED)
    layer = Layer((Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER)))
    return Architecture(
        decoder_dims(fields, ffn=FFN_RATIO * fields.size("hidden_size")),
        (layer,) * fields.layers(),
        Head(tie(fields), NormKind.LAYER),
        Embedding(norm=NormKind.LAYER),
    )


def _read_falcon(fields: ConfigFields) -> Architecture:
    heads = fields.size("num_attention_heads")
    ffn = fields.optional_size("ffn_hidden_size") or FFN_RATIO * fields.size("hidden_size")
    new_architecture = fields.flag("new_decoder_architecture")
    old_kv_heads = 1 if fields.flag("multi_query") else heads
    kv_heads = fields.optional_size("num_kv_heads") or heads if new_architecture else old_kv_heads
    layer_bias = bias(fields.flag("bias"))
    position = Position.ELSEWHERE if fields.flag("alibi") else Position.ROTARY
    attention = Branch("attn", Attention(position, layer_bias, layer_bias), NormKind.LAYER)
    mlp = Mlp(Gate.PLAIN, fields.text("activation"), layer_bias)
    parallel = fields.flag("parallel_attn")
    norms = fields.optional_size("num_ln_in_parallel_attn") or (2 if new_architecture else 1)
    mlp_place = NormPlace.SHARED if parallel and norms == 1 else NormPlace.BEFORE
    layer = Layer(
        (attention, Branch("mlp", mlp, NormKind.LAYER, mlp_place)), Joining.PARALLEL if parallel else Joining.SEQUENTIAL
    )
    return Architecture(
        decoder_dims(fields, ffn=ffn, kv_heads=kv_heads), (layer,) * fields.layers(), Head(tie(fields), NormKind.LAYER)
    )


GPT_FAMILIES = (
    Family("gpt2", ("GPT2LMHeadModel",), _read_gpt2, _GPT2_DEFAULTS, GPT2_ALIASES),
    # GPT-SW3 has a model_type of its own and the classes of GPT-2.
    Family("gpt-sw3", ("GPT2LMHeadModel",), _read_gpt2, _GPT2_DEFAULTS, GPT2_ALIASES),
    Family("gpt_neox", ("GPTNeoXForCausalLM",), _read_gpt_neox, _NEOX_DEFAULTS),
    Family("opt", ("OPTForCausalLM",), _read_opt, _OPT_DEFAULTS),
    Family("bloom", ("BloomForCausalLM",), _read_bloom, _BLOOM_DEFAULTS, _BLOOM_ALIASES),
    Family("falcon", ("FalconForCausalLM",), _read_falcon, _FALCON_DEFAULTS),
)


# Decoders with layer norms beside GPT's: GPT-J, MPT, StableLM, OLMo, Jais 2.

_GPTJ_DEFAULTS = {
    "vocab_size": 50400,
    "hidden_size": 4096,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "n_inner": None,
    "activation_function": "gelu_new",
    "tie_word_embeddings": False,
}
_MPT_DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
_MPT_ALIASES = {"hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",)}
_STABLELM_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_qkv_bias": False,
    "qk_layernorm": False,
    "use_parallel_residual": False,
}
_OLMO_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_JAIS2_DEFAULTS = _OLMO_DEFAULTS | {
    "vocab_size": 150272,
    "hidden_size": 3328,
    "intermediate_size": 26624,
    "num_attention_heads": 26,
    "hidden_act": "relu2",
    "attention_bias": True,
    "mlp_bias": True,
}
# MPT has no field for its activation function: it is the GELU with erf.
_MPT_ACTIVATION = "gelu"


def _stack(
    fields: ConfigFields, dims: dict[str, int], attention: Attention, mlp: Mlp, kind: NormKind, *, shared: bool = False
) -> Architecture:
    """Return equal layers with norms of ``kind``; with ``shared`` both branches read one norm, beside each other."""
    branch = Branch("mlp", mlp, kind, NormPlace.SHARED if shared else NormPlace.BEFORE)
    layer = Layer((Branch("attn", attention, kind), branch), Joining.PARALLEL if shared else Joining.SEQUENTIAL)
    return Architecture(dims, (layer,) * fields.layers(), Head(tie(fields), kind))


def _read_gptj(fields: ConfigFields) -> Architecture:
    """Branches share a norm; the feed-forward network and the head have biases, attention has none."""
    ffn = fields.optional_size("n_inner") or FFN_RATIO * fields.size("hidden_size")
    mlp = Mlp(Gate.PLAIN, fields.text("activation_function"), Bias.ADDED)
    stack = _stack(fields, decoder_dims(fields, ffn=ffn), Attention(), mlp, NormKind.LAYER, shared=True)
    return Architecture(stack.dims, stack.layers, Head(tie(fields), NormKind.LAYER, Bias.ADDED))


def _read_mpt(fields: ConfigFields) -> Architecture:
    """ALiBi, no biases, norms without a shift."""
    dims = decoder_dims(fields, ffn=FFN_RATIO * fields.size("hidden_size"))
    mlp = Mlp(Gate.PLAIN, _MPT_ACTIVATION)
    return _stack(fields, dims, Attention(Position.ELSEWHERE), mlp, NormKind.LAYER_SCALE_ONLY)


def _read_stablelm(fields: ConfigFields) -> Architecture:
    attention = Attention(
        qkv_bias=bias(fields.flag("use_qkv_bias")),
        qk_norm=QkNorm.ALL_HEADS if fields.flag("qk_layernorm") else QkNorm.NONE,
        qk_norm_kind=NormKind.LAYER_SCALE_ONLY,
    )
    shared = fields.flag("use_parallel_residual")
    return _stack(fields, llama_dims(fields), attention, gated_mlp(fields), NormKind.LAYER, shared=shared)


def _read_olmo(fields: ConfigFields) -> Architecture:
    """Norms learn nothing."""
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    return _stack(fields, llama_dims(fields), attention, gated_mlp(fields), NormKind.LAYER_FIXED)


def _read_jais2(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), bias(fields.flag("mlp_bias")))
    return _stack(fields, llama_dims(fields), attention, mlp, NormKind.LAYER)


GPT_KIN_FAMILIES = (
    Family("gptj", ("GPTJForCausalLM",), _read_gptj, _GPTJ_DEFAULTS, GPT2_ALIASES),
    Family("mpt", ("MptForCausalLM", "MPTForCausalLM"), _read_mpt, _MPT_DEFAULTS, _MPT_ALIASES),
    Family("stablelm", ("StableLmForCausalLM",), _read_stablelm, _STABLELM_DEFAULTS),
    Family("olmo", ("OlmoForCausalLM",), _read_olmo, _OLMO_DEFAULTS),
    Family("jais2", ("Jais2ForCausalLM",), _read_jais2, _JAIS2_DEFAULTS),
)
