"""State-space models and their hybrids with attention: Mamba-2, Jamba, Falcon-H1, Zamba2."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Branch, Layer, NormKind, NormPlace
from meshwright.app.models.bodies.attention import Attention, Position
from meshwright.app.models.bodies.experts import Experts
from meshwright.app.models.bodies.mixers import Mamba1, Mamba2, OutputNorm
from meshwright.app.models.bodies.shared_transformer import ADAPTER_RANK, SHARED_HIDDEN, WIDE, SharedTransformer
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import Family, bias, decoder_dims, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    CONV_KERNEL,
    DT_RANK,
    HIDDEN,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_INNER,
    SSM_STATE,
    VOCAB,
)

_MAMBA2_DEFAULTS = {
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 256,
    "hidden_act": "silu",
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
}
_JAMBA_DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
    "num_experts": 16,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_FALCON_H1_DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
    "projectors_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
}

_ZAMBA2_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2560,
    "intermediate_size": None,
    "num_hidden_layers": 54,
    "layers_block_type": None,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
    "chunk_size": 256,
    "add_bias_linear": False,
    "num_mem_blocks": 1,
    "use_shared_attention_adapter": False,
    "adapter_rank": 128,
    "use_mem_rope": False,
}
# Kinds of Zamba2's layers (older names too), and those of its class default.
_HYBRID = "hybrid"
_ZAMBA2_KINDS = {"linear_attention": "mamba", "mamba": "mamba", _HYBRID: _HYBRID}
_ZAMBA2_DEFAULT_KINDS = (
    "mamba",
    *(("mamba",) * 5 + (_HYBRID,)) * 7,
    *("mamba",) * 4,
    _HYBRID,
    *("mamba",) * 3,
    _HYBRID,
    *("mamba",) * 2,
)

# Where "auto" stands for the rank of the time step: a sixteenth of the hidden size, rounded up.
_DT_RANK_DIVISOR = 16


def _read_mamba2(fields: ConfigFields) -> Architecture:
    hidden, heads, head_dim = fields.size("hidden_size"), fields.size("num_heads"), fields.size("head_dim")
    _check_width(fields, fields.size("expand") * hidden, heads, head_dim)
    proj_bias = bias(fields.flag("use_bias"))
    mixer = Mamba2(
        fields.size("chunk_size"),
        fields.text("hidden_act"),
        in_bias=proj_bias,
        conv_bias=bias(fields.flag("use_conv_bias")),
        out_bias=proj_bias,
    )
    dims = {
        HIDDEN: hidden,
        VOCAB: fields.size("vocab_size"),
        SSM_HEADS: heads,
        SSM_HEAD_DIM: head_dim,
        SSM_GROUPS: fields.size("n_groups"),
        SSM_STATE: fields.size("state_size"),
        CONV_KERNEL: fields.size("conv_kernel"),
    }
    layer = Layer((Branch("mamba", mixer, NormKind.RMS),))
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


def _read_jamba(fields: ConfigFields) -> Architecture:
    """Attention in one layer of a period and Mamba-1 in the others; experts in one of another period."""
    ffn, hidden = fields.size("intermediate_size"), fields.size("hidden_size")
    attention = Branch("attn", Attention(Position.ELSEWHERE), NormKind.RMS)
    mixer = Mamba1(fields.text("hidden_act"), bias(fields.flag("mamba_proj_bias")), bias(fields.flag("mamba_conv_bias")))
    mamba = Branch("mamba", mixer, NormKind.RMS)
    dense = Branch("mlp", gated_mlp(fields), NormKind.RMS)
    many_experts = fields.size("num_experts") > 1
    sparse = Branch("mlp", Experts(fields.text("hidden_act")), NormKind.RMS) if many_experts else dense
    attn_period, attn_offset = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
    moe_period, moe_offset = fields.size("expert_layer_period"), fields.count("expert_layer_offset")
    layers = tuple(
        Layer((attention if i % attn_period == attn_offset else mamba, sparse if i % moe_period == moe_offset else dense))
        for i in range(fields.layers())
    )
    dims = decoder_dims(fields, ffn=ffn, kv_heads=fields.optional_size("num_key_value_heads")) | {
        SSM_INNER: fields.size("mamba_expand") * hidden,
        SSM_STATE: fields.size("mamba_d_state"),
        CONV_KERNEL: fields.size("mamba_d_conv"),
        DT_RANK: fields.size_or_auto("mamba_dt_rank", auto=-(-hidden // _DT_RANK_DIVISOR)),
    }
    if many_experts:
        dims |= expert_dims(fields, width=ffn)
    return Architecture(dims, layers, rms_head(fields))


def _read_falcon_h1(fields: ConfigFields) -> Architecture:
    """In every layer a Mamba-2 mixer and attention read the same norm and are added to the same stream."""
    hidden, heads = fields.size("hidden_size"), fields.size("mamba_n_heads")
    width = fields.optional_size("mamba_d_ssm") or fields.size("mamba_expand") * hidden
    head_dim = fields.size_or_auto("mamba_d_head", auto=max(1, width // heads))
    _check_width(fields, width, heads, head_dim)
    mixer = Mamba2(
        fields.size("mamba_chunk_size"),
        fields.text("hidden_act"),
        in_bias=bias(fields.flag("mamba_proj_bias")),
        conv_bias=bias(fields.flag("mamba_conv_bias")),
        out_bias=bias(fields.flag("projectors_bias")),
        output_norm=OutputNorm.GATED_RMS if fields.flag("mamba_rms_norm") else OutputNorm.GATE_ONLY,
    )
    attention_bias = bias(fields.flag("attention_bias"))
    layer = Layer(
        (
            Branch("mamba", mixer, NormKind.RMS),
            Branch("attn", Attention(qkv_bias=attention_bias, out_bias=attention_bias), NormKind.RMS, NormPlace.SHARED),
            Branch("mlp", gated_mlp(fields, with_bias=bias(fields.flag("mlp_bias"))), NormKind.RMS),
        )
    )
    dims = llama_dims(fields)
    dims |= {
        SSM_HEADS: heads,
        SSM_HEAD_DIM: head_dim,
        SSM_GROUPS: fields.size("mamba_n_groups"),
        SSM_STATE: fields.size("mamba_d_state"),
        CONV_KERNEL: fields.size("mamba_d_conv"),
    }
    return Architecture(dims, (layer,) * fields.layers(), rms_head(fields))


def _read_zamba2(fields: ConfigFields) -> Architecture:
    """Mamba-2 layers; before some of them, ``num_mem_blocks`` transformer blocks in turn, each shared by its uses."""
    hidden, heads = fields.size("hidden_size"), fields.size("n_mamba_heads")
    width = fields.size("mamba_expand") * hidden
    _check_width(fields, width, heads, max(1, width // heads))
    query_heads = fields.size("num_attention_heads")
    if 2 * hidden % query_heads:
        raise ModelError(
            f"{fields.family}: twice hidden_size must be a multiple of num_attention_heads",
            given={"hidden_size": hidden, "num_attention_heads": query_heads},
        )
    if not fields.flag("tie_word_embeddings"):
        raise ModelError(
            f"{fields.family}: untied tables are not supported: transformers then unties the shared blocks too", allowed="true"
        )
    kinds = _zamba2_kinds(fields)
    dims = decoder_dims(
        fields,
        ffn=fields.optional_size("intermediate_size") or 4 * hidden,
        head_dim=2 * hidden // query_heads,
        kv_heads=fields.optional_size("num_key_value_heads"),
    )
    dims |= {
        SSM_HEADS: heads,
        SSM_HEAD_DIM: width // heads,
        SSM_GROUPS: fields.size("mamba_ngroups"),
        SSM_STATE: fields.size("mamba_d_state"),
        CONV_KERNEL: fields.size("mamba_d_conv"),
    }
    if _HYBRID in kinds:
        dims |= {WIDE: 2 * hidden, SHARED_HIDDEN: hidden, ADAPTER_RANK: fields.size("adapter_rank")}
    return Architecture(dims, _zamba2_layers(fields, kinds), rms_head(fields))


def _zamba2_kinds(fields: ConfigFields) -> tuple[str, ...]:
    n_layers = fields.layers()
    listed = fields.optional_words("layers_block_type", length=n_layers, allowed=tuple(_ZAMBA2_KINDS))
    if listed is not None:
        return tuple(_ZAMBA2_KINDS[word] for word in listed)
    if n_layers != len(_ZAMBA2_DEFAULT_KINDS):
        raise ModelError(
            f"{fields.family}: 'layers_block_type' must say which layers are hybrid",
            given=n_layers,
            allowed=f"{len(_ZAMBA2_DEFAULT_KINDS)} layers where it is left out",
        )
    return _ZAMBA2_DEFAULT_KINDS


def _zamba2_layers(fields: ConfigFields, kinds: tuple[str, ...]) -> tuple[Layer, ...]:
    linear_bias = bias(fields.flag("add_bias_linear"))
    mixer = Mamba2(fields.size("chunk_size"), in_bias=linear_bias, out_bias=linear_bias)
    plain = Layer((Branch("mamba", mixer, NormKind.RMS),))
    n_blocks, layers, uses = fields.size("num_mem_blocks"), list[Layer](), 0
    for kind in kinds:
        if kind != _HYBRID:
            layers.append(plain)
            continue
        number = uses % n_blocks
        body = SharedTransformer(
            mixer,
            fields.text("hidden_act"),
            number,
            Position.ROTARY if fields.flag("use_mem_rope") else Position.ELSEWHERE,
            linear_bias,
            bias(fields.flag("use_shared_attention_adapter")),
            owner=None if uses < n_blocks else f"layer_hybrid{number}",
        )
        layers.append(Layer((Branch("mamba", body, NormKind.RMS, NormPlace.INSIDE),)))
        uses += 1
    return tuple(layers)


def _check_width(fields: ConfigFields, width: int, heads: int, head_dim: int) -> None:
    if heads * head_dim != width:
        raise ModelError(
            f"{fields.family}: the heads of the mixer must add up to its width",
            given={"heads": heads, "head_dim": head_dim, "width": width},
            allowed="heads x head_dim = width",
        )


HYBRID_FAMILIES = (
    Family("mamba2", ("Mamba2ForCausalLM",), _read_mamba2, _MAMBA2_DEFAULTS),
    Family("jamba", ("JambaForCausalLM",), _read_jamba, _JAMBA_DEFAULTS, {"num_experts": ("num_local_experts",)}),
    Family("zamba2", ("Zamba2ForCausalLM",), _read_zamba2, _ZAMBA2_DEFAULTS),
    Family("falcon_h1", ("FalconH1ForCausalLM",), _read_falcon_h1, _FALCON_H1_DEFAULTS),
)
