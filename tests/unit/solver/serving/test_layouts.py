from __future__ import annotations

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.experts import HistogramRouting, PowerLawRouting
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType
from meshwright.solver.problem.search import Search
from meshwright.solver.serving.engines.layouts import (
    Layout,
    holds_copies,
    layouts,
    pipeline_stages,
    require_routable,
    runs,
    served_shape,
)
from tests.unit.solver.serving.requests import cluster, serving_request


def found(name: str, engine: ServingEngine = ServingEngine.VLLM, nodes: int = 1, node: str = "dgx-b200") -> list[Layout]:
    on = cluster(node=node, nodes=nodes, per_node=8)
    return list(layouts(serving_request(model_name=name, on=on, precision=DType.FP8, search=Search(engine=engine))))


def test_dense_models_have_neither_experts_nor_attention_groups() -> None:
    grids = {layout.grid for layout in found("llama-3.1-70b")}
    assert grids == {RankGrid(tp=tp) for tp in (1, 2, 4, 8)}


def test_experts_may_fill_several_nodes() -> None:
    grids = {layout.grid for layout in found("deepseek-v3", nodes=2)}
    assert RankGrid(attention_dp=16, ep=16) in grids
    assert RankGrid(tp=2, attention_dp=8, ep=16) in grids
    assert RankGrid(tp=8) in grids
    assert RankGrid(kvp=8, ep=8) in grids
    assert all(grid.ranks <= 16 and grid.ep in (1, grid.ranks) for grid in grids)
    assert all(layout.pp == 1 or layout.grid.attention_dp == 1 for layout in found("deepseek-v3", nodes=2))


def test_ranks_fill_powers_of_two_of_a_single_node() -> None:
    """72 devices: 64 hold what 128 heads or 256 experts divide among; on two nodes replicas of 64 would lie on both."""

    def on(nodes: int, name: str) -> set[RankGrid]:
        racks = cluster(node="gb200-nvl72", nodes=nodes, per_node=72)
        asked = serving_request(model_name=name, on=racks, precision=DType.FP8, search=Search())
        return {layout.grid for layout in layouts(asked)}

    assert RankGrid(tp=8, kvp=8) in on(1, "llama-3.1-405b")
    assert {RankGrid(attention_dp=64, ep=64), RankGrid(tp=4, attention_dp=16, ep=64)} <= on(1, "deepseek-v3")
    assert RankGrid(attention_dp=64, ep=64) not in on(2, "deepseek-v3")


def test_engines_have_their_own_rules() -> None:
    dense = served_shape(model("llama-3.1-70b"), WeightFormat.BF16)
    experts = served_shape(model("deepseek-v3"), WeightFormat.FP8_BLOCK)
    half_spread = RankGrid(tp=8, ep=4)
    assert not runs(ServingEngine.VLLM, half_spread, experts)
    assert runs(ServingEngine.SGLANG, half_spread, experts)
    assert runs(ServingEngine.TENSORRT_LLM, half_spread, experts)
    some_groups = RankGrid(tp=2, attention_dp=4, ep=8)
    assert runs(ServingEngine.VLLM, some_groups, experts)
    assert not runs(ServingEngine.TENSORRT_LLM, some_groups, experts)
    along = RankGrid(kvp=8, ep=8)
    assert runs(ServingEngine.VLLM, along, experts)
    assert not runs(ServingEngine.SGLANG, along, experts)
    assert not runs(ServingEngine.VLLM, RankGrid(attention_dp=2), dense)
    assert not runs(ServingEngine.VLLM, RankGrid(tp=4, kvp=2), dense)
    assert runs(ServingEngine.VLLM, RankGrid(tp=8, kvp=8), dense)


def test_blocks_of_weights_are_never_cut() -> None:
    shape = served_shape(model("qwen3-235b-a22b"), WeightFormat.FP8_BLOCK)
    # Experts are 1536 wide: a twelfth of them is one block, an eighth is one and a half.
    assert not runs(ServingEngine.VLLM, RankGrid(tp=8), shape)
    assert runs(ServingEngine.VLLM, RankGrid(tp=4), shape)
    assert runs(ServingEngine.VLLM, RankGrid(tp=8, ep=8), shape)


@pytest.mark.parametrize("axis", ["ep", "attention_dp", "kvp", "tp"])
def test_restrictions_bind(axis: str) -> None:
    on = cluster(node="dgx-b200", per_node=8)
    request = serving_request(model_name="deepseek-v3", on=on, precision=DType.FP8, search=Search(**{axis: (8,)}))
    degrees = {getattr(layout.grid, axis) for layout in layouts(request)}
    assert degrees == {8}


def test_copies_of_experts_lie_evenly_or_not_at_all() -> None:
    assert holds_copies(RankGrid(tp=8, ep=8), experts=256, copies=32)
    assert not holds_copies(RankGrid(tp=8, ep=8), experts=256, copies=4)
    assert not holds_copies(RankGrid(tp=8), experts=256, copies=32)
    assert holds_copies(RankGrid(tp=8), experts=256, copies=0)


def test_routing_belongs_to_the_model() -> None:
    with pytest.raises(WorkloadError, match="not of this model"):
        require_routable(model("deepseek-v3"), HistogramRouting("histogram", (1.0, 2.0)))
    with pytest.raises(WorkloadError, match="no experts to route to"):
        require_routable(model("llama-3.1-8b"), PowerLawRouting("power_law", 1.0))
    require_routable(model("deepseek-v3"), PowerLawRouting("power_law", 1.0))


def test_layers_of_every_kind_count_in_a_pipeline() -> None:
    stages = pipeline_stages(model("deepseek-v3"), 4)
    assert [sum(span.count for span in stage if span.block.startswith("layer")) for stage in stages] == [15, 15, 16, 15]
