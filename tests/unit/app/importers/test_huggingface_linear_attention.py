"""Gated delta networks and sparse latent attention: the graph and its work."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.models.bodies.mixers import CHUNK
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import forward_flops
from meshwright.solver.problem.graph import BlockRun, ModelGraph


def graph(document: dict[str, Any]) -> ModelGraph:
    return read_huggingface_config(document, name="model")


def names(model: ModelGraph, block: str) -> list[str]:
    return [operator.name for operator in model.block(block).operators]


def test_every_fourth_layer_of_qwen3_next_attends_to_all() -> None:
    model = graph({"model_type": "qwen3_next"})
    assert model.chain[1:3] == (BlockRun("layer_linear", repeat=3), BlockRun("layer_full"))
    assert names(model, "layer_linear")[:6] == ["attn_norm", "in_proj", "conv", "delta_rule", "linear_norm", "out_proj"]
    assert "attn_gate" in names(model, "layer_full")


def test_a_delta_rule_does_the_work_of_its_chunks() -> None:
    """Yang et al. 2024, section 3.3, for each chunk and head: K K^T, W, Q K^T (l l n), U and the scores' product (l l p), and
    with the state what the keys take back, what queries read, what keys write (l n p)."""
    model = graph({"model_type": "qwen3_next"})
    tokens, heads, n, p, chunk = 512, 32, 128, 128, CHUNK
    chunks = tokens // chunk
    each = 2 * chunk * chunk * (3 * n + 2 * p) + 2 * chunk * n * p * 3
    passed_on = 2 * n * p
    rule = model.block("layer_linear").operator("delta_rule")
    assert forward_flops(rule, {**model.dims, BATCH: 1, SEQ: tokens}) == pytest.approx(chunks * heads * (each + passed_on))


def test_the_gate_of_an_output_is_as_wide_as_its_heads() -> None:
    model = graph({"model_type": "qwen3_5_text"})
    gate = model.block("layer_full").operator("attn_gate")
    assert [tensor.name for tensor in gate.inputs] == ["q_gate", "context"]
    assert gate.inputs[0].dims == gate.inputs[1].dims == gate.outputs[0].dims


def test_glm_layers_have_indexers_where_they_are_not_shared() -> None:
    model = graph({"model_type": "glm_moe_dsa", "num_hidden_layers": 6, "index_topk_pattern": "FSFSSS"})
    assert [run.block for run in model.chain[1:-1]] == [
        "layer_dsa_dense",
        "layer_mla_dense",
        "layer_dsa_dense",
        "layer_mla_moe",
    ]
    assert "index_q_proj" in names(model, "layer_dsa_dense")
    assert "index_q_proj" not in names(model, "layer_mla_dense")


def test_indexers_learn_nothing_so_backward_needs_nothing_of_them() -> None:
    layer = graph({"model_type": "glm_moe_dsa"}).block("layer_dense")
    assert all(operator.saved == () for operator in layer.operators if operator.name.startswith("index"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "key heads that do not divide": ({"model_type": "qwen3_next", "linear_num_key_heads": 5}, "multiple of its key heads"),
    "unknown layer": ({"model_type": "qwen3_5_text", "layer_types": ["mystery"] * 32}, "'layer_types' has unknown entries"),
    "short pattern": ({"model_type": "glm_moe_dsa", "index_topk_pattern": "FS"}, "a letter for each layer"),
    "unknown letter": ({"model_type": "glm_moe_dsa", "index_topk_pattern": "X" * 78}, "a letter for each layer"),
    "unknown indexer": ({"model_type": "glm_moe_dsa", "indexer_types": ["own"] * 78}, "'indexer_types' has unknown entries"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_config_is_refused_with_a_reason(case: str) -> None:
    document, reason = REFUSED[case]
    with pytest.raises(ModelError) as refusal:
        graph(document)
    assert reason in str(refusal.value)
