"""The tokens of the fullest rank under uneven routing, as the checker counts them by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.experts import BALANCED, ExpertRouting, HistogramRouting, PowerLawRouting, expert_placement
from meshwright.solver.problem.request import PlanRequest, TrainingRequest, TrainingWorkload
from meshwright.solver.verify.training.mixers import fullest_share

HALVES = (3.0, 1.0, 0.0, 0.0)


def request(routing: ExpertRouting, *, experts: int, top_k: int) -> PlanRequest:
    graph = model("qwen3-30b-a3b")
    graph = replace(graph, dims={**graph.dims, "experts": experts, "top_k": top_k})
    cluster = Cluster((NodeGroup("node", node_type("dgx-h100"), 1),))
    return TrainingRequest(graph, cluster, TrainingWorkload("training", global_batch=8, seq_len=128, experts=routing))


@pytest.mark.parametrize(
    ("counts", "top_k", "share"),
    [
        (HALVES, 1, 2.0),
        ((1.0, 1.0, 1.0, 1.0), 1, 1.0),
        ((1.0, 0.0, 1.0, 2.0), 1, 1.5),
        ((9.0, 1.0, 1.0, 1.0), 2, 4 / 3),
        (HALVES, 3, 4 / 3),
    ],
)
def test_a_histogram_by_hand(counts: tuple[float, ...], top_k: int, share: float) -> None:
    asked = request(HistogramRouting("histogram", counts), experts=len(counts), top_k=top_k)
    assert fullest_share(asked, 2) == pytest.approx(share)


@pytest.mark.parametrize("routing", [BALANCED, *(PowerLawRouting("power_law", exponent) for exponent in (0.0, 0.5, 1.5, 4.0))])
@pytest.mark.parametrize("top_k", [1, 8])
def test_the_cost_model_counts_the_same(routing: ExpertRouting, top_k: int) -> None:
    counted = expert_placement(routing, experts=64, top_k=top_k, ep=8).skew
    assert fullest_share(request(routing, experts=64, top_k=top_k), 8) == pytest.approx(counted)
