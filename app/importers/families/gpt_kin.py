"""Decoders with layer norms beside GPT's: GPT-J, MPT, StableLM, OLMo, Jais 2."""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Branch, Head, Joining, Layer, NormPlace
from meshwright.app.importers.bodies.attention import Attention, Position, QkNorm
from meshwright.app.importers.bodies.mlp import Gate, Mlp
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import Family, bias, decoder_dims, gated_mlp, llama_dims, tie
from meshwright.app.importers.families.gpt import FFN_RATIO, GPT2_ALIASES
from meshwright.app.importers.parts import Bias, NormKind

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
