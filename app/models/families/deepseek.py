"""DeepSeek-V2 and V3 (and Kimi-K2, which is a V3), GLM-5: latent attention, and experts after the first dense layers.

The multi-token-prediction layer of V3 is not built, as transformers does not build it.
"""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Bias, Body, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.compressed_attention import (
    HEAD_SCALES,
    MIXES,
    OUT_PART,
    OUT_RANK,
    SCALES,
    STREAMS,
    CompressedAttention,
    Compressor,
    HyperConnected,
)
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.mla import Indexer, LatentAttention
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import SLIDING, Family, bias, decoder_dims, gated_mlp, rms_head
from meshwright.app.models.families.moe import expert_dims, group_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INDEX_DIM,
    INDEX_HEADS,
    KV_RANK,
    Q_RANK,
    QK_HEAD_DIM,
    QK_NOPE_DIM,
    QK_ROPE_DIM,
    V_HEAD_DIM,
    VOCAB,
)

_V2_DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "num_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1407,
    "topk_method": "greedy",
    "n_group": None,
    "topk_group": None,
}
_V3_DEFAULTS = _V2_DEFAULTS | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "first_k_dense_replace": 3,
    "num_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "topk_method": "noaux_tc",
    "n_group": 8,
    "topk_group": 4,
}
_GLM_DEFAULTS = _V3_DEFAULTS | {
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "mlp_layer_types": None,
    "indexer_types": None,
    "index_topk_pattern": None,
    "index_topk_freq": 1,
    "index_skip_topk_offset": 2,
}
_V32_DEFAULTS = _V3_DEFAULTS | {
    "index_n_heads": 64,
    "index_head_dim": 128,
    "mlp_layer_types": None,
    "indexer_types": None,
    "index_topk_pattern": None,
    "index_topk_freq": 1,
    "index_skip_topk_offset": 0,
}
_GLM_LITE_DEFAULTS = _V3_DEFAULTS | {
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "first_k_dense_replace": 1,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "topk_group": 1,
    "mlp_layer_types": None,
}
_YOUTU_DEFAULTS = _V2_DEFAULTS | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
_DENSE, _SPARSE = "dense", "sparse"
_INDEXERS = {"full": Indexer.OWN, "shared": Indexer.SHARED}
_INDEXER_LETTERS = {"F": "full", "S": "shared"}
_ALIASES = {"num_experts": ("n_routed_experts", "num_local_experts")}


def _read_v2(fields: ConfigFields) -> Architecture:
    return _architecture(fields, mlp_bias=bias(fields.flag("mlp_bias")))


def _read_v3(fields: ConfigFields) -> Architecture:
    return _architecture(fields, mlp_bias=Bias.NONE)


def _read_glm(fields: ConfigFields) -> Architecture:
    """Sparse latent attention; which layers have an indexer and which have experts may be listed."""
    dims = _dims(fields) | {INDEX_HEADS: fields.size("index_n_heads"), INDEX_DIM: fields.size("index_head_dim")}
    return _listed(fields, dims, _indexers(fields, fields.layers()))


def _read_glm_lite(fields: ConfigFields) -> Architecture:
    """GLM-4.7-Flash: latent attention without an indexer."""
    return _listed(fields, _dims(fields), (Indexer.NONE,) * fields.layers())


def _read_youtu(fields: ConfigFields) -> Architecture:
    """Latent attention in a dense model."""
    attention = Branch("attn", LatentAttention(bias(fields.flag("attention_bias"))), NormKind.RMS)
    layer = Layer((attention, Branch("mlp", gated_mlp(fields), NormKind.RMS)))
    return Architecture(latent_dims(fields), (layer,) * fields.layers(), rms_head(fields))


def _listed(fields: ConfigFields, dims: dict[str, int], indexers: tuple[Indexer, ...]) -> Architecture:
    """Return layers with these indexers; which of them have experts may be listed."""
    n_layers = fields.layers()
    kinds = fields.optional_words("mlp_layer_types", length=n_layers, allowed=(_DENSE, _SPARSE))
    if kinds is None:
        first = min(fields.count("first_k_dense_replace"), n_layers)
        kinds = (_DENSE,) * first + (_SPARSE,) * (n_layers - first)
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    feed_forward: dict[str, Body] = {_DENSE: gated_mlp(fields), _SPARSE: experts}
    attention_bias = bias(fields.flag("attention_bias"))
    layers = tuple(
        Layer(
            (
                Branch("attn", LatentAttention(attention_bias, indexer), NormKind.RMS),
                Branch("mlp", feed_forward[kind], NormKind.RMS),
            )
        )
        for kind, indexer in zip(kinds, indexers, strict=True)
    )
    return Architecture(dims, layers, rms_head(fields))


