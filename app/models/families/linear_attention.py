"""Qwen3-Next and Qwen3.5 (text): gated delta networks, and full attention with an output gate in every fourth layer."""

from __future__ import annotations

from meshwright.app.models.architecture import Architecture, Body, Branch, Layer, NormKind
from meshwright.app.models.bodies.attention import Attention, OutputGate, QkNorm
from meshwright.app.models.bodies.experts import Experts, SharedExpert
from meshwright.app.models.bodies.mixers import GATES, GatedDeltaNet
from meshwright.app.models.config_fields import ConfigFields
from meshwright.app.models.families.family import FULL, Family, bias, gated_mlp, llama_dims, rms_head
from meshwright.app.models.families.moe import expert_dims
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import CONV_KERNEL, SSM_GROUPS, SSM_HEAD_DIM, SSM_HEADS, SSM_STATE

LINEAR = "linear_attention"

_COMMON = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "layer_types": None,
    "full_attention_interval": 4,
}
_QWEN3_NEXT_DEFAULTS = _COMMON | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "mlp_only_layers": None,
}
_QWEN3_5_DEFAULTS = _COMMON | {
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
_QWEN3_5_MOE_DEFAULTS = _COMMON | {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}


def _read_qwen3_next(fields: ConfigFields) -> Architecture:
    """Experts in every ``decoder_sparse_step``-th layer that is not among ``mlp_only_layers``."""
    step, mlp_only = fields.size("decoder_sparse_step"), fields.optional_indices("mlp_only_layers") or frozenset()
    has_experts = fields.count("num_experts") > 0
    sparse = tuple(has_experts and (i + 1) % step == 0 and i not in mlp_only for i in range(fields.layers()))
    dims = _dims(fields, ffn=fields.size("intermediate_size"))
    return _architecture(fields, dims | (_expert_dims(fields) if any(sparse) else {}), sparse)


def _read_qwen3_5(fields: ConfigFields) -> Architecture:
    return _architecture(fields, _dims(fields, ffn=fields.size("intermediate_size")), (False,) * fields.layers())


def _read_qwen3_5_moe(fields: ConfigFields) -> Architecture:
    dims = _dims(fields, ffn=fields.size("moe_intermediate_size")) | _expert_dims(fields)
    return _architecture(fields, dims, (True,) * fields.layers())


def _architecture(fields: ConfigFields, dims: dict[str, int], sparse: tuple[bool, ...]) -> Architecture:
    attention_bias = bias(fields.flag("attention_bias"))
    full = Attention(qkv_bias=attention_bias, out_bias=attention_bias, qk_norm=QkNorm.PER_HEAD, output_gate=OutputGate.SIGMOID)
    function = fields.text("hidden_act")
    mixers: dict[str, Body] = {FULL: full, LINEAR: GatedDeltaNet(function)}
    experts, dense = Experts(function, shared=SharedExpert.GATED), gated_mlp(fields)
    layers = tuple(
        Layer(
            (
                Branch("attn", mixers[kind], NormKind.RMS),
                Branch("mlp", experts if is_sparse else dense, NormKind.RMS),
            )
        )
        for kind, is_sparse in zip(_kinds(fields, len(sparse)), sparse, strict=True)
    )
    return Architecture(dims, layers, rms_head(fields))


def _kinds(fields: ConfigFields, n_layers: int) -> tuple[str, ...]:
    listed = fields.optional_words("layer_types", length=n_layers, allowed=(FULL, LINEAR))
    if listed is not None:
        return listed
    interval = fields.size("full_attention_interval")
    return tuple(LINEAR if (i + 1) % interval else FULL for i in range(n_layers))


def _dims(fields: ConfigFields, *, ffn: int) -> dict[str, int]:
    heads, groups = fields.size("linear_num_value_heads"), fields.size("linear_num_key_heads")
    if heads % groups:
        raise ModelError(
            f"{fields.family}: value heads of linear attention must be a multiple of its key heads",
            given={"linear_num_value_heads": heads, "linear_num_key_heads": groups},
        )
    attention = llama_dims(fields, ffn=ffn)
    return attention | {
        SSM_HEADS: heads,
        SSM_HEAD_DIM: fields.size("linear_value_head_dim"),
        SSM_GROUPS: groups,
        SSM_STATE: fields.size("linear_key_head_dim"),
        CONV_KERNEL: fields.size("linear_conv_kernel_dim"),
        GATES: 2,
    }


def _expert_dims(fields: ConfigFields) -> dict[str, int]:
    return expert_dims(
        fields, width=fields.size("moe_intermediate_size"), shared_width=fields.size("shared_expert_intermediate_size")
    )


LINEAR_ATTENTION_FAMILIES = (
    Family("qwen3_next", ("Qwen3NextForCausalLM",), _read_qwen3_next, _QWEN3_NEXT_DEFAULTS),
    Family("qwen3_5_text", ("Qwen3_5ForCausalLM",), _read_qwen3_5, _QWEN3_5_DEFAULTS),
    Family("qwen3_5_moe_text", ("Qwen3_5MoeForCausalLM",), _read_qwen3_5_moe, _QWEN3_5_MOE_DEFAULTS),
)
