"""Operators that split the batch over tp, and weights that ranks use whole but store a share of: planned, checked, moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.implementation import TrainedWeights
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes, OperatorSharding
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import Criterion, build_block_problem
from meshwright.solver.blocks.tp_strategies import REPLICATED, Strategy, strategies
from meshwright.solver.problem.choices import Space, System
from meshwright.solver.problem.declared.operator_splits import OperatorSplit
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.switching.pieces import stored_pieces
from meshwright.solver.training.planner import predict_training
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import Rule
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.planned import planned

REQUEST = TrainingRequest(
    model("llama-3.1-8b"),
    Cluster((NodeGroup("node", node_type("dgx-h100"), 1),)),
    TrainingWorkload("training", 16, 4096),
    search=Search(space=Space.FREE, pp=(1,), cp=(1,), zero_stages=(1,), schedules=(Schedule.ONE_F_ONE_B,)),
)
MODEL, SIZES, TP = REQUEST.model, {**REQUEST.model.dims, BATCH: 4, SEQ: 4096}, 4
BOTH = tuple(OperatorSplit)


def asked(*splits: OperatorSplit, tp: int = TP, microbatch: int = TP, **changed: Any) -> TrainingRequest:
    search = replace(REQUEST.search, operator_splits=splits, tp=(tp,), microbatch=(microbatch,), **changed)
    return replace(REQUEST, search=search)


def shardings(plan: Plan) -> dict[str, str]:
    return {f"{entry.block}/{entry.operator}": entry.strategy for entry in flat(plan).shardings}


def step_s(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    return plan.predicted.step_time_s


def names_of(operator: str, *splits: OperatorSplit, block: str = "layer", batch: int = 4) -> set[str]:
    sizes = {**SIZES, BATCH: batch}
    found = strategies(MODEL.block(block).operator(operator), sizes, TP, Space.FREE, splits=splits)
    assert all(Strategy.named(each.name) == each for each in found)
    return {each.name for each in found}


def test_what_is_opened_adds_strategies_and_nothing_else() -> None:
    for operator in ("qkv_proj", "attention", "attn_norm"):
        closed = names_of(operator)
        assert names_of(operator, OperatorSplit.BATCH) == closed | {"batch"}
        assert names_of(operator, OperatorSplit.BATCH, batch=3) == closed, "three sequences do not divide by four ranks"
    whole = {"replicate+weights", "seq+weights"}
    assert names_of("qkv_proj", OperatorSplit.WEIGHTS) == names_of("qkv_proj") | whole
    assert names_of("qkv_proj", *BOTH) == names_of("qkv_proj") | whole | {"batch", "batch+weights"}
    assert names_of("attn_norm", OperatorSplit.WEIGHTS) == names_of("attn_norm"), "no product"


def test_split_storage_takes_a_share_of_the_state_and_exposed_transfers() -> None:
    cluster = REQUEST.cluster
    ranks = group_topology(cluster, n=TP, stride=1)
    setting = BlockSetting(
        device=cluster.groups[0].node.device,
        tp_topology=ranks,
        ring_topology=group_topology(cluster, n=1, stride=1),
        dtype=DType.BF16,
        gradient_dtype=DType.FP32,
        microbatch=1,
        seq_len=16,
        boundary=REPLICATED,
        space=Space.FREE,
        splits=BOTH,
    )
    block = MODEL.block("layer")
    built = build_block_problem(MODEL, block, setting)
    assert built is not None
    (place,) = (n for n, operator in enumerate(block.operators) if operator.name == "down_proj")
    rows = {each.name: costs for each, costs in zip(built.strategies[place], built.problem.node_costs[place], strict=True)}
    kept, split = rows["seq"], rows["seq+weights"]
    elements = MODEL.dims["ffn"] * MODEL.dims["hidden"]
    assert split[Criterion.PARAMETERS] == kept[Criterion.PARAMETERS] / TP == elements / TP
    assert split[Criterion.TRANSIENT_BYTES] == elements * (2 * 2 + 4), "weights in use and the next, and a gradient"
    assert (kept[Criterion.SYNC_S] > 0.0) and split[Criterion.SYNC_S] == 0.0
    gather_s, scatter_s = (
        float(collective_s(kind, elements * size, ranks))
        for kind, size in ((Collective.ALL_GATHER, 2), (Collective.REDUCE_SCATTER, 4))
    )
    # Kernels of four tokens a rank, which read and write as many weights, hide a quarter.
    added_s = split[Criterion.TIME_S] - kept[Criterion.TIME_S]
    assert added_s == pytest.approx(0.75 * (2 * gather_s + scatter_s), rel=0.1)
    assert split[Criterion.FORWARD_S] - kept[Criterion.FORWARD_S] == pytest.approx(gather_s, rel=0.2)


@pytest.mark.parametrize(
    ("splits", "found"),
    [
        ((OperatorSplit.BATCH,), {"batch"}),
        ((OperatorSplit.WEIGHTS,), {"seq+weights"}),
        (BOTH, {"batch+weights", "seq+weights"}),
    ],
)
def test_plans_split_what_is_opened_where_it_is_faster(splits: tuple[OperatorSplit, ...], found: set[str]) -> None:
    closed, opened = asked(tp=8, microbatch=8), asked(*splits, tp=8, microbatch=8)
    before, plan = planned(closed), planned(opened)
    assert step_s(plan) < 0.99 * step_s(before)
    assert found <= {*shardings(plan).values()}
    assert f"operator_splits {' or '.join(splits)}" in plan.certificate.space
    predicted = predict_training(opened, plan)
    assert step_s(predicted) == pytest.approx(step_s(plan)) and shardings(predicted) == shardings(plan)
    assert {violation.rule for violation in check(plan, closed)} & {Rule.SHARDING, Rule.SEARCH}


def test_the_batch_is_split_here_and_columns_there() -> None:
    """Attention on whole sequences, feed-forward layers on columns: one plan, one axis."""
    found = shardings(planned(asked(OperatorSplit.BATCH, tp=8, microbatch=8)))
    assert (found["layer/attention"], found["layer/gate_up_proj"]) == ("batch", "ffn")


def changed(plan: Plan, name: str, strategy: str) -> Plan:
    block, operator = name.split("/")
    return with_fields(
        plan,
        shardings=tuple(
            OperatorSharding(block, operator, strategy) if (each.block, each.operator) == (block, operator) else each
            for each in flat(plan).shardings
        ),
    )


@pytest.mark.parametrize(
    ("name", "strategy", "rule"),
    [
        ("layer/attn_norm", "seq+weights", Rule.SHARDING),
        ("layer/down_proj", "ffn+weights", Rule.DIVISIBILITY),
        ("layer/o_proj", "seq", Rule.WEIGHTS),
        ("layer/o_proj", "batch+weights", Rule.DIVISIBILITY),
        ("layer/o_proj", "seq+columns", Rule.SHARDING),
    ],
)
def test_the_checker_refuses(name: str, strategy: str, rule: Rule) -> None:
    request = asked(*BOTH, microbatch=2, tp=4)
    plan = planned(request)
    assert shardings(plan)["layer/o_proj"] == "seq+weights"
    assert rule in {violation.rule for violation in check(changed(plan, name, strategy), request)}


def test_a_weight_that_two_operators_have_is_stored_whole() -> None:
    tied = replace(asked(*BOTH), model=model("llama-3.2-1b"))
    (head,) = (operator for operator in tied.model.block("head").operators if operator.kind is OperatorKind.MATMUL)
    assert head.weights[0].tied_to is not None
    plan = planned(tied)
    name = f"head/{head.name}"
    assert not shardings(plan)[name].endswith("+weights")
    broken = changed(plan, name, "seq+weights")
    assert Rule.SHARDING in {violation.rule for violation in check(broken, tied)}


def test_each_rank_stores_a_share_of_its_own() -> None:
    operator = MODEL.block("layer").operator("down_proj")
    weight, axes = operator.weights[0], Axes(dp=2, tp=4)
    pieces = stored_pieces(operator, weight, MODEL.dims, strategy=Strategy(SEQ, True), axes=axes, is_state_sharded=False)
    whole = stored_pieces(operator, weight, MODEL.dims, strategy=Strategy(SEQ), axes=axes, is_state_sharded=False)
    assert len(np.unique(whole.of_rank)) == 1
    assert [len(np.unique(pieces.of_rank[first : first + 4])) for first in (0, 4)] == [4, 4]


@pytest.mark.parametrize(
    "changes", [{"space": Space.LAUNCHABLE}, {"system": System.ALPA}], ids=["launchable", "a published planner's space"]
)
def test_they_are_of_the_free_space(changes: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="operator_splits"):
        planned(asked(*BOTH, **changes))


def test_frozen_weights_are_not_split() -> None:
    frozen = replace(REQUEST.workload, implementation=StatedImplementation(trained=TrainedWeights.ADAPTERS))
    with pytest.raises(WorkloadError, match="not trained"):
        planned(replace(asked(*BOTH), workload=frozen))


def test_whole_weights_that_are_stored_split_are_transient() -> None:
    """A product of 117 million, with gradients of 4 bytes: 0.70 GB, more than the logits of two sequences."""
    request = asked(*BOTH, microbatch=2)
    plan = planned(request)
    (stage,) = flat(plan).stages
    tight = with_fields(plan, stages=(replace(stage, memory=replace(stage.memory, transient_bytes=0.6e9)),))
    assert shardings(plan)["layer/gate_up_proj"] == "ffn"
    assert Rule.TRANSIENT not in {violation.rule for violation in check(tight, request)}
    split = changed(tight, "layer/gate_up_proj", "seq+weights")
    assert Rule.TRANSIENT in {violation.rule for violation in check(split, request)}
