"""Sizes and habits of a decoder, read back from its graph."""

from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ExportError
from meshwright.solver.problem.launchers.decoders import FeedForward, LatentShape, MixtureShape, Norm, Positions, decoder_shape

COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


def read(**fields: object) -> object:
    return read_huggingface_config(COMMON | fields, name="tiny")


def test_llama() -> None:
    shape = decoder_shape(model("llama-3.1-8b"))
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.ffn, shape.vocab)
    assert sizes == (32, 4096, 32, 8, 128, 14336, 128256)
    assert (shape.gate, shape.norm, shape.positions) == (FeedForward.SWIGLU, Norm.RMS, Positions.ROTARY)
    assert not (shape.tied or shape.qk_norm or shape.qkv_bias or shape.linear_bias or shape.window or shape.oddities)


def test_gpt2() -> None:
    shape = decoder_shape(model("gpt2-xl"))
    assert (shape.gate, shape.norm, shape.positions, shape.n_positions) == (
        FeedForward.GELU,
        Norm.LAYER,
        Positions.LEARNED,
        1024,
    )
    assert shape.tied
    assert shape.qkv_bias
    assert shape.linear_bias
    assert not shape.oddities


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "olmo2", "intermediate_size": 128}, "norms come after"),
        ({"model_type": "gpt_neox", "intermediate_size": 128, "use_parallel_residual": True}, "side by side"),
        ({"model_type": "gemma2", "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}, "4 norms"),
        ({"model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": True}, "project_in"),
    ],
)
def test_what_a_standard_layer_has_not_is_said(fields: dict[str, object], said: str) -> None:
    assert said in " ".join(decoder_shape(read(**fields)).oddities)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "mamba2", "expand": 2, "head_dim": 32, "num_heads": 4, "state_size": 16, "n_groups": 1}, "decoders"),
        ({"model_type": "bert", "intermediate_size": 128}, "causal"),
    ],
)
def test_other_models_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        decoder_shape(read(**fields))  # type: ignore[arg-type]


def test_experts_and_latent_attention_are_read_back() -> None:
    mixtral = decoder_shape(
        read(model_type="mixtral", intermediate_size=128, num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2)
    )
    assert mixtral.mixture == MixtureShape(4, 2, 128, None, False, (True,) * mixtral.layers)
    assert mixtral.gate is FeedForward.SWIGLU
    deepseek = decoder_shape(
        read(
            model_type="deepseek_v3",
            intermediate_size=256,
            moe_intermediate_size=64,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_shared_experts=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_nope_head_dim=24,
            qk_rope_head_dim=8,
            v_head_dim=24,
        )
    )
    assert deepseek.mixture is not None
    assert (deepseek.mixture.experts, deepseek.mixture.shared_ffn, deepseek.mixture.in_layer[:2]) == (8, 64, (False, True))
    assert deepseek.latent == LatentShape(32, 16, 24, 8, 24)
    assert deepseek.oddities == ()
    assert deepseek.positions is Positions.ROTARY
