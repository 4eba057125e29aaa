"""Llama and the families that differ from it in biases, q/k norms, windows or the place of norms."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.architecture import Architecture, Bias, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, Position, QkNorm
from meshwright.app.models.bodies.mlp import Gate, Mlp
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, KIN_DEFAULTS, SLIDING, Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.operators import Weight

_COMMON = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_DEFAULTS = _COMMON | {"vocab_size": 32000, "intermediate_size": 11008}
_MISTRAL_DEFAULTS = _COMMON | {
    "vocab_size": 32000,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
QWEN_DEFAULTS = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN3_DEFAULTS = QWEN_DEFAULTS | {"head_dim": 128}
_PHI3_DEFAULTS = _COMMON | {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "sliding_window": None}
_MINISTRAL3_DEFAULTS = _MISTRAL_DEFAULTS | {
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "sliding_window": None,
}
_QWEN2_VL_DEFAULTS = QWEN_DEFAULTS | {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_window_layers": 80,
}
_QWEN2_5_OMNI_DEFAULTS = QWEN_DEFAULTS | {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
_OLMO2_DEFAULTS = _COMMON | {"vocab_size": 50304, "intermediate_size": 11008}


def pre_norm_layer(attention: Attention, mlp_branch: Branch) -> Layer:
    """RMS norm, attention, add; then the feed-forward branch."""
    return Layer((Branch("attn", attention, NormKind.RMS), mlp_branch))


def windows(fields: ConfigFields, n_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer of a Qwen2-like config, None where attention is full."""
    window = fields.optional_size("sliding_window") if fields.flag("use_sliding_window") else None
    given = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if given is not None:
        return tuple(window if kind == SLIDING else None for kind in given)
    first_windowed = fields.count("max_window_layers")
    return tuple(window if i >= first_windowed else None for i in range(n_layers))


def listed_windows(fields: ConfigFields, *, pattern: int) -> tuple[int | None, ...]:
    """Sliding window of each layer as listed, else of all but every ``pattern``-th; None where attention is full."""
    n_layers, window = fields.layers(), fields.optional_size("sliding_window")
    kinds = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, SLIDING))
    if kinds is None:
        kinds = tuple(SLIDING if (i + 1) % pattern else FULL for i in range(n_layers))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def window_pattern(fields: ConfigFields) -> int:
    """Every how many layers one sees everything: a number, or letters of which the last is that layer's (LLLG)."""
    given = fields.document.get("sliding_window_pattern")
    if isinstance(given, str):
        if not given.endswith("G") or set(given[:-1]) - {"L"}:
            raise ModelError(
                f"{fields.family}: 'sliding_window_pattern' is not known",
                given=given,
                allowed="a number, or letters as LLLG",
            )
        return len(given)
    return fields.optional_size("sliding_window_pattern") or fields.layers() + 1


def _read_llama(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias)
    mlp = Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS)
    return Architecture(llama_dims(fields), (pre_norm_layer(attention, mlp),) * fields.layers(), rms_head(fields))


def _read_mistral(fields: ConfigFields) -> Architecture:
    attention = Attention(window=fields.optional_size("sliding_window"))
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    return Architecture(llama_dims(fields), (pre_norm_layer(attention, mlp),) * fields.layers(), rms_head(fields))


def read_qwen2(fields: ConfigFields) -> Architecture:
    """Qwen2: biases of queries, keys and values; windows in some layers."""
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    layers = tuple(
        pre_norm_layer(Attention(qkv_bias=Bias.ADDED, window=window), mlp) for window in windows(fields, fields.layers())
    )
    # Qwen2 has no head_dim field: a file that gives one is read as transformers reads it.
    return Architecture(llama_dims(fields), layers, rms_head(fields))


def _read_qwen3(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    mlp = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    layers = tuple(
        pre_norm_layer(Attention(qkv_bias=attention_bias, out_bias=attention_bias, window=window, qk_norm=QkNorm.PER_HEAD), mlp)
        for window in windows(fields, fields.layers())
    )
    return Architecture(llama_dims(fields), layers, rms_head(fields))


def _read_olmo2(fields: ConfigFields) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.ALL_HEADS)
    layer = Layer(
        (
            Branch("attn", attention, NormKind.RMS, NormPlace.AFTER),
            Branch("mlp", gated_mlp(fields), NormKind.RMS, NormPlace.AFTER),
        )
    )
    return Architecture(llama_dims(fields), (layer,) * fields.layers(), rms_head(fields))


