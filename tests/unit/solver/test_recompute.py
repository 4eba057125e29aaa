"""The tensors that each recompute mode keeps, on real layers."""

from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.implementation import SelectiveRecompute
from meshwright.solver.blocks.recompute import kept_tensors, recomputable
from meshwright.solver.problem.choices import Recompute


def test_selective_runs_attention_and_norms_of_a_llama_layer_again() -> None:
    layer = model("llama-3.1-8b").block("layer")
    kept = kept_tensors(layer, Recompute.SELECTIVE)
    assert kept_tensors(layer, Recompute.NONE).tensors - kept.tensors == {"attn_normed", "mlp_normed"}
    assert "context" in kept.tensors, "the projection behind attention keeps what it reads"
    assert kept.reruns == {"attn_norm", "mlp_norm", "attention"}


@pytest.mark.parametrize("mode", [Recompute.SELECTIVE, Recompute.FINE_GRAINED])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2-xl", "gemma-2-9b", "phi-3-mini", "qwen3-30b-a3b", "deepseek-v3"])
def test_what_is_dropped_can_be_rebuilt_from_what_is_kept(name: str, mode: Recompute) -> None:
    for block in model(name).blocks:
        kept = kept_tensors(block, mode)
        have = set(kept.tensors) | {"x", "ids"}
        for operator in block.operators:  # in order of execution
            if operator.name in kept.reruns:
                assert all(tensor.name in have for tensor in operator.inputs), operator.name
                have |= {tensor.name for tensor in operator.outputs}
        assert kept_tensors(block, Recompute.NONE).tensors <= have | {"x"}


def test_fine_grained_drops_norms_expert_activations_and_what_latents_expand_to() -> None:
    graph = model("deepseek-v3")
    layer = next(block for block in graph.blocks if any("experts" in op.name for op in block.operators))
    kept = kept_tensors(layer, Recompute.FINE_GRAINED)
    dropped = kept_tensors(layer, Recompute.NONE).tensors - kept.tensors
    assert {"attn_normed", "mlp_normed", "kv_latent_normed", "k_rot", "v", "experts_act_out"} <= dropped
    assert "context" in kept.tensors, "attention itself does not run again"
    assert "k_rope" in kept.tensors, "the rotation that runs again reads it"
    assert {"kv_b_proj", "rope", "experts_act"} <= kept.reruns
    assert not {"attention", "q_a_proj", "kv_a_proj", "experts_gate_up_proj"} & kept.reruns


def test_embedding_and_head_are_not_recomputed() -> None:
    graph = model("llama-3.1-8b")
    assert [block.name for block in graph.blocks if recomputable(block)] == ["layer"]


def test_selective_saves_two_norms() -> None:
    graph = model("llama-3.1-8b")
    block = graph.block("layer")
    kept = kept_tensors(block, Recompute.SELECTIVE)
    sizes = {**graph.dims, BATCH: 1, SEQ: 1}
    bytes_of = {t.name: 2 * t.elements(sizes) for op in block.operators for t in op.outputs}
    dropped = sum(bytes_of[name] for name in kept_tensors(block, Recompute.NONE).tensors - kept.tensors)
    assert dropped == 2 * 2 * graph.dims["hidden"]


def test_every_second_product_reruns_vectors_and_half_of_the_products() -> None:
    graph = model("llama-3.1-8b")
    block = graph.block("layer")
    kept = kept_tensors(block, Recompute.SELECTIVE, SelectiveRecompute.EVERY_SECOND_PRODUCT)
    sizes = {**graph.dims, BATCH: 1, SEQ: 128}
    # q, k, v, o, gate, up, down: k, o and up run again.
    assert {"q", "v", "gate", "mlp_out", "context"} <= kept.tensors
    assert not {"k", "attn_out", "up", "attn_normed"} & kept.tensors
    shares = {operator.name: kept.rerun_share(operator, sizes) for operator in block.operators}
    assert shares["attention"] == shares["down_proj"] == 0
    assert shares["attn_norm"] == shares["rope"] == shares["act"] == shares["o_proj"] == 1
    assert shares["gate_up_proj"] == 0.5
    assert shares["qkv_proj"] == pytest.approx(1 / 6)
