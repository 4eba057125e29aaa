"""Energy of planned training steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.evaluate import devices_of
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.verify.changes import changed


def planned(*, pp: int, global_batch: int) -> tuple[Plan, TrainingRequest]:
    request = TrainingRequest(
        model("llama-3.1-8b"),
        Cluster((NodeGroup("pool", node_type("dgx-h100"), 1),)),
        TrainingWorkload("training", global_batch=global_batch, seq_len=4096),
        search=Search(tp=(1,), cp=(1,), pp=(pp,), microbatch=(1,), zero_stages=(1,)),
    )
    return plan_training(request, stop=never_stop, progress=ignore_progress), request


def joules_per_sequence(plan: Plan, request: TrainingRequest) -> float:
    assert plan.predicted is not None and plan.predicted.energy_per_step_j is not None
    return plan.predicted.energy_per_step_j / request.workload.global_batch


def test_a_busy_step_takes_nearly_full_power_and_a_bubble_less() -> None:
    short, long = planned(pp=4, global_batch=8), planned(pp=4, global_batch=128)
    assert joules_per_sequence(*long) < joules_per_sequence(*short)
    plan, _ = long
    assert (
        plan.predicted is not None and plan.predicted.energy_per_step_j is not None and plan.predicted.step_time_s is not None
    )
    watts = plan.predicted.energy_per_step_j / plan.predicted.step_time_s / 8
    assert 500.0 < watts < 700.0


def test_the_checker_knows_the_limits_of_power() -> None:
    plan, request = planned(pp=1, global_batch=64)
    assert not check(plan, request)
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    for watts in (60.0, 710.0):
        broken = changed(plan, "predicted.energy_per_step_j", 8 * watts * plan.predicted.step_time_s)
        assert {violation.rule for violation in check(broken, request)} == {Rule.ENERGY}


@pytest.mark.parametrize(("first", "count", "numbers"), [(0, 8, [8]), (4, 8, [4, 4]), (8, 4, [4])])
def test_devices_of_a_run_of_ranks(first: int, count: int, numbers: list[int]) -> None:
    pool = NodeGroup("a", node_type("dgx-h100"), 1)
    cluster = Cluster((pool, replace(pool, name="b", node=node_type("dgx-a100"))))
    assert [number for _, number in devices_of(cluster, first=first, count=count)] == numbers
