"""Whole experts beside tensor parallelism: a rank of tp has tokens of its own, and exchanges them with all other ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.hardware import node_type
from meshwright.solver.blocks.tp_strategies import Strategy
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import BlockRun, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.switching.pieces import stored_pieces
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.space.meshes import meshes
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.instances import attention_block, embedding_block, expert_block, head_block
from tests.unit.solver.training.planned import planned

DIMS = {
    "hidden": 4096,
    "vocab": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "experts": 16,
    "top_k": 2,
    "expert_ffn": 1024,
}


def request(**search: object) -> TrainingRequest:
    blocks = (embedding_block(), attention_block(), expert_block(), head_block())
    runs = (BlockRun("embedding"), *(BlockRun(name) for name in ("attn", "moe") * 3), BlockRun("head"))
    fields: dict[str, object] = {"tp": (4,), "pp": (1,), "cp": (1,), "microbatch": (1,), "zero_stages": (1,)}
    fields |= {"recompute": (Recompute.NONE,), "etp": (1,), **search}
    return TrainingRequest(
        ModelGraph("moe", DIMS, blocks, runs),
        Cluster((NodeGroup("a", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=8, seq_len=8192),
        search=Search(**fields),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_whole_experts_are_planned_and_predicted(space: Space, zero: int) -> None:
    asked = request(space=space, zero_stages=(zero,), ep=(8,))
    plan = planned(asked)
    assert flat(plan).axes is not None and (flat(plan).axes.etp, flat(plan).axes.ep, flat(plan).axes.tp) == (1, 8, 4)
    assert predict_training(asked, plan).predicted == plan.predicted


def test_narrow_experts_are_faster_whole() -> None:
    shared, whole = planned(request(etp=(4,), ep=(2,))), planned(request(ep=(8,)))
    assert flat(shared).axes is not None and flat(shared).axes.etp is None
    assert flat(shared).stages[0].memory.weights_bytes == pytest.approx(flat(whole).stages[0].memory.weights_bytes), (
        "16 experts on 8 ranks"
    )
    assert flat(shared).breakdown is not None and flat(whole).breakdown is not None
    assert flat(whole).breakdown.ep_comm_s > flat(shared).breakdown.ep_comm_s, "tokens go to seven other ranks, not to one"
    assert flat(whole).breakdown.tp_comm_s < flat(shared).breakdown.tp_comm_s, (
        "what tp ranks gather for shared experts falls away"
    )
    assert shared.certificate.objective is not None and whole.certificate.objective is not None
    assert whole.certificate.objective < shared.certificate.objective
    either = planned(request(etp=(1, 4)))
    assert either.certificate.objective is not None
    assert either.certificate.objective <= whole.certificate.objective


def test_whole_experts_are_searched_where_launchers_spread_them() -> None:
    assert {mesh.etp for mesh in meshes(request(etp=(4,)))} == {None}
    assert {mesh.etp for mesh in meshes(request(etp=()))} == {None, 1}
    assert {mesh.etp for mesh in meshes(request(etp=(1, 4)))} == {None, 1}
    assert max(mesh.ep for mesh in meshes(request(etp=(1,)))) == 8, "all ranks of the stage"
    assert not plan_training(request(launcher=Launcher.TORCHTITAN), stop=never_stop, progress=ignore_progress).feasible


def test_dense_models_have_no_experts_to_keep_whole() -> None:
    asked = request()
    dense = replace(asked.model, chain=tuple(run for run in asked.model.chain if run.block != "moe"))
    dense = replace(dense, blocks=tuple(block for block in dense.blocks if block.name != "moe"))
    plan = planned(replace(asked, model=dense))
    assert flat(plan).axes is not None and (flat(plan).axes.tp, flat(plan).axes.etp) == (4, None)


def test_the_checker_knows_whole_experts() -> None:
    asked = request(ep=(8,))
    plan = planned(asked)
    assert flat(plan).axes is not None
    for axes, rule in (
        (replace(flat(plan).axes, etp=2), Rule.AXES),
        (replace(flat(plan).axes, ep=16), Rule.AXES),
        (replace(flat(plan).axes, etp=None, ep=2), Rule.SHARDING),
    ):
        stages = tuple(replace(stage, axes=axes) for stage in flat(plan).stages)
        assert rule in {violation.rule for violation in check(with_fields(plan, axes=axes, stages=stages), asked)}
    split = tuple(
        replace(s, strategy="expert_ffn") if (s.block, s.operator) == ("moe", "up") else s for s in flat(plan).shardings
    )
    assert Rule.SHARDING in {violation.rule for violation in check(with_fields(plan, shardings=split), asked)}
    assert Rule.SEARCH in {violation.rule for violation in check(plan, request(etp=(4,)))}
    stages = tuple(replace(stage, axes=replace(flat(plan).axes, etp=2)) for stage in flat(plan).stages)
    with pytest.raises(PlanFileError, match="etp is tp or 1"):
        predict_training(asked, with_fields(plan, axes=replace(flat(plan).axes, etp=2), stages=stages))


def test_experts_that_are_not_spread_are_sharded_as_all_else() -> None:
    """Within a part of the ranks, too (seed 567 of benchmarks/enumerable.py)."""
    within = {"launcher": Launcher.DEEPSPEED, "tp": (1,), "etp": (), "zero_stages": (3,)}
    parted, whole = planned(request(shard_ranks=(4,), **within)), planned(request(shard_ranks=(8,), **within))
    assert flat(parted).stages[0].shard_ranks == 4
    assert flat(parted).stages[0].memory.weights_bytes == pytest.approx(2 * flat(whole).stages[0].memory.weights_bytes)


def test_every_rank_of_tp_stores_other_experts() -> None:
    plan = planned(request(ep=(8,)))
    assert flat(plan).axes is not None
    up = expert_block().operators[1]
    pieces = stored_pieces(up, up.weights[0], DIMS, strategy=Strategy("seq"), axes=flat(plan).axes, is_state_sharded=False)
    assert np.array_equal(pieces.of_rank, np.arange(8))
