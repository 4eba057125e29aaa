"""Sums of input gradients over tp, under the weight gradient that Megatron-LM computes meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.catalog import model
from costmodels.cluster import group_topology
from costmodels.collectives import Collective, collective_s
from costmodels.hardware import node_type
from costmodels.implementation import GatedProducts, Implementation, TensorOverlap
from costmodels.units import DType
from solver.block_problem import Criterion, build_block_problem
from solver.block_setting import BlockSetting
from solver.intra_op import evaluate, frontier
from solver.request import Launcher, Search, Space
from solver.sharding import REPLICATED
from solver.training.implementation import launcher_implementation
from tests.solver.training.test_planner import llama_8b

GRAPH = model("llama-3.1-8b")


def costs(overlap: TensorOverlap, *, link_share: float = 1.0, gated: GatedProducts = GatedProducts.ONE) -> tuple[float, float]:
    """Forward and whole time of a layer over tp 8, its links slowed to a share."""
    cluster = llama_8b().cluster
    node = cluster.groups[0].node
    slowed = replace(node, intra=replace(node.intra, bytes_per_s=node.intra.bytes_per_s * link_share))
    cluster = replace(cluster, groups=(replace(cluster.groups[0], node=slowed),))
    setting = BlockSetting(
        device=node_type("dgx-h100").device,
        tp_topology=group_topology(cluster, n=8, stride=1),
        ring_topology=group_topology(cluster, n=1, stride=8),
        dtype=DType.BF16,
        gradient_dtype=DType.FP32,
        microbatch=1,
        seq_len=8192,
        boundary=REPLICATED,
        space=Space.LAUNCHABLE,
        implementation=Implementation(tensor_overlap=overlap, gated=gated),
    )
    built = build_block_problem(GRAPH, GRAPH.block("layer"), setting)
    assert built is not None
    cost = evaluate(built.problem, frontier(built.problem)[0].choice)
    return float(cost[Criterion.FORWARD_S]), float(cost[Criterion.TIME_S])


def test_only_backward_gets_shorter() -> None:
    exposed, overlapped = (costs(overlap) for overlap in TensorOverlap)
    assert overlapped[0] == exposed[0]
    assert overlapped[1] < exposed[1]


def test_what_a_weight_gradient_does_not_cover_still_shows() -> None:
    exposed, overlapped = (costs(overlap, link_share=0.02) for overlap in TensorOverlap)
    hidden, hidden_by_fast_links = (
        pair[0][1] - pair[1][1] for pair in ((exposed, overlapped), tuple(costs(overlap) for overlap in TensorOverlap))
    )
    # The weight gradients bound what is hidden, however long the sums take.
    assert hidden_by_fast_links < hidden < 0.1 * exposed[1]


def test_megatron_overlaps_and_the_others_do_not() -> None:
    found = {launcher: launcher_implementation(Search(launcher=launcher)).tensor_overlap for launcher in Launcher}
    assert found.pop(Launcher.MEGATRON_LM) is TensorOverlap.WEIGHT_GRADIENT
    assert set(found.values()) == {TensorOverlap.NONE}


def test_two_modules_that_read_one_input_sum_two_gradients_of_it() -> None:
    one, two = (costs(TensorOverlap.NONE, gated=gated) for gated in GatedProducts)
    assert two[0] == one[0]
    topology = group_topology(llama_8b().cluster, n=8, stride=1)
    size = 8192 * GRAPH.dims["hidden"] * DType.BF16.size_bytes
    assert two[1] - one[1] == pytest.approx(float(collective_s(Collective.ALL_REDUCE, size, topology)))
