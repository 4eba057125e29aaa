"""The operators that run where the experts are, and the tokens that travel to them."""

from __future__ import annotations

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.experts import expert_region
from meshwright.costmodels.model.operators import parameters
from meshwright.solver.problem.graph import Block

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
SIZES = {"batch": 1, "seq": 32, "top_k": 2, "hidden": 64, "expert_ffn": 96, "experts": 8}


def layer() -> Block:
    graph = read_huggingface_config(MIXTRAL, name="mixtral")
    return graph.block(graph.layers[1])


def test_the_region_is_the_grouped_products_and_what_lies_between() -> None:
    region = expert_region(layer().operators)
    assert region.dims == {"experts"}
    assert region.operators == {"experts_gate_up_proj", "experts_act", "experts_down_proj"}
    assert not region.operators & {"router", "route", "dispatch", "combine"}


def test_rows_travel_once_each_way() -> None:
    region = expert_region(layer().operators)
    names = [name for name, _ in region.exchanged]
    assert sorted(names) == ["combine", "dispatch"]
    # Each row of 64 numbers goes to two experts.
    assert [tensor.elements(SIZES) for _, tensor in region.exchanged] == [32 * 2 * 64] * 2


def test_a_rank_holds_its_share_of_the_experts_and_all_its_rows() -> None:
    region = expert_region(layer().operators)
    routed = next(operator for operator in layer().operators if operator.routed_dims)
    local = region.local_sizes(routed, SIZES, ep=4)
    assert parameters(routed, local) * 4 == parameters(routed, SIZES)
    assert local["seq"] == SIZES["seq"]
    assert region.local_sizes(routed, SIZES, ep=4, load=1.5)["seq"] == 48


def test_other_operators_are_untouched() -> None:
    region = expert_region(layer().operators)
    router = next(operator for operator in layer().operators if operator.name == "router")
    assert region.local_sizes(router, SIZES, ep=4, load=2.0) == SIZES


def test_a_dense_layer_has_no_region() -> None:
    graph = read_huggingface_config({**MIXTRAL, "model_type": "llama"}, name="dense")
    region = expert_region(graph.block(graph.layers[1]).operators)
    assert not region.operators and not region.exchanged and not region.dims
