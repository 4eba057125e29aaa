"""Sums of input gradients over tp, under the weight gradient that Megatron-LM computes meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import group_topology
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.experts import expert_region
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import GatedProducts, Implementation, TensorOverlap
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.blocks.recompute import chunk_buffer_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import (
    Criterion,
    TensorCommunication,
    build_block_problem,
    evaluate,
    frontier,
    kept_in,
)
from meshwright.solver.blocks.tp_strategies import REPLICATED, Spec, sharded
from meshwright.solver.problem.choices import OVER_MEGATRON_CORE, Launcher, Space, StageDegrees, System, TpOverlap
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.space.candidates import families
from meshwright.solver.training.space.implementation import launcher_implementation
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.planner import llama_8b, plan_of

GRAPH = model("llama-3.1-8b")


BESIDE_PRODUCTS = (TensorOverlap.NONE, TensorOverlap.WEIGHT_GRADIENT)


def setting(
    overlap: TensorOverlap,
    *,
    link_share: float = 1.0,
    gated: GatedProducts = GatedProducts.ONE,
    boundary: Spec = REPLICATED,
    recipe: MatmulRecipe = MatmulRecipe.WORKING,
) -> BlockSetting:
    """A layer over tp 8, its links slowed to a share."""
    cluster = llama_8b().cluster
    node = cluster.groups[0].node
    slowed = replace(node, intra=replace(node.intra, bytes_per_s=node.intra.bytes_per_s * link_share))
    cluster = replace(cluster, groups=(replace(cluster.groups[0], node=slowed),))
    return BlockSetting(
        device=node_type("dgx-h100").device,
        tp_topology=group_topology(cluster, n=8, stride=1),
        ring_topology=group_topology(cluster, n=1, stride=8),
        dtype=DType.BF16,
        gradient_dtype=DType.FP32,
        microbatch=1,
        seq_len=8192,
        boundary=boundary,
        space=Space.LAUNCHABLE,
        implementation=Implementation(tensor_overlap=overlap, gated=gated),
        recipe=recipe,
    )


def vector(at: BlockSetting, block: str = "layer") -> list[float]:
    """Costs of the fastest sharding of a block."""
    built = build_block_problem(GRAPH, GRAPH.block(block), at)
    assert built is not None
    return list(evaluate(built.problem, frontier(built.problem)[0].choice))


def costs(overlap: TensorOverlap, **changes: Any) -> tuple[float, float]:
    """Forward and whole time of a layer."""
    cost = vector(setting(overlap, **changes))
    return float(cost[Criterion.FORWARD_S]), float(cost[Criterion.TIME_S])


def test_only_backward_gets_shorter() -> None:
    exposed, overlapped = (costs(overlap) for overlap in BESIDE_PRODUCTS)
    assert overlapped[0] == exposed[0]
    assert overlapped[1] < exposed[1]


def test_what_a_weight_gradient_does_not_cover_still_shows() -> None:
    exposed, overlapped = (costs(overlap, link_share=0.02) for overlap in BESIDE_PRODUCTS)
    hidden, hidden_by_fast_links = (
        pair[0][1] - pair[1][1] for pair in ((exposed, overlapped), tuple(costs(overlap) for overlap in BESIDE_PRODUCTS))
    )
    # The weight gradients bound what is hidden, however long the sums take.
    assert hidden_by_fast_links < hidden < 0.1 * exposed[1]


def test_megatron_overlaps_and_the_others_do_not() -> None:
    found = {launcher: launcher_implementation(Search(launcher=launcher)).tensor_overlap for launcher in Launcher}
    of_megatron = {found.pop(launcher) for launcher in OVER_MEGATRON_CORE}
    assert of_megatron == {TensorOverlap.WEIGHT_GRADIENT}
    assert set(found.values()) == {TensorOverlap.NONE}


def test_two_modules_that_read_one_input_sum_two_gradients_of_it() -> None:
    one, two = (costs(TensorOverlap.NONE, gated=gated) for gated in GatedProducts)
    assert two[0] == one[0]
    topology = group_topology(llama_8b().cluster, n=8, stride=1)
    size = 8192 * GRAPH.dims["hidden"] * DType.BF16.size_bytes
    assert two[1] - one[1] == pytest.approx(float(collective_s(Collective.ALL_REDUCE, size, topology)))


CHUNKED = (TensorOverlap.USERBUFFERS, TensorOverlap.SYMMETRIC_MEMORY)


@pytest.mark.parametrize("overlap", CHUNKED)
def test_chunks_hide_communication_in_both_passes(overlap: TensorOverlap) -> None:
    sequence = sharded("seq")
    plain = costs(TensorOverlap.WEIGHT_GRADIENT, boundary=sequence)
    chunked = costs(overlap, boundary=sequence)
    assert chunked[0] < plain[0]
    assert chunked[1] - chunked[0] < plain[1] - plain[0]


@pytest.mark.parametrize("overlap", CHUNKED)
def test_chunks_never_take_less_than_the_products_alone(overlap: TensorOverlap) -> None:
    fast, slow = (vector(setting(overlap, boundary=sharded("seq"), link_share=share)) for share in (1.0, 0.02))
    alone = [cost[Criterion.TIME_S] - cost[Criterion.TP_COMM_S] for cost in (fast, slow)]
    assert alone[0] == pytest.approx(alone[1])
    assert 0 < fast[Criterion.TP_COMM_S] < slow[Criterion.TP_COMM_S]


def test_what_is_summed_by_all_reduce_is_not_cut() -> None:
    assert costs(TensorOverlap.USERBUFFERS) == costs(TensorOverlap.WEIGHT_GRADIENT)
    assert costs(TensorOverlap.SYMMETRIC_MEMORY) == costs(TensorOverlap.NONE)


def test_the_vocabulary_is_not_cut() -> None:
    for block in ("embedding", "head"):
        plain, chunked = (
            vector(setting(overlap, boundary=sharded("seq")), block)
            for overlap in (TensorOverlap.NONE, TensorOverlap.SYMMETRIC_MEMORY)
        )
        assert plain == chunked


def test_weight_gradients_in_a_low_format_hide_less() -> None:
    slow_links = {"boundary": sharded("seq"), "link_share": 0.1}
    added = []
    for recipe in (MatmulRecipe.WORKING, MatmulRecipe.FP8_DELAYED):
        shown = vector(setting(TensorOverlap.NONE, recipe=recipe, **slow_links))[Criterion.TP_COMM_S]
        added.append(shown - vector(setting(TensorOverlap.WEIGHT_GRADIENT, recipe=recipe, **slow_links))[Criterion.TP_COMM_S])
    assert added[1] < added[0]


def test_buffers_lie_beside_what_the_framework_takes() -> None:
    of_stream = 8192 * GRAPH.dims["hidden"] * 2.0
    held = [chunk_buffer_bytes(GRAPH, setting(overlap, boundary=sharded("seq"))) for overlap in TensorOverlap]
    assert held == [0.0, 0.0, 12 * of_stream, 2 * of_stream / 8]


def searched(*ways: TpOverlap, launcher: Launcher = Launcher.MEGATRON_LM, **space: Any) -> Plan:
    request = llama_8b(search=Search(launcher=launcher, tp=(8,), tp_overlap=ways, **space))
    return plan_of(request)


@pytest.mark.parametrize("launcher", [Launcher.MEGATRON_LM, Launcher.TORCHTITAN])
def test_a_choice_of_both_is_the_better_of_the_two(launcher: Launcher) -> None:
    plans = [searched(*ways, launcher=launcher) for ways in ((TpOverlap.EXPOSED,), (TpOverlap.CHUNKED,), ())]
    exposed, chunked, best = (plan.certificate.objective for plan in plans)
    assert exposed is not None and chunked is not None and best is not None
    assert best == min(exposed, chunked)
    assert [flat(plan).tp_overlap for plan in plans[:2]] == [TpOverlap.EXPOSED, TpOverlap.CHUNKED]
    assert flat(plans[1]).sequence_parallel
    assert chunked < exposed


def test_a_plan_with_chunks_is_predicted_as_it_was_planned() -> None:
    request = llama_8b(search=Search(tp=(8,), tp_overlap=(TpOverlap.CHUNKED,)))
    plan = plan_of(request)
    assert predict_training(request, plan).predicted == plan.predicted
    with pytest.raises(PlanFileError, match="tp_overlap can't be chunked"):
        predict_training(request, with_fields(plan, sequence_parallel=False))


@pytest.mark.parametrize(
    ("launcher", "space"),
    [
        (Launcher.DEEPSPEED, {}),
        (Launcher.MEGATRON_LM, {"zero_stages": (3,)}),
    ],
)
def test_launchers_without_chunks_have_no_such_plan(launcher: Launcher, space: dict[str, Any]) -> None:
    request = llama_8b(search=Search(launcher=launcher, tp=(8,), tp_overlap=(TpOverlap.CHUNKED,), **space))
    assert all(family.tp_overlap is TpOverlap.EXPOSED for family in families(request))


def test_published_planners_have_none() -> None:
    with pytest.raises(WorkloadError, match="tp_overlap leaves nothing"):
        searched(TpOverlap.CHUNKED, system=System.MIST)
    assert flat(searched(*TpOverlap, system=System.MIST)).tp_overlap is TpOverlap.EXPOSED


def test_stages_that_differ_have_none() -> None:
    search = Search(space=Space.FREE, stage_degrees=StageDegrees.ANY, tp_overlap=tuple(TpOverlap))
    with pytest.raises(WorkloadError, match="do not cut products into chunks"):
        plan_of(llama_8b(search=search))


def test_chunks_need_nvlink_and_rows_for_every_rank() -> None:
    request = llama_8b(search=Search(tp=(8,), tp_overlap=(TpOverlap.CHUNKED,)))
    group = request.cluster.groups[0]
    by_pcie = replace(group, node=replace(group.node, intra=replace(group.node.intra, name="pcie5")))
    assert list(families(request))
    assert not list(families(replace(request, cluster=replace(request.cluster, groups=(by_pcie,)))))
    assert not list(families(replace(request, workload=replace(request.workload, seq_len=8200))))


@pytest.mark.parametrize(("kv_heads", "held"), [(8, 1 / 8), (2, 1 / 2)])
def test_an_exchange_moves_what_a_rank_holds(kv_heads: int, held: float) -> None:
    at, block = setting(TensorOverlap.NONE), GRAPH.block("layer")
    sizes = {**GRAPH.dims, "batch": 1, "seq": 8192, "kv_heads": kv_heads}
    keys = next(t for operator in block.operators for t in operator.outputs if t.name == "k")
    sends = TensorCommunication(at, sizes, expert_region(block.operators), kept_in(block, at).rules)
    size = keys.elements(sizes) * DType.BF16.size_bytes
    expected = collective_s(Collective.ALL_TO_ALL, held * size, at.tp_topology)
    assert sends.convert_s(sharded("seq"), sharded("kv_heads"), keys) == expected
    assert sends.convert_s(sharded("kv_heads"), sharded("seq"), keys) == expected
