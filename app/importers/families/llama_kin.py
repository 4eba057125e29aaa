"""Llama but for one or two of its parts: SmolLM3, Seed-OSS, Hunyuan, ERNIE 4.5, EXAONE 4, Arcee, Helium, CWM, Ministral."""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Branch, Layer, NormPlace
from meshwright.app.importers.bodies.attention import Attention, Position, QkNorm
from meshwright.app.importers.bodies.mlp import Gate, Mlp
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import FULL, SLIDING, Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.importers.families.llama import listed_windows, pre_norm_layer, windows
from meshwright.app.importers.parts import Bias, NormKind

_COMMON = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_SMOLLM3_DEFAULTS = _COMMON | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 0,
    "layer_types": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
}
_SEED_OSS_DEFAULTS = _COMMON | {
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "attention_out_bias": False,
}
_HUNYUAN_DEFAULTS = _COMMON | {"vocab_size": 290943}
_ERNIE_DEFAULTS = _COMMON | {
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "use_bias": False,
}
_EXAONE4_DEFAULTS = _COMMON | {
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "layer_types": None,
}
_ARCEE_DEFAULTS = _COMMON | {"hidden_size": 2560, "intermediate_size": 18432, "hidden_act": "relu2"}
_CWM_DEFAULTS = _COMMON | {
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 8192,
    "layer_types": None,
}
# CWM: the first of every four layers sees everything.
_CWM_PATTERN = 4
_MINISTRAL_DEFAULTS = _COMMON | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "layer_types": None,
}
_INTERNLM3_DEFAULTS = _COMMON | {
    "vocab_size": 128512,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
_INTERNLM3_ALIASES = {"attention_bias": ("qkv_bias",), "mlp_bias": ("bias",)}
_IQUEST_DEFAULTS = _COMMON | {
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "use_sliding_window": False,
}
_HELIUM_DEFAULTS = _COMMON | {
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "head_dim": 128,
}


def _stack(fields: ConfigFields, attention: Attention, mlp: Mlp) -> Architecture:
    """Return equal layers of that attention and feed-forward network."""
    layer = pre_norm_layer(attention, Branch("mlp", mlp, NormKind.RMS))
    return Architecture(llama_dims(fields), (layer,) * fields.layers(), rms_head(fields))


def _read_smollm3(fields: ConfigFields) -> Architecture:
    """Every fourth layer knows nothing of positions."""
    n_layers, attention_bias = fields.layers(), bias(fields.flag("attention_bias"))
    rotary = fields.optional_switches("no_rope_layers", least_length=n_layers)
    if rotary is None:
        interval = fields.size("no_rope_layer_interval")
        rotary = tuple((i + 1) % interval != 0 for i in range(n_layers))
    mlp = Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS)
    layers = tuple(
        pre_norm_layer(
            Attention(Position.ROTARY if rotary[i] else Position.ELSEWHERE, attention_bias, attention_bias, window=window), mlp
        )
        for i, window in enumerate(windows(fields, n_layers))
    )
    return Architecture(llama_dims(fields), layers, rms_head(fields))


def _read_seed_oss(fields: ConfigFields) -> Architecture:
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")), out_bias=bias(fields.flag("attention_out_bias")))
    return _stack(fields, attention, gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))))


def _read_hunyuan(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.PER_HEAD)
    return _stack(fields, attention, gated_mlp(fields))


def _read_ernie(fields: ConfigFields) -> Architecture:
    every_bias = bias(fields.flag("use_bias"))
    attention = Attention(qkv_bias=every_bias, out_bias=every_bias)
    return _stack(fields, attention, gated_mlp(fields, with_bias=every_bias))


def _read_arcee(fields: ConfigFields) -> Architecture:
    """A plain feed-forward network in the place of the gated one."""
    attention_bias = bias(fields.flag("attention_bias"))
    mlp = Mlp(Gate.PLAIN, fields.text("hidden_act"), bias(fields.flag("mlp_bias")))
    return _stack(fields, Attention(qkv_bias=attention_bias, out_bias=attention_bias), mlp)


def _read_internlm3(fields: ConfigFields) -> Architecture:
    """A Llama under another name."""
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    return _stack(fields, attention, gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))))


def _read_iquest(fields: ConfigFields) -> Architecture:
    fields.refuse("use_sliding_window", because="no known checkpoint has windows")
    return _read_internlm3(fields)


def _read_helium(fields: ConfigFields) -> Architecture:
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")), out_bias=Bias.NONE)
    return _stack(fields, attention, gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))))


def _read_exaone4(fields: ConfigFields) -> Architecture:
    """Norms follow the branches; where layers have windows, full ones know nothing of positions."""
    listed = listed_windows(fields, pattern=fields.optional_size("sliding_window_pattern") or fields.layers() + 1)
    mixed = fields.optional_size("sliding_window") is not None
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS, NormPlace.AFTER)
    layers = []
    for window in listed:
        position = Position.ELSEWHERE if mixed and window is None else Position.ROTARY
        attention = Attention(position, window=window, qk_norm=QkNorm.PER_HEAD)
        layers.append(Layer((Branch("attn", attention, NormKind.RMS, NormPlace.AFTER), mlp)))
    return Architecture(llama_dims(fields), tuple(layers), rms_head(fields))


def _read_cwm(fields: ConfigFields) -> Architecture:
    window = fields.optional_size("sliding_window")
    kinds = fields.optional_words("layer_types", length=fields.layers(), allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if i % _CWM_PATTERN else FULL for i in range(fields.layers()))
    return _windowed(fields, tuple(window if kind == SLIDING else None for kind in kinds))


def _read_ministral(fields: ConfigFields) -> Architecture:
    # Where no layers are listed, all of them have the window: none is the last of a pattern.
    return _windowed(fields, listed_windows(fields, pattern=fields.layers() + 1))


def _windowed(fields: ConfigFields, given: tuple[int | None, ...]) -> Architecture:
    """Return layers that differ in their windows alone."""
    mlp = Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS)
    layers = tuple(pre_norm_layer(Attention(window=window), mlp) for window in given)
    return Architecture(llama_dims(fields), layers, rms_head(fields))


LLAMA_KIN_FAMILIES = (
    Family("smollm3", ("SmolLM3ForCausalLM",), _read_smollm3, _SMOLLM3_DEFAULTS),
    Family("seed_oss", ("SeedOssForCausalLM",), _read_seed_oss, _SEED_OSS_DEFAULTS),
    Family("hunyuan_v1_dense", ("HunYuanDenseV1ForCausalLM",), _read_hunyuan, _HUNYUAN_DEFAULTS),
    Family("ernie4_5", ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), _read_ernie, _ERNIE_DEFAULTS),
    Family("exaone4", ("Exaone4ForCausalLM",), _read_exaone4, _EXAONE4_DEFAULTS),
    Family("arcee", ("ArceeForCausalLM",), _read_arcee, _ARCEE_DEFAULTS),
    Family("helium", ("HeliumForCausalLM",), _read_helium, _HELIUM_DEFAULTS),
    Family("internlm3", ("InternLM3ForCausalLM", "LlamaForCausalLM"), _read_internlm3, _INTERNLM3_DEFAULTS, _INTERNLM3_ALIASES),
    Family("iquestcoder", ("IQuestCoderForCausalLM", "LlamaForCausalLM"), _read_iquest, _IQUEST_DEFAULTS),
    Family("cwm", ("CwmForCausalLM",), _read_cwm, _CWM_DEFAULTS),
    Family("ministral", ("MinistralForCausalLM",), _read_ministral, _MINISTRAL_DEFAULTS),
)
