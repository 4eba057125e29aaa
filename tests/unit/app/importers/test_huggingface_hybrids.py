"""State-space models and hybrids: the graph and its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.files import FilesBeside
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import OperatorKind, forward_flops
from meshwright.solver.problem.graph import ModelGraph


def graph(document: dict[str, Any]) -> ModelGraph:
    return read_huggingface_config(document, name="model")


def names(model: ModelGraph, block: str) -> list[str]:
    return [operator.name for operator in model.block(block).operators]


def test_mamba2_layer_is_one_branch() -> None:
    model = graph({"model_type": "mamba2"})
    assert names(model, "layer") == ["mamba_norm", "in_proj", "conv", "scan", "ssm_norm", "out_proj", "mamba_residual"]
    assert model.block("layer").operator("scan").chunk == 256


def test_mamba2_projections_follow_the_survey() -> None:
    # Survey section 5.3: 2 b s d (2 d_inner + 2 ngroups n + h) in, 2 b s d_inner d out.
    model = graph({"model_type": "mamba2"})
    sizes = {**model.dims, BATCH: 2, SEQ: 512}
    layer = model.block("layer")
    d, inner, groups, state, heads = 4096, 8192, 8, 128, 128
    in_proj = 2 * 2 * 512 * d * (2 * inner + 2 * groups * state + heads)
    assert forward_flops(layer.operator("in_proj"), sizes) == in_proj
    assert forward_flops(layer.operator("out_proj"), sizes) == 2 * 2 * 512 * inner * d


def test_jamba_places_attention_and_experts_by_their_periods() -> None:
    model = graph({"model_type": "jamba", "num_hidden_layers": 8})
    assert model.layers[1:-1] == (
        "layer_mamba_dense",
        "layer_mamba_moe",
        "layer_mamba_dense",
        "layer_mamba_moe",
        "layer_full_dense",
        "layer_mamba_moe",
        "layer_mamba_dense",
        "layer_mamba_moe",
    )


def test_latent_experts_work_between_two_projections() -> None:
    changes = {"hybrid_override_pattern": "E*", "moe_latent_size": 1024, "n_routed_experts": 16}
    model = graph({"model_type": "nemotron_h", **changes})
    plain = graph({"model_type": "nemotron_h", **changes, "moe_latent_size": None})
    steps = names(model, "layer_moe")
    assert steps.index("latent_down") < steps.index("dispatch") < steps.index("combine") < steps.index("latent_up")
    dims, experts = model.dims, 16
    products = 2 * dims["hidden"] * 1024 - 2 * experts * dims["expert_ffn"] * (dims["hidden"] - 1024)
    assert model.parameters() - plain.parameters() == products


def test_nemotron_h_reads_its_pattern_letter_by_letter() -> None:
    model = graph({"model_type": "nemotron_h", "hybrid_override_pattern": "MM*-E", "num_hidden_layers": 99})
    assert model.layers[1:-1] == ("layer_mamba", "layer_mamba", "layer_full", "layer_dense", "layer_moe")
    assert names(model, "layer_dense") == ["mlp_norm", "up_proj", "act", "down_proj", "mlp_residual"]


def test_falcon_h1_mixer_and_attention_read_the_same_norm() -> None:
    layer = graph({"model_type": "falcon_h1"}).block("layer")
    assert layer.operator("in_proj").inputs == layer.operator("qkv_proj").inputs
    assert [tensor.name for tensor in layer.operator("attn_residual").inputs] == ["mamba_sum", "attn_out"]
    assert [tensor.name for tensor in layer.operator("mlp_norm").inputs] == ["attn_sum"]


def test_every_mixer_has_one_scan_and_one_convolution() -> None:
    for model_type in ("mamba2", "jamba", "nemotron_h", "falcon_h1"):
        model = graph({"model_type": model_type})
        for block in model.blocks:
            kinds = [operator.kind for operator in block.operators]
            assert kinds.count(OperatorKind.SCAN) == kinds.count(OperatorKind.CONVOLUTION)


def test_files_with_an_infinite_time_step_are_read(tmp_path: Path) -> None:
    text = '{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}'
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    document = FilesBeside(tmp_path).read("config.json")
    assert isinstance(document, dict)
    assert graph(document) == graph({"model_type": "mamba2"})


def test_zamba2_layers_share_transformer_blocks_in_turn() -> None:
    kinds = ["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid"]
    model = graph({"model_type": "zamba2", "num_hidden_layers": 6, "layers_block_type": kinds, "num_mem_blocks": 2})
    runs = [run.block for run in model.chain]
    assert runs[1:-1] == ["layer_mamba", "layer_hybrid0", "layer_hybrid1", "layer_mamba", "layer_reuse0", "layer_reuse1"]
    tied = {(block, operator) for block, operator, _ in model.tied_weights()}
    assert ("layer_reuse1", "qkv_proj") in tied
    assert not any("adapter" in operator or operator == "shared_proj" for _, operator in tied)
    assert [edge for edge in model.edges if edge[0] == 0] == [(0, 1), (0, 2), (0, 3), (0, 5), (0, 6)]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "heads that do not fill the mixer": ({"model_type": "mamba2", "num_heads": 100}, "add up to its width"),
    "unknown letter": ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "given: ['X']"),
    "empty pattern": ({"model_type": "nemotron_h", "hybrid_override_pattern": ""}, "'hybrid_override_pattern'"),
    "empty list": ({"model_type": "nemotron_h", "layers_block_type": []}, "'layers_block_type'"),
    "untied tables": ({"model_type": "zamba2", "tie_word_embeddings": False}, "unties the shared blocks too"),
    "layers left open": ({"model_type": "zamba2", "num_hidden_layers": 10}, "'layers_block_type' must say"),
    "heads of a fraction": ({"model_type": "zamba2", "num_attention_heads": 33}, "multiple of num_attention_heads"),
    "rank of text": ({"model_type": "jamba", "mamba_dt_rank": "low"}, "'mamba_dt_rank' has the wrong type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        graph(document)
    assert reason in str(refusal.value)
