"""DeepSeek-V4: windows beside compressed entries, several residual streams, experts in every layer.

Parameters are those of transformers; times and memory are bounds where `bodies.compressed_attention` says so. The layer for
multi-token prediction is not built, as transformers does not build it.
"""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Branch, Layer, NormPlace
from meshwright.app.importers.bodies.compressed_attention import (
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
from meshwright.app.importers.bodies.experts import Experts, SharedExpert
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import SLIDING, Family, decoder_dims, rms_head
from meshwright.app.importers.families.moe import expert_dims
from meshwright.app.importers.parts import NormKind
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import HEAD_DIM, HEADS, INDEX_DIM, INDEX_HEADS, Q_RANK

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
_ALIASES = {"num_experts": ("n_routed_experts", "num_local_experts")}
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
# What 'compress_ratios' says of a layer (transformers 5.23, configuration_deepseek_v4).
_BY_RATIO = {0: SLIDING, 4: _SPARSE, 128: _HEAVY}


def _read_v4(fields: ConfigFields) -> Architecture:
    for name in ("attention_bias", "mlp_bias"):
        fields.refuse(name, because="no projection of a known checkpoint has one")
    sparse = Compressor(_rate(fields, _SPARSE, "compress_rate_csa"), overlaps=True, indexed=True)
    heavy = Compressor(_rate(fields, _HEAVY, "compress_rate_hca"), overlaps=False, indexed=False)
    window = fields.size("sliding_window")
    attentions = {
        SLIDING: CompressedAttention(window),
        _SPARSE: CompressedAttention(window, sparse),
        _HEAVY: CompressedAttention(window, heavy),
    }
    experts = Experts(fields.text("hidden_act"), shared=SharedExpert.ADDED)
    layers = [
        Layer((_branch("attn", HyperConnected("attn", attentions[kind])), _branch("mlp", HyperConnected("mlp", experts))))
        for kind in _kinds(fields)
    ]
    layers[-1] = Layer((*layers[-1].branches, _branch("streams", HyperConnected("streams", None))))
    return Architecture(_dims(fields, sparse, heavy), tuple(layers), rms_head(fields))


def _branch(name: str, body: HyperConnected) -> Branch:
    return Branch(name, body, NormKind.RMS, NormPlace.INSIDE)


def _dims(fields: ConfigFields, sparse: Compressor, heavy: Compressor) -> dict[str, int]:
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
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(SLIDING, _SPARSE, _HEAVY))
    if listed is not None:
        return listed
    ratios = fields.document.get("compress_ratios")
    if ratios is None:
        return tuple(_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(n_layers))
    if (
        not isinstance(ratios, list)
        or len(ratios) < n_layers
        or any(type(each) is not int or each not in _BY_RATIO for each in ratios)
    ):
        allowed = f"at least {n_layers} of {', '.join(map(str, _BY_RATIO))}"
        raise ModelError(f"{fields.family}: 'compress_ratios' must say each layer's", given=str(ratios)[:80], allowed=allowed)
    return tuple(_BY_RATIO[each] for each in ratios[:n_layers])


DEEPSEEK_V4_FAMILIES = (
    Family("deepseek_v4", ("DeepseekV4ForCausalLM",), _read_v4, _DEFAULTS, _ALIASES),
    # The kind that copies in fp8 name.
    Family("deepseek_ref", ("DeepseekV4ForCausalLM",), _read_v4, _DEFAULTS, _ALIASES),
)
