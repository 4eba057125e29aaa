"""Nemotron-H: every layer is one branch, a Mamba-2 mixer, attention, a feed-forward network or experts."""

from __future__ import annotations

from meshwright.app.importers.architecture import Architecture, Body, Branch, Layer
from meshwright.app.importers.bodies.attention import Attention, Position
from meshwright.app.importers.bodies.experts import Experts, SharedExpert
from meshwright.app.importers.bodies.mamba import Mamba2
from meshwright.app.importers.bodies.mlp import Gate, Mlp
from meshwright.app.importers.config_fields import ConfigFields
from meshwright.app.importers.families.family import Family, bias, decoder_dims, rms_head
from meshwright.app.importers.families.moe import expert_dims
from meshwright.app.importers.parts import NormKind
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import (
    CONV_KERNEL,
    EXPERT_LATENT,
    HIDDEN,
    SSM_GROUPS,
    SSM_HEAD_DIM,
    SSM_HEADS,
    SSM_STATE,
)

_NEMOTRON_DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "layers_block_type": None,
    "hybrid_override_pattern": None,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "mamba_hidden_act": "silu",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "use_bias": False,
    "use_conv_bias": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
}
_NEMOTRON_ALIASES = {
    "num_experts": ("n_routed_experts", "num_local_experts"),
    "layers_block_type": ("layer_types",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "chunk_size": ("mamba_chunk_size",),
    "use_conv_bias": ("mamba_conv_bias",),
}
# Kinds of Nemotron-H layers: letters of its pattern, names of its lists (older ones too).
_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
_NEMOTRON_DEFAULT_KINDS = ("mamba", "moe", "attention", "mlp")


def _read_nemotron_h(fields: ConfigFields) -> Architecture:
    """Every layer is one branch: a mixer, attention, a feed-forward network or experts."""
    kinds = _nemotron_kinds(fields)
    function, mlp_bias, proj_bias = fields.text("mlp_hidden_act"), bias(fields.flag("mlp_bias")), bias(fields.flag("use_bias"))
    latent = fields.optional_size("moe_latent_size")
    reads = HIDDEN if latent is None else EXPERT_LATENT
    bodies: dict[str, Body] = {
        "mamba": Mamba2(
            fields.size("chunk_size"),
            fields.text("mamba_hidden_act"),
            in_bias=proj_bias,
            conv_bias=bias(fields.flag("use_conv_bias")),
            out_bias=proj_bias,
        ),
        "attention": Attention(Position.ELSEWHERE),
        "mlp": Mlp(Gate.PLAIN, function, mlp_bias),
        "moe": Experts(function, Gate.PLAIN, shared=SharedExpert.ADDED, shared_bias=mlp_bias, reads=reads),
    }
    names = {"mamba": "mamba", "attention": "attn", "mlp": "mlp", "moe": "mlp"}
    layers = tuple(Layer((Branch(names[kind], bodies[kind], NormKind.RMS),)) for kind in kinds)
    dims = decoder_dims(
        fields,
        ffn=fields.size("intermediate_size"),
        head_dim=fields.size("head_dim"),
        kv_heads=fields.optional_size("num_key_value_heads"),
    )
    dims |= {
        SSM_HEADS: fields.size("mamba_num_heads"),
        SSM_HEAD_DIM: fields.size("mamba_head_dim"),
        SSM_GROUPS: fields.size("n_groups"),
        SSM_STATE: fields.size("ssm_state_size"),
        CONV_KERNEL: fields.size("conv_kernel"),
    }
    if "moe" in kinds:
        width, shared_width = fields.size("moe_intermediate_size"), fields.size("moe_shared_expert_intermediate_size")
        dims |= expert_dims(fields, width=width, shared_width=shared_width)
        dims |= {} if latent is None else {EXPERT_LATENT: latent}
    return Architecture(dims, layers, rms_head(fields))


def _nemotron_kinds(fields: ConfigFields) -> tuple[str, ...]:
    """Kind of each layer: as listed, else by the letters of the pattern; their number is the number of layers."""
    listed = fields.optional_words("layers_block_type", length=None, allowed=tuple(_NEMOTRON_WORDS))
    if listed is not None:
        return tuple(_NEMOTRON_WORDS[word] for word in listed)
    pattern = fields.optional_text("hybrid_override_pattern")
    if pattern is None:
        return _NEMOTRON_DEFAULT_KINDS
    unknown = sorted(set(pattern) - set(_NEMOTRON_LETTERS))
    if unknown or not pattern:
        raise ModelError(
            f"{fields.family}: 'hybrid_override_pattern' must be made of known letters",
            given=unknown or pattern,
            allowed=" ".join(_NEMOTRON_LETTERS),
        )
    return tuple(_NEMOTRON_LETTERS[letter] for letter in pattern)


NEMOTRON_FAMILIES = (Family("nemotron_h", ("NemotronHForCausalLM",), _read_nemotron_h, _NEMOTRON_DEFAULTS, _NEMOTRON_ALIASES),)