def _indexers(fields: ConfigFields, n_layers: int) -> tuple[Indexer, ...]:
    """As listed, else by the letters of a pattern, else every ``index_topk_freq``-th layer from an offset on."""
    listed = fields.optional_words("indexer_types", length=n_layers, allowed=tuple(_INDEXERS))
    if listed is not None:
        return tuple(_INDEXERS[word] for word in listed)
    pattern = fields.optional_text("index_topk_pattern")
    if pattern is not None:
        if len(pattern) != n_layers or set(pattern) - set(_INDEXER_LETTERS):
            raise ModelError(
                f"{fields.family}: 'index_topk_pattern' must have a letter for each layer",
                given=pattern,
                allowed=f"{n_layers} letters of {' '.join(_INDEXER_LETTERS)}",
            )
        return tuple(_INDEXERS[_INDEXER_LETTERS[letter]] for letter in pattern)
    every, offset = max(fields.count("index_topk_freq"), 1), fields.count("index_skip_topk_offset")
    return tuple(Indexer.SHARED if max(i - offset + 1, 0) % every else Indexer.OWN for i in range(n_layers))


def _architecture(fields: ConfigFields, *, mlp_bias: Bias) -> Architecture:
    n_layers, n_dense = fields.layers(), fields.count("first_k_dense_replace")
    attention = Branch("attn", LatentAttention(bias(fields.flag("attention_bias"))), NormKind.RMS)
    dense = Layer((attention, Branch("mlp", gated_mlp(fields, with_bias=mlp_bias), NormKind.RMS)))
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED, shared_bias=mlp_bias)
    sparse = Layer((attention, Branch("mlp", experts, NormKind.RMS)))
    n_dense = min(n_dense, n_layers)
    return Architecture(_dims(fields), (dense,) * n_dense + (sparse,) * (n_layers - n_dense), rms_head(fields))


def latent_dims(fields: ConfigFields) -> dict[str, int]:
    """Sizes of the dims of latent attention and of the dense parts."""
    nope, rope = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    sizes = {
        HIDDEN: fields.size("hidden_size"),
        HEADS: fields.size("num_attention_heads"),
        FFN: fields.size("intermediate_size"),
        VOCAB: fields.size("vocab_size"),
        KV_RANK: fields.size("kv_lora_rank"),
        QK_NOPE_DIM: nope,
        QK_ROPE_DIM: rope,
        QK_HEAD_DIM: nope + rope,
        V_HEAD_DIM: fields.size("v_head_dim"),
    }
    q_rank = fields.optional_size("q_lora_rank")
    if q_rank is not None:
        sizes[Q_RANK] = q_rank
    return sizes


def _dims(fields: ConfigFields) -> dict[str, int]:
    width = fields.size("moe_intermediate_size")
    experts = expert_dims(fields, width=width, shared_width=fields.size("n_shared_experts") * width)
    # DeepSeek-V2 may choose among all experts in spite of its groups.
    return latent_dims(fields) | experts | ({} if fields.text("topk_method") == "greedy" else group_dims(fields))


DEEPSEEK_FAMILIES = (
    Family("deepseek_v2", ("DeepseekV2ForCausalLM",), _read_v2, _V2_DEFAULTS, _ALIASES),
    Family("deepseek_v3", ("DeepseekV3ForCausalLM",), _read_v3, _V3_DEFAULTS, _ALIASES),
    # DeepSeek-V3.2 has the attention of GLM-5, with an indexer in every layer.
    Family("deepseek_v32", ("DeepseekV32ForCausalLM",), _read_glm, _V32_DEFAULTS, _ALIASES),
    Family("glm_moe_dsa", ("GlmMoeDsaForCausalLM",), _read_glm, _GLM_DEFAULTS, _ALIASES),
    Family("glm4_moe_lite", ("Glm4MoeLiteForCausalLM",), _read_glm_lite, _GLM_LITE_DEFAULTS, _ALIASES),
    Family("youtu", ("YoutuForCausalLM",), _read_youtu, _YOUTU_DEFAULTS),
    # Kimi-K2 has a model_type of its own and the classes of DeepSeek-V3.
    Family("kimi_k2", ("DeepseekV3ForCausalLM",), _read_v3, _V3_DEFAULTS, _ALIASES),
)


# DeepSeek-V4: windows beside compressed entries, several residual streams, experts in every layer.
#
# Parameters are those of transformers; times and memory are bounds where `bodies.compressed_attention` says so. The layer for
# multi-token prediction is not built, as transformers does not build it.

_DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "hc_mult": 4,
    "layer_types": None,
    "compress_ratios": None,
    "compress_rate_csa": 4,
    "compress_rate_hca": 128,
}
_V4_ALIASES = {"num_experts": ("n_routed_experts", "num_local_experts")}
_V4_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
# What 'compress_ratios' says of a layer (transformers 5.23, configuration_deepseek_v4).
_BY_RATIO = {0: SLIDING, 4: _V4_SPARSE, 128: _HEAVY}


