"""Mixture-of-experts decoders and latent attention: the graph, its work and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import AttentionMask, forward_flops, matmul_groups, matmul_shape
from meshwright.solver.problem.graph import BlockRun, ModelGraph

DEEPSEEK_V3 = {"model_type": "deepseek_v3"}


def graph(document: dict[str, Any]) -> ModelGraph:
    return read_huggingface_config(document, name="model")


def sizes(model: ModelGraph, *, batch: int = 1, seq: int = 1) -> dict[str, int]:
    return {**model.dims, BATCH: batch, SEQ: seq}


def test_mixtral_layer_routes_between_norm_and_residual() -> None:
    layer = graph({"model_type": "mixtral"}).block("layer")
    names = [operator.name for operator in layer.operators]
    assert names[names.index("mlp_norm") :] == [
        "mlp_norm",
        "router",
        "route",
        "dispatch",
        "experts_gate_up_proj",
        "experts_act",
        "experts_down_proj",
        "combine",
        "mlp_residual",
    ]


def test_expert_work_is_that_of_the_chosen_experts() -> None:
    # Mixtral-8x7B: two of eight experts a token, each a SwiGLU of width 14336 (survey section 5.2 for one of them).
    model = graph({"model_type": "mixtral"})
    layer, local = model.block("layer"), sizes(model, batch=2, seq=64)
    names = ("experts_gate_up_proj", "experts_act", "experts_down_proj")
    flops = sum(forward_flops(layer.operator(name), local) for name in names)
    assert flops == 2 * (2 * 64) * (6 * 4096 * 14336 + 5 * 14336)
    assert matmul_shape(layer.operator("experts_gate_up_proj"), local) == (2 * 64 * 2, 2 * 14336, 4096)
    assert matmul_groups(layer.operator("experts_gate_up_proj"), local) == 8


def test_deepseek_v3_has_three_dense_layers_and_then_experts() -> None:
    model = graph(DEEPSEEK_V3)
    assert model.chain[1:-1] == (BlockRun("layer_dense", repeat=3), BlockRun("layer_moe", repeat=58))
    assert "shared_add" in {operator.name for operator in model.block("layer_moe").operators}


def test_deepseek_v3_activates_37_billion_parameters() -> None:
    # DeepSeek-V3 report (2024), abstract: 671B parameters, 37B activated for each token.
    model = graph(DEEPSEEK_V3)
    idle_experts = model.dims["experts"] - model.dims["top_k"]
    idle = 58 * idle_experts * 3 * model.dims["hidden"] * model.dims["expert_ffn"]
    assert 37e9 <= model.parameters() - idle < 38e9


def test_latent_attention_has_wide_keys_and_narrow_values() -> None:
    model = graph(DEEPSEEK_V3)
    attention = model.block("layer_moe").operator("attention")
    assert [tensor.dims[-1] for tensor in attention.inputs] == ["qk_head_dim", "qk_head_dim", "v_head_dim"]
    assert (model.dims["qk_head_dim"], model.dims["v_head_dim"]) == (192, 128)
    pairs = 8 * 9 / 2
    assert forward_flops(attention, sizes(model, seq=8)) == pytest.approx(pairs * 128 * 2 * (192 + 128))


def test_queries_without_a_latent_come_from_one_projection() -> None:
    layer = graph({**DEEPSEEK_V3, "q_lora_rank": None}).block("layer_moe")
    names = {operator.name for operator in layer.operators}
    assert "q_proj" in names
    assert not {"q_a_proj", "q_a_norm", "q_b_proj"} & names


def test_qwen2_moe_mixes_dense_and_expert_layers() -> None:
    model = graph({"model_type": "qwen2_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2})
    assert model.layers[1:-1] == ("layer_dense", "layer_moe", "layer_dense", "layer_moe")
    names = [operator.name for operator in model.block("layer_moe").operators]
    assert names[-7:-1] == [
        "shared_gate_up_proj",
        "shared_act",
        "shared_down_proj",
        "shared_gate",
        "shared_scale",
        "shared_add",
    ]


def test_llama4_rotates_in_chunks_and_every_fourth_layer_sees_everything() -> None:
    model = graph({"model_type": "llama4_text", "num_hidden_layers": 8})
    assert model.layers[1:5] == ("layer_chunked",) * 3 + ("layer_full",)
    chunked, full = model.block("layer_chunked"), model.block("layer_full")
    assert (chunked.operator("attention").mask, chunked.operator("attention").window) == (AttentionMask.CHUNKED, 8192)
    assert (full.operator("attention").mask, full.operator("attention").window) == (AttentionMask.CAUSAL, None)
    assert "rope" not in {operator.name for operator in full.operators}


def test_gpt_oss_attends_to_sinks_and_alternates_windows() -> None:
    model = graph({"model_type": "gpt_oss"})
    assert model.layers[1:3] == ("layer_sliding", "layer_full")
    assert [weight.name for weight in model.block("layer_full").operator("attention").weights] == ["sinks"]


def test_text_and_image_models_are_read_as_their_text_decoder() -> None:
    model = read_huggingface_config({"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}}, name="gemma-3")
    assert model.name == "gemma-3 (text decoder)"
    alone = read_huggingface_config({"model_type": "gemma3_text", "num_hidden_layers": 6}, name="gemma-3")
    assert model.blocks == alone.blocks


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more experts a token than there are": (
        {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
        "more experts than there are",
    ),
    "experts a token left open": ({"model_type": "deepseek_v2"}, "field 'num_experts_per_tok' is missing"),
    "layer indices of text": ({"model_type": "qwen3_moe", "mlp_only_layers": "all"}, "'mlp_only_layers'"),
    "too few switches": ({"model_type": "llama4_text", "no_rope_layers": [1]}, "'no_rope_layers'"),
    "text_config of a list": ({"model_type": "llava", "text_config": [1]}, "'text_config' must be an object"),
    "text_config inside a text_config": (
        {"model_type": "llava", "text_config": {"model_type": "llava"}},
        "must describe a text model",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        graph(document)
    assert reason in str(refusal.value)
