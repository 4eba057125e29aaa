"""Equal layers of two kinds in turn, each with shardings of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.models.catalog import model
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.problem.choices import Recompute, Space, System, TpOverlap
from meshwright.solver.problem.declared.constraints import WHOLE, FixedSharding
from meshwright.solver.problem.layer_kinds import with_layer_kinds
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import predict_training
from tests.support.flat_plans import flat
from tests.support.requests_given import resolved
from tests.unit.solver.training.planned import planned

T5 = read_huggingface_config({"model_type": "t5", "num_layers": 3, "num_decoder_layers": 4}, name="t5")


def asked(kinds: int = 2, *, memory_gb: float = 80.0, **search: Any) -> TrainingRequest:
    node = node_type("dgx-h100")
    node = replace(node, device=replace(node.device, memory_bytes=int(memory_gb * 1e9)))
    fields: dict[str, Any] = {"tp": (4,), "pp": (1,), "cp": (1,), "microbatch": (4,), "zero_stages": (1,)}
    fields |= {"space": Space.FREE, "schedules": (Schedule.ONE_F_ONE_B,), "layer_kinds": kinds}
    fields |= {"recompute": (Recompute.NONE,), "tp_overlap": (TpOverlap.EXPOSED,)}
    cluster = Cluster((NodeGroup("node", node, 1),))
    return TrainingRequest(
        model("llama-3.1-8b"), cluster, TrainingWorkload("training", 16, 4096), search=Search(**(fields | search))
    )


def test_layers_are_two_blocks_in_turn() -> None:
    graph = with_layer_kinds(model("llama-3.1-8b"), 2)
    assert graph.layers[:4] == ("embedding", "layer", "layer~2", "layer") and graph.layers[-2:] == ("layer~2", "head")
    assert graph.parameters() == model("llama-3.1-8b").parameters()
    assert with_layer_kinds(graph, 2) == graph, "told apart once"
    assert with_layer_kinds(model("llama-3.1-8b"), 1) == model("llama-3.1-8b")
    hybrid = with_layer_kinds(model("mixtral-8x7b"), 2)
    assert {block.name for block in hybrid.blocks} == {*hybrid.layers}


def test_each_kind_has_its_own_shardings_where_that_is_faster() -> None:
    """Half of the layers keep what a faster sharding keeps, where not all can."""
    one, two = planned(asked(1, memory_gb=TIGHT_GB)), planned(asked(2, memory_gb=TIGHT_GB))
    assert step_s(two) < 0.99 * step_s(one)
    of = {name: [each.strategy for each in flat(two).shardings if each.block == name] for name in ("layer", "layer~2")}
    assert of["layer"] != of["layer~2"]
    assert "equal layers of 2 kinds in turn" in two.certificate.space
    assert step_s(predict_training(asked(2, memory_gb=TIGHT_GB), two)) == step_s(two)


TIGHT_GB = 65.0


def step_s(plan: Any) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return float(plan.predicted.step_time_s)


def test_a_stored_request_means_the_same_again() -> None:
    request = asked()
    document = request_document(request)
    assert document["search"]["layer_kinds"] == 2
    assert resolved(document).model.layers == request.model.layers
    assert "layer_kinds" not in request_document(asked(1))["search"]


@pytest.mark.parametrize(
    ("search", "match"),
    [
        ({"space": Space.LAUNCHABLE}, "layer_kinds: 2"),
        ({"system": System.GALVATRON}, "layer_kinds: 2"),
        ({"constraints": (FixedSharding("layer/*", WHOLE),)}, "constraints"),
    ],
)
def test_they_are_of_the_free_space_without_constraints(search: dict[str, Any], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        planned(asked(**search))


def test_layers_that_branch_are_of_one_kind() -> None:
    with pytest.raises(WorkloadError, match="branches"):
        replace(asked(), model=T5)
