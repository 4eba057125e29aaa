"""Decoders whose code lies beside their weights: InternLM, Baichuan, ChatGLM, GLM-4, Qwen (the first), EXAONE 3, Llama's kin.

Field names and defaults are those of the configuration files in their repositories; transformers has no class of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.models.architecture import Architecture, Bias, Branch, Head, Layer, NormKind, Tie
from meshwright.app.models.bodies.attention import Attention, Position
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import KIN_DEFAULTS, Family, bias, decoder_dims, gated_mlp, llama_dims, rms_head, tie
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError

_COMMON: Mapping[str, Any] = {**KIN_DEFAULTS, "bias": False}
_INTERNLM_DEFAULTS = {**_COMMON, "vocab_size": 103168, "bias": True}
_BAICHUAN_DEFAULTS = {**_COMMON, "vocab_size": 125696}
_QWEN_DEFAULTS = {
    **_COMMON,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "kv_channels": 128,
    "no_bias": True,
}
_CHATGLM_DEFAULTS = {
    "padded_vocab_size": 65024,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "num_layers": 28,
    "num_attention_heads": 32,
    "multi_query_attention": False,
    "multi_query_group_num": 1,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "rmsnorm": True,
    "post_layer_norm": True,
    "tie_word_embeddings": False,
}
_EXAONE_DEFAULTS = {
    **_COMMON,
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": None,
    "tie_word_embeddings": True,
}
_EXAONE_ALIASES = {"num_hidden_layers": ("num_layers",), "hidden_act": ("activation_function",)}
_MINICPM_DEFAULTS = {**_COMMON, "tie_word_embeddings": True}
_DEEPSEEK_DEFAULTS = {
    **_COMMON,
    "vocab_size": 102400,
    "moe_intermediate_size": 1407,
    "n_shared_experts": None,
    "num_experts": None,
    "num_experts_per_tok": None,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 0,
}

# Baichuan: models as wide as Llama-7B rotate queries and keys, wider ones have ALiBi (modeling_baichuan of 7B and 13B).
_BAICHUAN_ROTARY_HIDDEN = 4096


def _decoder(fields: ConfigFields, attention: Attention, mlp: Mlp, *, dims: dict[str, int] | None = None) -> Architecture:
    """Return equal layers with RMS norms before their branches."""
    layer = Layer((Branch("attn", attention, NormKind.RMS), Branch("mlp", mlp, NormKind.RMS)))
    return Architecture(llama_dims(fields) if dims is None else dims, (layer,) * fields.layers(), rms_head(fields))


def _read_llama_kin(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    return _decoder(fields, attention, gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))))


def _read_internlm(fields: ConfigFields) -> Architecture:
    """``bias`` is of attention alone."""
    attention_bias = bias(fields.flag("bias"))
    return _decoder(fields, Attention(qkv_bias=attention_bias, out_bias=attention_bias), gated_mlp(fields))


def _read_baichuan(fields: ConfigFields) -> Architecture:
    rotary = fields.size("hidden_size") == _BAICHUAN_ROTARY_HIDDEN
    return _decoder(fields, Attention(Position.ROTARY if rotary else Position.ELSEWHERE), gated_mlp(fields))


def _read_qwen(fields: ConfigFields) -> Architecture:
    """Queries, keys and values have biases whatever the file says; ``intermediate_size`` counts gate and up projection."""
    width = fields.size("intermediate_size")
    if width % 2:
        raise ModelError(f"{fields.family}: 'intermediate_size' counts two equal halves", given=width, allowed="an even number")
    other_bias = bias(not fields.flag("no_bias"))
    dims = decoder_dims(fields, ffn=width // 2, head_dim=fields.size("kv_channels"))
    attention = Attention(qkv_bias=Bias.ADDED, out_bias=other_bias)
    return _decoder(fields, attention, Mlp(Gate.GATED, "silu", other_bias), dims=dims)


def _read_chatglm(fields: ConfigFields) -> Architecture:
    """ChatGLM2, ChatGLM3 and GLM-4: groups of keys and values; the head never shares the embedding's table."""
    if "inner_hidden_size" in fields.document or "position_encoding_2d" in fields.document:
        raise ModelError(
            f"{fields.family}: the layers of the first ChatGLM (2D positions) are not supported",
            given="inner_hidden_size, position_encoding_2d",
            allowed="ChatGLM2, ChatGLM3, GLM-4",
        )
    kv_heads = fields.size("multi_query_group_num") if fields.flag("multi_query_attention") else None
    every_bias = bias(fields.flag("add_bias_linear"))
    qkv_bias = bias(fields.flag("add_qkv_bias") or fields.flag("add_bias_linear"))
    kind = NormKind.RMS if fields.flag("rmsnorm") else NormKind.LAYER
    layer = Layer(
        (
            Branch("attn", Attention(qkv_bias=qkv_bias, out_bias=every_bias), kind),
            Branch("mlp", Mlp(Gate.GATED, "silu", every_bias), kind),
        )
    )
    dims = decoder_dims(
        fields,
        ffn=fields.size("ffn_hidden_size"),
        head_dim=fields.size("kv_channels"),
        kv_heads=kv_heads,
        vocab=fields.size("padded_vocab_size"),
    )
    head = Head(Tie.SEPARATE, kind if fields.flag("post_layer_norm") else None, every_bias)
    return Architecture(dims, (layer,) * fields.layers("num_layers"), head)