LLAMA_FAMILIES = (
    Family("llama", ("LlamaForCausalLM",), _read_llama, _LLAMA_DEFAULTS),
    # Granite scales embeddings, logits and residuals by constants, which changes neither weights nor work.
    Family("granite", ("GraniteForCausalLM",), _read_llama, _LLAMA_DEFAULTS),
    Family("mistral", ("MistralForCausalLM",), _read_mistral, _MISTRAL_DEFAULTS),
    Family("phi3", ("Phi3ForCausalLM",), _read_mistral, _PHI3_DEFAULTS),
    Family("qwen2", ("Qwen2ForCausalLM",), read_qwen2, QWEN_DEFAULTS),
    Family("qwen3", ("Qwen3ForCausalLM",), _read_qwen3, _QWEN3_DEFAULTS),
    Family("ministral3", ("Ministral3ForCausalLM",), _read_mistral, _MINISTRAL3_DEFAULTS),
    # Text decoders of models of text and images, which have no class of their own to name.
    Family("qwen2_vl_text", (), read_qwen2, _QWEN2_VL_DEFAULTS),
    Family("qwen2_5_vl_text", (), read_qwen2, _QWEN2_VL_DEFAULTS),
    Family("qwen2_5_omni_text", (), read_qwen2, _QWEN2_5_OMNI_DEFAULTS),
    Family("qwen3_vl_text", (), _read_qwen3, _QWEN3_DEFAULTS),
    Family("olmo2", ("Olmo2ForCausalLM",), _read_olmo2, _OLMO2_DEFAULTS),
)


# Llama but for one or two of its parts: SmolLM3, Seed-OSS, Hunyuan, ERNIE 4.5, EXAONE 4, Arcee, Helium, CWM, Ministral.

_SMOLLM3_DEFAULTS = KIN_DEFAULTS | {
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
_SEED_OSS_DEFAULTS = KIN_DEFAULTS | {
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "attention_out_bias": False,
}
_HUNYUAN_DEFAULTS = KIN_DEFAULTS | {"vocab_size": 290943}
_ERNIE_DEFAULTS = KIN_DEFAULTS | {
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
_EXAONE4_DEFAULTS = KIN_DEFAULTS | {
    "vocab_size": 102400,
    "intermediate_size": 16384,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "layer_types": None,
}
_ARCEE_DEFAULTS = KIN_DEFAULTS | {"hidden_size": 2560, "intermediate_size": 18432, "hidden_act": "relu2"}
_XIELU, _XIELU_ALPHAS = "xielu", "xielu_alphas"
_APERTUS_DEFAULTS = KIN_DEFAULTS | {"vocab_size": 131072, "intermediate_size": 14336, "hidden_act": _XIELU}
_CWM_DEFAULTS = KIN_DEFAULTS | {
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
_MINISTRAL_DEFAULTS = KIN_DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "layer_types": None,
}
_INTERNLM3_DEFAULTS = KIN_DEFAULTS | {
    "vocab_size": 128512,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
_INTERNLM3_ALIASES = {"attention_bias": ("qkv_bias",), "mlp_bias": ("bias",)}
_IQUEST_DEFAULTS = KIN_DEFAULTS | {
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "use_sliding_window": False,
}
_HELIUM_DEFAULTS = KIN_DEFAULTS | {
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


def _read_apertus(fields: ConfigFields) -> Architecture:
    """Norms of queries and keys, and a plain network whose activation function learns two numbers."""
    attention_bias, function = bias(fields.flag("attention_bias")), fields.text("hidden_act")
    attention = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.PER_HEAD)
    learned = (Weight("alphas", (_XIELU_ALPHAS,)),) if function == _XIELU else ()
    stack = _stack(fields, attention, Mlp(Gate.PLAIN, function, function_weights=learned))
    return replace(stack, dims={**stack.dims, _XIELU_ALPHAS: 2})


def _read_helium(fields: ConfigFields) -> Architecture:
    attention = Attention(qkv_bias=bias(fields.flag("attention_bias")), out_bias=Bias.NONE)
    return _stack(fields, attention, gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))))


def _read_exaone4(fields: ConfigFields) -> Architecture:
    """Norms follow the branches; where layers have windows, full ones know nothing of positions."""
    listed = listed_windows(fields, pattern=window_pattern(fields))
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
    # The text decoder of EXAONE 4.5, under the name that its first files gave it.
    Family("exaone4_5_text", ("Exaone4ForCausalLM",), _read_exaone4, _EXAONE4_DEFAULTS),
    Family("arcee", ("ArceeForCausalLM",), _read_arcee, _ARCEE_DEFAULTS),
    Family("apertus", ("ApertusForCausalLM",), _read_apertus, _APERTUS_DEFAULTS),
    Family("helium", ("HeliumForCausalLM",), _read_helium, _HELIUM_DEFAULTS),
    Family("internlm3", ("InternLM3ForCausalLM", "LlamaForCausalLM"), _read_internlm3, _INTERNLM3_DEFAULTS, _INTERNLM3_ALIASES),
    Family("iquestcoder", ("IQuestCoderForCausalLM", "LlamaForCausalLM"), _read_iquest, _IQUEST_DEFAULTS),
    Family("cwm", ("CwmForCausalLM",), _read_cwm, _CWM_DEFAULTS),
    Family("ministral", ("MinistralForCausalLM",), _read_ministral, _MINISTRAL_DEFAULTS),
)