def _read_v4(fields: ConfigFields) -> Architecture:
    for name in ("attention_bias", "mlp_bias"):
        fields.refuse(name, because="no projection of a known checkpoint has one")
    sparse = Compressor(_rate(fields, _V4_SPARSE, "compress_rate_csa"), overlaps=True, indexed=True)
    heavy = Compressor(_rate(fields, _HEAVY, "compress_rate_hca"), overlaps=False, indexed=False)
    window = fields.size("sliding_window")
    attentions = {
        SLIDING: CompressedAttention(window),
        _V4_SPARSE: CompressedAttention(window, sparse),
        _HEAVY: CompressedAttention(window, heavy),
    }
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = [
        Layer((_branch("attn", HyperConnected("attn", attentions[kind])), _branch("mlp", HyperConnected("mlp", experts))))
        for kind in _kinds(fields)
    ]
    layers[-1] = Layer((*layers[-1].branches, _branch("streams", HyperConnected("streams", None))))
    return Architecture(_v4_dims(fields, sparse, heavy), tuple(layers), rms_head(fields))


def _branch(name: str, body: HyperConnected) -> Branch:
    return Branch(name, body, NormKind.RMS, NormPlace.INSIDE)


def _v4_dims(fields: ConfigFields, sparse: Compressor, heavy: Compressor) -> dict[str, int]:
    width, head_dim, streams = fields.size("moe_intermediate_size"), fields.size("head_dim"), fields.size("hc_mult")
    dims = decoder_dims(fields, ffn=width, head_dim=head_dim, kv_heads=fields.size("num_key_value_heads"))
    dims |= expert_dims(fields, width=width, shared_width=width)
    groups, rank = fields.size("o_groups"), fields.size("o_lora_rank")
    if groups * rank % dims[HEADS] or dims[HEADS] % groups:
        raise ModelError(
            f"{fields.family}: the output's groups must share the heads evenly",
            given={"o_groups": groups, "o_lora_rank": rank, "num_attention_heads": dims[HEADS]},
        )
    dims |= {OUT_RANK: rank, OUT_PART: groups * rank // dims[HEADS], Q_RANK: fields.size("q_lora_rank")}
    dims |= {INDEX_HEADS: fields.size("index_n_heads"), INDEX_DIM: fields.size("index_head_dim")}
    dims |= {STREAMS: streams, MIXES: streams * (streams + 2), f"{MIXES}_head": streams, SCALES: 3, HEAD_SCALES: 1}
    for each in (sparse, heavy):
        if head_dim % each.rate:
            raise ModelError(
                f"{fields.family}: the tokens of an entry must divide 'head_dim'",
                given=each.rate,
                allowed=f"a divisor of {head_dim}",
            )
        wide = 2 if each.overlaps else 1
        dims |= {each.narrow: head_dim // each.rate, each.wide: wide * dims[HEAD_DIM], each.tokens: each.rate}
    return dims | {f"index_{sparse.wide}": 2 * dims[INDEX_DIM]}


def _rate(fields: ConfigFields, kind: str, older: str) -> int:
    """Tokens of an entry: by kind of layer, or under an older name."""
    given = fields.document.get("compress_rates")
    if isinstance(given, dict) and kind in given:
        return ConfigFields(given, f"{fields.family} compress_rates").size(kind)
    return fields.size(older)


def _kinds(fields: ConfigFields) -> tuple[str, ...]:
    """As listed in words or in tokens of an entry; else two heavily compressed layers, then both kinds in turn."""
    n_layers = fields.layers()
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(SLIDING, _V4_SPARSE, _HEAVY))
    if listed is not None:
        return listed
    ratios = fields.document.get("compress_ratios")
    if ratios is None:
        return tuple(_V4_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(n_layers))
    if (
        not isinstance(ratios, list)
        or len(ratios) < n_layers
        or any(type(each) is not int or each not in _BY_RATIO for each in ratios)
    ):
        allowed = f"at least {n_layers} of {', '.join(map(str, _BY_RATIO))}"
        raise ModelError(f"{fields.family}: 'compress_ratios' must say each layer's", given=str(ratios)[:80], allowed=allowed)
    return tuple(_BY_RATIO[each] for each in ratios[:n_layers])


DEEPSEEK_V4_FAMILIES = (
    Family("deepseek_v4", ("DeepseekV4ForCausalLM",), _read_v4, _DEFAULTS, _V4_ALIASES),
    # The kind that copies in fp8 name.
    Family("deepseek_ref", ("DeepseekV4ForCausalLM",), _read_v4, _DEFAULTS, _V4_ALIASES),
)