def _read_exaone(fields: ConfigFields) -> Architecture:
    width = fields.optional_size("intermediate_size") or 4 * fields.size("hidden_size")
    return _decoder(fields, Attention(), gated_mlp(fields), dims=llama_dims(fields, ffn=width))


def _read_orion(fields: ConfigFields) -> Architecture:
    """Llama with layer norms."""
    layer = Layer((Branch("attn", Attention(), NormKind.LAYER), Branch("mlp", gated_mlp(fields), NormKind.LAYER)))
    return Architecture(llama_dims(fields), (layer,) * fields.layers(), Head(tie(fields), NormKind.LAYER))


def _read_deepseek(fields: ConfigFields) -> Architecture:
    """DeepSeek-MoE: Llama's attention, and experts in every ``moe_layer_freq``-th layer after the first dense ones."""
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Branch("attn", Attention(qkv_bias=attention_bias, out_bias=attention_bias), NormKind.RMS)
    dense = Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS)))
    dims, n_layers = llama_dims(fields), fields.layers()
    if fields.optional_size("num_experts") is None:
        return Architecture(dims, (dense,) * n_layers, rms_head(fields))
    width, n_shared = fields.size("moe_intermediate_size"), fields.optional_size("n_shared_experts")
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.NONE if n_shared is None else SharedExpert.ADDED)
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    first, every = fields.count("first_k_dense_replace"), fields.size("moe_layer_freq")
    dims |= expert_dims(fields, width=width, shared_width=None if n_shared is None else n_shared * width)
    layers = tuple(sparse if i >= first and i % every == 0 else dense for i in range(n_layers))
    return Architecture(dims, layers, rms_head(fields))


REMOTE_CODE_FAMILIES = (
    Family("internlm", ("InternLMForCausalLM",), _read_internlm, _INTERNLM_DEFAULTS),
    Family("internlm2", ("InternLM2ForCausalLM",), _read_internlm, _INTERNLM_DEFAULTS),
    Family("baichuan", ("BaichuanForCausalLM", "BaiChuanForCausalLM"), _read_baichuan, _BAICHUAN_DEFAULTS),
    Family("qwen", ("QWenLMHeadModel",), _read_qwen, _QWEN_DEFAULTS),
    Family(
        "chatglm",
        ("ChatGLMModel", "ChatGLMForConditionalGeneration", "ChatGLMForCausalLM"),
        _read_chatglm,
        _CHATGLM_DEFAULTS,
        {"padded_vocab_size": ("vocab_size",), "num_layers": ("num_hidden_layers",)},
    ),
    Family("exaone", ("ExaoneForCausalLM",), _read_exaone, _EXAONE_DEFAULTS, _EXAONE_ALIASES),
    Family("deepseek", ("DeepseekForCausalLM",), _read_deepseek, _DEEPSEEK_DEFAULTS, {"num_experts": ("n_routed_experts",)}),
    Family("minicpm", ("MiniCPMForCausalLM",), _read_llama_kin, _MINICPM_DEFAULTS),
    Family("orion", ("OrionForCausalLM",), _read_orion, {**_COMMON, "vocab_size": 84608, "hidden_size": 5120}),
    Family("xverse", ("XverseForCausalLM",), _read_llama_kin, {**_COMMON, "vocab_size": 100278}),
    Family("aquila", ("AquilaForCausalLM", "AquilaModel"), _read_llama_kin, {**_COMMON, "vocab_size": 100008}),
    Family("Yi", ("YiForCausalLM",), _read_llama_kin, {**_COMMON, "vocab_size": 64000}),
)
