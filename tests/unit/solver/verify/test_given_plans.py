"""The checker accepts all that is predicted of a given training plan: also of plans that are too big, too slow, or of other
degrees than any search would choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import Axes, DeviceRange, Microbatch
from meshwright.solver.api import predict
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify import Rule, SpaceRules
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.instances import memory_request, random_request, sliced_request
from tests.unit.solver.training.shares import unequal_requests
from tests.unit.solver.training.stagewise import mixed_requests, stagewise_requests

Asked = tuple[Plan, TrainingRequest]


def searched(requests: Iterator[TrainingRequest]) -> Iterator[Asked]:
    for request in requests:
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        if plan.feasible:
            yield plan, request


def with_little(request: TrainingRequest, share: float, *, memory: str) -> TrainingRequest:
    """The request on devices, or hosts, or drives with a share of their memory."""
    groups = []
    for group in request.cluster.groups:
        node = group.node
        if memory == "device":
            node = replace(node, device=replace(node.device, memory_bytes=int(share * node.device.memory_bytes)))
        elif memory == "host":
            node = replace(node, host_memory_bytes=max(1, int(share * node.host_memory_bytes)))
        elif node.nvme is not None:
            node = replace(node, nvme=replace(node.nvme, capacity_bytes=max(1, int(share * node.nvme.capacity_bytes))))
        groups.append(replace(group, node=node))
    return replace(request, cluster=Cluster(tuple(groups), memory_reserve=request.cluster.memory_reserve))


def with_slo(plan: Plan, request: TrainingRequest) -> Iterator[TrainingRequest]:
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    yield replace(request, slo=Slo(max_step_time_s=plan.predicted.step_time_s / 2, confidence=0.5))
    yield replace(request, slo=Slo(min_tokens_per_s=plan.predicted.tokens_per_s * 2, confidence=0.5))
    yield replace(request, slo=Slo(max_step_time_s=plan.predicted.step_time_s * 2, confidence=0.5))


def of_other_degrees(plan: Plan) -> Iterator[Plan]:
    """The plan's layers on ranks of other degrees, with other micro-batches, recompute modes and ZeRO stages."""
    assert flat(plan).axes is not None and flat(plan).microbatch is not None
    axes, microbatch = flat(plan).axes, flat(plan).microbatch
    sequences = axes.dp * microbatch.size * microbatch.count
    others = (
        replace(axes, dp=axes.dp * axes.tp, tp=1, etp=None),
        replace(axes, dp=1, cp=axes.cp * axes.dp),
        replace(axes, dp=1),
        replace(axes, dp=axes.dp * 2),
        replace(axes, tp=axes.tp * 2),
        replace(axes, cp=axes.cp * 2),
        axes,
    )
    for other in dict.fromkeys(others):
        for size in sorted({1, 2, microbatch.size}):
            count = max(1, sequences // (other.dp * size))
            yield laid_out(with_fields(plan, microbatch=Microbatch(size, count)), other)
    for zero_stage in range(4):
        yield with_fields(plan, stages=tuple(replace(stage, zero_stage=zero_stage) for stage in flat(plan).stages))
    for mode in Recompute:
        yield with_fields(plan, stages=tuple(replace(stage, recompute=mode) for stage in flat(plan).stages))


def laid_out(plan: Plan, axes: Axes) -> Plan:
    size = axes.dp * axes.tp * axes.cp
    stages = tuple(
        replace(stage, axes=axes, devices=(DeviceRange(place * size, size),)) for place, stage in enumerate(flat(plan).stages)
    )
    return with_fields(plan, axes=axes, stages=stages, devices=size * len(stages))


def changes(plan: Plan, request: TrainingRequest) -> Iterator[Asked]:
    yield plan, request
    for share in (0.9, 0.5, 0.1):
        for memory in ("device", "host", "drives"):
            yield plan, with_little(request, share if memory == "device" else share**12, memory=memory)
    for slower in with_slo(plan, request):
        yield plan, slower
        yield plan, with_little(slower, 0.5, memory="device")
    for other in of_other_degrees(plan):
        yield other, request


FORMS = {
    "uniform": lambda: (random_request(seed) for seed in range(14)),
    "memory choices": lambda: (memory_request(seed) for seed in range(14)),
    # Requests that fit: of the others there is no plan to change.
    "token slices": lambda: map(sliced_request, (1, 3, 5, 7, 8, 9, 10)),
    "replicas by node group": lambda: unequal_requests(8),
    "stages that differ": lambda: stagewise_requests(4),
    "stages of mixed nodes": lambda: mixed_requests(3),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_checker_accepts_whatever_is_predicted(form: str) -> None:
    said = Counter[str]()
    for plan, request in searched(FORMS[form]()):
        for given, asked in changes(plan, request):
            try:
                again = predict(asked, given)
            except PlanFileError:
                said["refused"] += 1
                continue
            broken = check(again, asked)
            assert broken == (), broken
            assert again.feasible is (again.reason is None)
            if again.reason is not None:
                assert again.certificate.status is Status.INFEASIBLE
                assert again.predicted is not None and flat(again).stages
            said["feasible" if again.reason is None else again.reason.constraint] += 1
    assert {"feasible", "device_memory", "slo.max_step_time_s", "slo.min_tokens_per_s"} <= set(said), said
    assert form != "memory choices" or {"host_memory", "nvme"} <= set(said), said


def too_big() -> Asked:
    """A plan that was predicted on devices that are too small for it."""
    plan, request = next(searched(random_request(seed) for seed in range(14)))
    small = with_little(request, 0.5, memory="device")
    return predict(small, plan), small


def test_a_reason_that_is_not_so_is_found() -> None:
    plan, small = too_big()
    assert plan.reason is not None and plan.reason.constraint == "device_memory"
    assert check(plan, small) == ()
    for constraint in ("host_memory", "slo.max_step_time_s"):
        lying = replace(plan, reason=replace(plan.reason, constraint=constraint))
        assert [violation.rule for violation in check(lying, small)] == [Rule.REASON]
    large = with_little(small, 4.0, memory="device")
    assert Rule.REASON in {violation.rule for violation in check(predicted_there(plan, large), large)}


def predicted_there(plan: Plan, request: TrainingRequest) -> Plan:
    """The plan as predicted on other devices, called infeasible all the same."""
    again = predict(request, plan)
    assert again.feasible
    certificate = replace(again.certificate, status=Status.INFEASIBLE)
    return replace(again, feasible=False, certificate=certificate, reason=plan.reason)


def test_an_infeasible_plan_claims_no_bound_and_has_all_its_figures() -> None:
    plan, small = too_big()
    assert plan.certificate.objective is not None
    for certificate in (
        replace(plan.certificate, status=Status.FEASIBLE),
        replace(plan.certificate, bound=plan.certificate.objective, gap=0.0),
        replace(plan.certificate, objective=plan.certificate.objective * 2),
        replace(plan.certificate, objective=None),
    ):
        assert Rule.CERTIFICATE in {v.rule for v in check(replace(plan, certificate=certificate), small)}
    assert Rule.REASON in {v.rule for v in check(replace(plan, reason=None), small)}
    assert Rule.ANSWER in {v.rule for v in check(replace(plan, predicted=None), small)}
    assert plan.predicted is not None
    faster = replace(plan, predicted=replace(plan.predicted, mfu=0.9))
    assert Rule.MFU in {v.rule for v in check(faster, small)}


def test_the_space_of_the_search_binds_plans_that_were_searched_for() -> None:
    plan, request = next(searched(random_request(seed) for seed in range(14)))
    assert flat(plan).axes is not None
    narrow = replace(request, search=replace(request.search, dp=(flat(plan).axes.dp + 1,)))
    again = predict(narrow, plan)
    assert check(again, narrow) == ()
    assert Rule.SEARCH in {v.rule for v in check(plan, narrow)}
    assert Rule.SEARCH in {v.rule for v in check(again, narrow, space_rules=SpaceRules.OF_ALL_PLANS)}
    assert isinstance(narrow.search, Search)
