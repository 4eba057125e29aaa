"""The search equals exhaustive enumeration on random small requests (benchmarks/enumerable.py runs thousands)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat
from tests.unit.solver.training.enumerated import enumerated, fewer_nodes, is_the_best
from tests.unit.solver.training.every_plan import every_fitting_plan
from tests.unit.solver.training.full_space import full_request
from tests.unit.solver.training.instances import random_request, varied_request

CHUNK = 9
N_REQUESTS = 36


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(N_REQUESTS // CHUNK))
def test_equals_enumeration(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        request = full_request(seed)
        every = enumerated(request)

        plan = plan_training(request, stop=never_stop, progress=ignore_progress)

        assert is_the_best(plan, every), seed
        assert not check(plan, request), (seed, check(plan, request))
        if plan.feasible:
            assert plan.certificate.status is Status.OPTIMAL, seed
            assert predict_training(request, plan).predicted == plan.predicted, seed
        else:
            assert plan.reason is not None
            assert plan.reason.need > plan.reason.have


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", [2, 3, 5, 6, 12, 14, 20])
def test_arrays_cost_plans_as_they_are_costed_one_by_one(seed: int) -> None:
    request = varied_request(seed)
    sized = [request, *(replace(request, cluster=part) for part in fewer_nodes(request))]
    one_by_one = [priced.cost.step_time_s for each in sized for priced in every_fitting_plan(each)]
    least_s = enumerated(request).least_s
    if not one_by_one:
        assert least_s is None
    else:
        assert least_s == pytest.approx(min(one_by_one), rel=1e-12)


def test_what_a_rank_holds_is_its_own() -> None:
    """With few micro-batches a rank of V-Min holds less than the closed form, which bounds the fullest rank (seed 1427)."""
    request = random_request(1427)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(plan).schedule == Schedule.V_MIN
    assert check(plan, request) == ()


def test_the_slowest_device_of_a_stage_is_one_whatever_modes_compete() -> None:
    """Two kinds of devices that wait for their hosts as long, and differ in what the optimizer takes (seed 864)."""
    request = full_request(864)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    again = predict_training(request, plan)
    assert (flat(again).breakdown, again.predicted) == (flat(plan).breakdown, plan.predicted)


@pytest.mark.slow
def test_of_replicas_by_node_group_layouts_with_less_to_exchange_are_looked_at_too() -> None:
    """Devices of the fastest layouts hold unequal parts of the gradients (seed 610, in pipelines of any length)."""
    drawn = full_request(610)
    request = replace(drawn, search=replace(drawn.search, pp=(), cp=(1,)))
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(plan).shares is not None
    assert is_the_best(plan, enumerated(request))


def test_stages_that_differ_on_one_rank_by_their_buffers_are_all_searched() -> None:
    """DeepSpeed's buffers are counted under ZeRO 2 and not under 3: on one rank the first does not fit, and the other does."""
    request = full_request(222)
    assert request.search.zero_stages == (2, 3)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible and not check(plan, request)


def test_experts_that_several_ranks_hold_are_sharded_where_nothing_else_has_copies() -> None:
    """Two ranks of tp hold whole experts each, and dp x cp is 1: ZeRO shards the experts' states alone (seed 711071)."""
    request = full_request(711071)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert (flat(plan).axes.dp, flat(plan).axes.etp, flat(plan).stages[0].zero_stage) == (1, 1, 1)
    assert check(plan, request) == ()
    assert is_the_best(plan, enumerated(request))


def test_slower_operators_hide_no_more_sends() -> None:
    """Sends under other chunks are long here: a sharding that took longer in all was faster, as it hid more (seed 713175)."""
    request = full_request(713175)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(plan).schedule == Schedule.INTERLEAVED
    assert is_the_best(plan, enumerated(request))


def test_a_module_that_runs_again_keeps_what_enters_its_block() -> None:
    """Layers of experts alone, which run again whole: nothing but that saves their input (seed 713316)."""
    request = full_request(713316)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert {stage.recompute_modules for stage in flat(plan).stages} == {"moe"}
    assert check(plan, request) == ()


def test_parts_of_a_step_add_up_where_unlike_devices_offload() -> None:
    """In some layers the device that moves most is the slowest, in others the one that computes longest (seed 713802)."""
    request = full_request(713802)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert flat(plan).breakdown.offload_s > 0
    assert check(plan, request) == ()
