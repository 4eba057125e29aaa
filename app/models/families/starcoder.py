"""StarCoder (gpt_bigcode), StarCoder2 and Nemotron-4: layer norms with shifts and plain feed-forward networks."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Bias, Branch, Embedding, Head, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, Position
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, decoder_dims, llama_dims, tie
from meshwright.app.models.families.gpt import GPT2_ALIASES
from meshwright.costmodels.model.dims import POSITIONS

_BIGCODE_DEFAULTS = {
    "vocab_size": 50257,
    "max_position_embeddings": 1024,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "n_inner": None,
    "activation_function": "gelu_pytorch_tanh",
    "multi_query": True,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_STARCODER2_DEFAULTS = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": None,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": None,
    "use_bias": True,
    "tie_word_embeddings": True,
}
_NEMOTRON4_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 32,
    "num_attention_heads": 48,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "relu2",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# Where the file leaves the feed-forward width out, it is four times the hidden size.
_FFN_RATIO = 4


def _read_bigcode(fields: ConfigFields) -> Architecture:
    fields.refuse("add_cross_attention", because="layers that read an encoder are not a decoder's")
    ffn = fields.optional_size("n_inner") or _FFN_RATIO * fields.size("hidden_size")
    dims = decoder_dims(fields, ffn=ffn, kv_heads=1 if fields.flag("multi_query") else None)
    dims[POSITIONS] = fields.size("max_position_embeddings")
    attention = Attention(Position.ELSEWHERE, Bias.ADDED, Bias.ADDED)
    mlp = Mlp(Gate.PLAIN, fields.text("activation_function"), Bias.ADDED)
    return Architecture(
        dims, (_layer(attention, mlp),) * fields.layers(), Head(tie(fields), NormKind.LAYER), Embedding(position_dim=POSITIONS)
    )


def _read_starcoder2(fields: ConfigFields) -> Architecture:
    every_bias = bias(fields.flag("use_bias"))
    attention = Attention(qkv_bias=every_bias, out_bias=every_bias, window=fields.optional_size("sliding_window"))
    return _rotary(fields, attention, every_bias)


def _read_nemotron4(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    return _rotary(fields, attention, bias(fields.flag("mlp_bias")))


def _rotary(fields: ConfigFields, attention: Attention, mlp_bias: Bias) -> Architecture:
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), mlp_bias)
    dims = llama_dims(fields)
    return Architecture(dims, (_layer(attention, mlp),) * fields.layers(), Head(tie(fields), NormKind.LAYER))


def _layer(attention: Attention, mlp: Mlp) -> Layer:
    return Layer((Branch("attn", attention, NormKind.LAYER), Branch("mlp", mlp, NormKind.LAYER)))


STARCODER_FAMILIES = (
    Family("gpt_bigcode", ("GPTBigCodeForCausalLM",), _read_bigcode, _BIGCODE_DEFAULTS, GPT2_ALIASES),
    Family("starcoder2", ("Starcoder2ForCausalLM",), _read_starcoder2, _STARCODER2_DEFAULTS),
    Family("nemotron", ("NemotronForCausalLM",), _read_nemotron4, _NEMOTRON4_DEFAULTS),
)
