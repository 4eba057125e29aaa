"""Plans that split state-space mixers over the ranks of a sequence: each launcher in its way, and as the checker sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.graph import BlockRun, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.instances import attention_block, embedding_block, head_block, mixer_block
from tests.unit.solver.training.planned import planned

DIMS = {"hidden": 512, "vocab": 4096, "heads": 8, "kv_heads": 8, "head_dim": 64}
DIMS |= {"ssm_heads": 16, "ssm_groups": 2, "ssm_width": 64, "ssm_state": 128, "kernel": 4}


def request(*, hybrid: bool = True, seq_len: int = 8192, **search: object) -> TrainingRequest:
    blocks = (embedding_block(), mixer_block(), *([attention_block()] if hybrid else []), head_block())
    runs = tuple(BlockRun(block.name, 1 if block.name in ("embedding", "head") else 4) for block in blocks)
    fields: dict[str, object] = {"pp": (1,), "tp": (1, 2), "microbatch": (1,), "zero_stages": (1,), **search}
    return TrainingRequest(
        ModelGraph("mixers", DIMS, blocks, runs),
        Cluster((NodeGroup("a", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=8, seq_len=seq_len),
        search=Search(**fields),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
def test_mixers_are_split_over_a_sequence(space: Space, hybrid: bool, mode: Recompute) -> None:
    asked = request(hybrid=hybrid, space=space, cp=(4,), recompute=(mode,))
    plan = planned(asked)
    assert flat(plan).axes is not None and flat(plan).axes.cp == 4
    assert flat(plan).breakdown is not None and flat(plan).breakdown.cp_comm_s > 0
    assert predict_training(asked, plan).predicted == plan.predicted


def test_states_that_pass_cost_the_same_for_any_length_and_exchanges_do_not() -> None:
    def shown_s(space: Space, seq_len: int) -> float:
        asked = request(hybrid=False, space=space, cp=(8,), tp=(1,), seq_len=seq_len, recompute=(Recompute.NONE,))
        breakdown = flat(planned(asked)).breakdown
        assert breakdown is not None
        return breakdown.cp_comm_s

    assert shown_s(Space.FREE, 2**17) <= shown_s(Space.FREE, 2**14)
    assert shown_s(Space.LAUNCHABLE, 2**17) > 4 * shown_s(Space.LAUNCHABLE, 2**14)
    assert shown_s(Space.FREE, 2**17) < shown_s(Space.LAUNCHABLE, 2**17)


def test_launchers_without_a_way_do_not_split_mixers() -> None:
    for launcher in (Launcher.TORCHTITAN, Launcher.DEEPSPEED):
        assert not plan_training(request(launcher=launcher, cp=(4,)), stop=never_stop, progress=ignore_progress).feasible
    asked = request(cp=(4,))
    other = replace(asked, search=replace(asked.search, launcher=Launcher.TORCHTITAN))
    assert Rule.LAUNCHER in {violation.rule for violation in check(planned(asked), other)}


def test_heads_that_do_not_divide_are_not_exchanged() -> None:
    few = request(cp=(8,), tp=(1,))
    few = replace(few, model=replace(few.model, dims={**DIMS, "ssm_heads": 12}))
    assert not plan_training(few, stop=never_stop, progress=ignore_progress).feasible
    free = replace(few, search=replace(few.search, space=Space.FREE))
    plan = planned(free)
    assert flat(plan).axes is not None and flat(plan).axes.cp == 8, "states pass whatever the heads"
    assert Rule.DIVISIBILITY in {violation.rule for violation in check(plan, few)}


def test_groups_that_ranks_can_not_share_are_refused() -> None:
    asked = request(hybrid=False, cp=(4,), tp=(1,))
    odd = replace(asked, model=replace(asked.model, dims={**DIMS, "ssm_groups": 3}))
    assert not plan_training(odd, stop=never_stop, progress=ignore_progress).feasible
    assert Rule.DIVISIBILITY in {violation.rule for violation in check(planned(asked), odd)}


def test_the_checker_wants_the_bytes_of_states_and_of_copied_groups() -> None:
    for space in Space:
        asked = request(hybrid=False, space=space, cp=(8,), tp=(1,), recompute=(Recompute.NONE,))
        plan = planned(asked)
        memory = flat(plan).stages[0].memory
        less = replace(memory, activations_bytes=memory.activations_bytes * 0.97)
        broken = with_fields(plan, stages=(replace(flat(plan).stages[0], memory=less),))
        assert Rule.ACTIVATIONS in {violation.rule for violation in check(broken, asked)}
