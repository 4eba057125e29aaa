"""Stages that differ in degrees and memory: as good as enumeration, predicted as planned, and checked stage by stage."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, part_of_node
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.choices import Objective, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.switching import switch_bytes
from meshwright.solver.training.explain import explain
from meshwright.solver.training.forms.stagewise.stage_sizes import laid_out, stage_sizes
from meshwright.solver.training.planner import predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.least_stages import least_of_stages
from tests.unit.solver.training.planned import planned
from tests.unit.solver.training.stagewise import mixed_requests, stagewise_requests


def assert_is_the_best_of_all(request: TrainingRequest) -> Plan:
    plan = planned(request)
    every = enumerated(request)
    assert is_the_best(plan, every)
    assert plan.certificate.status is not Status.FEASIBLE
    if any(stage.shardings for stage in flat(plan).stages):
        again = predict_training(request, plan)
        assert again.predicted == plan.predicted
        assert flat(again).stages == flat(plan).stages
    return plan


@pytest.mark.slow
def test_stages_that_differ_are_as_good_as_the_best_of_all() -> None:
    requests = list(stagewise_requests(15))
    plans = [assert_is_the_best_of_all(requests[place]) for place in (6, 7, 8, 13, 14)]
    assert sum(any(stage.shardings for stage in flat(plan).stages) for plan in plans) == 4


def test_no_way_that_enumeration_leaves_out_is_faster() -> None:
    for place, request in enumerate(stagewise_requests(9)):
        if place in (3, 7, 8):
            few, every = (least_of_stages(request, iter([request.cluster]), beaten_too=all_) for all_ in (False, True))
            assert few == every


@cache
def differing() -> tuple[Plan, TrainingRequest]:
    """A plan whose stages differ in degrees or place of state."""
    *_, request = stagewise_requests(3)
    plan = planned(request)
    assert len({stage.axes for stage in flat(plan).stages}) > 1
    return plan, request


def rules(plan: Plan, request: TrainingRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}


def test_stages_may_move_different_shares_to_their_hosts() -> None:
    *_, request = stagewise_requests(7)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 1), nodes=4)
    moving = replace(request.search, offload_optimizer=(0.0, 0.5, 1.0), offload_activations=(0.0, 0.5))
    plan = planned(replace(request, cluster=Cluster((group,)), search=moving))
    assert plan.feasible
    assert plan.certificate.status is Status.OPTIMAL


def test_state_of_stages_on_hosts_is_checked_and_hosts_have_room_for_it() -> None:
    *_, request = stagewise_requests(3)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 1), nodes=3)
    search = replace(request.search, pp=(2,), offload_optimizer=(1.0,), offload_weights=(0.0, 1.0))
    request = replace(request, cluster=Cluster((group,)), search=search)
    plan = planned(request)
    assert any(stage.shardings for stage in flat(plan).stages)
    first, *others = flat(plan).stages
    lighter = replace(first, memory=replace(first.memory, host_bytes=first.memory.host_bytes / 2))
    assert Rule.HOST_BYTES in rules(with_fields(plan, stages=(lighter, *others)), request)
    most = max(stage.memory.host_bytes for stage in flat(plan).stages)
    small = replace(group, node=replace(group.node, host_memory_bytes=int(most / 2)))
    again = predict_training(replace(request, cluster=Cluster((small,))), plan)
    assert not again.feasible
    assert again.reason is not None and again.reason.constraint == "host_memory"


def test_broken_stages_are_found() -> None:
    plan, request = differing()
    first, *others = flat(plan).stages
    memory = first.memory
    for stage, rule in (
        (replace(first, axes=replace(first.axes, dp=3)), Rule.AXES),
        (replace(first, devices=others[0].devices), Rule.DEVICES),
        (replace(first, devices=(DeviceRange(3, first.devices[0].count),)), Rule.DEVICES),
        (replace(first, sequence_parallel=None), Rule.SHARDING),
        (replace(first, shardings=first.shardings[1:]), Rule.SHARDING),
        (replace(first, memory=replace(memory, weights_bytes=memory.weights_bytes * 2)), Rule.WEIGHTS),
        (replace(first, in_flight=first.in_flight + 1), Rule.IN_FLIGHT),
        (replace(first, time_s=first.time_s * 1.5), Rule.STEP_TIME),
    ):
        assert rule in rules(with_fields(plan, stages=(stage, *others)), request), rule
    idle = (*flat(plan).stages[:-1], replace(flat(plan).stages[-1], time_s=0.0))
    assert Rule.STAGE_TIME in rules(with_fields(plan, stages=idle), request)
    same = replace(request, search=replace(request.search, stage_degrees=StageDegrees.SAME))
    assert Rule.SEARCH in rules(plan, same)
    assert Rule.STAGES in rules(with_fields(plan, schedule="gpipe"), request)
    assert Rule.DEVICES in rules(replace(plan, devices=plan.devices + 1), request)


@pytest.mark.slow
def test_stages_on_mixed_nodes_are_as_good_as_the_best_of_all() -> None:
    requests = list(mixed_requests(9))
    plans = [assert_is_the_best_of_all(requests[place]) for place in (0, 7, 8)]
    assert sum(any(stage.shardings for stage in flat(plan).stages) for plan in plans) == 3
    assert any(flat(plan).group_order for plan in plans)


def test_stages_that_differ_may_leave_devices_idle() -> None:
    *_, request = mixed_requests(9)
    search = replace(request.search, idle_groups=(request.cluster.groups[-1].name,))
    plan = assert_is_the_best_of_all(replace(request, search=search))
    assert flat(plan).idle_devices
    assert any(stage.shardings for stage in flat(plan).stages)


@pytest.mark.slow
def test_broken_stages_on_mixed_nodes_are_found() -> None:
    (request,) = mixed_requests(1)
    plan = planned(request)
    first, *between, last = flat(plan).stages
    assert first.shardings
    groups = request.cluster.groups
    for stages, rule in (
        ((first, *between, replace(last, devices=between[0].devices)), Rule.DEVICES),
        (
            (replace(first, devices=(DeviceRange(groups[0].n_devices - 1, first.devices[0].count),)), *between, last),
            Rule.DEVICES,
        ),
        (
            (first, *between, replace(last, memory=replace(last.memory, capacity_bytes=first.memory.capacity_bytes))),
            Rule.USABLE,
        ),
    ):
        assert rule in rules(with_fields(plan, stages=stages), request), rule
    back = with_fields(plan, stages=flat(plan).stages[::-1], axes=last.axes)
    assert any("back in" in violation.message for violation in check(back, request))
    room = max(stage.memory.total_bytes for stage in (*between, last))
    device = replace(groups[1].node.device, memory_bytes=int(room) - 1)
    small = replace(groups[1], node=replace(groups[1].node, device=device))
    assert Rule.CAPACITY in rules(plan, replace(request, cluster=Cluster((groups[0], small))))
    assert Rule.SEARCH in rules(with_fields(plan, group_order=tuple(group.name for group in reversed(groups))), request)
    across = (replace(first, devices=(DeviceRange(groups[0].n_devices - 1, 2),)), *between, last)
    with pytest.raises(PlanFileError, match="one node group"):
        predict_training(request, with_fields(plan, stages=across))
    more = (replace(first, devices=last.devices), *between, last)
    with pytest.raises(PlanFileError, match="more devices than the cluster has in"):
        predict_training(request, with_fields(plan, stages=more))


def test_parts_of_any_size_fill_nodes_of_six() -> None:
    (request,) = stagewise_requests(1)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 6), nodes=3)
    uneven = replace(request, cluster=Cluster((group,)))
    assert stage_sizes(uneven, group) == (1, 2, 3, 6, 12)
    ranges = laid_out(uneven.cluster, [(group, size) for size in (2, 3, 2, 6, 1, 2, 2)])
    assert [(each.first, each.count) for each in ranges] == [(9, 2), (6, 3), (12, 2), (0, 6), (11, 1), (14, 2), (16, 2)]


def test_plans_of_stages_that_differ_are_moved_to_and_not_explained() -> None:
    plan, request = differing()
    answered = AnsweredRequest(plan, request)
    assert switch_bytes(answered, answered).moved_bytes == 0.0
    with pytest.raises(PlanFileError, match="one for each stage"):
        explain(request, plan, request.model.blocks[0].operators[0].name)
    wrong = (replace(flat(plan).stages[0], axes=replace(flat(plan).stages[0].axes, pp=7)), *flat(plan).stages[1:])
    with pytest.raises(PlanFileError, match="pp"):
        predict_training(request, with_fields(plan, stages=wrong))


def test_stage_degrees_that_can_not_be_are_refused() -> None:
    (request,) = stagewise_requests(1)
    with pytest.raises(WorkloadError, match="no launcher"):
        planned(replace(request, search=replace(request.search, space=Space.LAUNCHABLE)))
    with pytest.raises(WorkloadError, match="whole cluster"):
        planned(replace(request, objective=Objective.DEVICES))
    with pytest.raises(WorkloadError, match="one optimizer"):
        planned(replace(request, search=replace(request.search, optimizers=tuple(Optimizer)[:2])))


def test_stages_of_any_sizes_fill_whole_nodes() -> None:
    (request,) = stagewise_requests(1)
    group = replace(request.cluster.groups[0], node=part_of_node(request.cluster.groups[0].node, 8), nodes=3)
    large = replace(request, cluster=Cluster((group,)))
    assert stage_sizes(large, group) == (1, 2, 4, 8, 16)
    moving = replace(large, search=replace(large.search, offload_optimizer=(0.0, 0.5)))
    assert stage_sizes(moving, group) == (8, 16)
    ranges = laid_out(large.cluster, [(group, size) for size in (1, 8, 2, 1, 8, 4)])
    assert [(each.first, each.count) for each in ranges] == [(22, 1), (0, 8), (20, 2), (23, 1), (8, 8), (16, 4)]
