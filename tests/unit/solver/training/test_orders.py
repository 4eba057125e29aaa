"""The order of node groups: any is as good as the best of all, and a plan in another order is checked and predicted in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import GroupOrder, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.switching import switch_bytes
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.instances import random_request


def mixed_requests(count: int) -> Iterator[TrainingRequest]:
    """Requests of the launchable space on two node groups."""
    seed = 0
    while count:
        request = random_request(seed)
        seed += 1
        if len(request.cluster.groups) == 2 and request.search.space is Space.LAUNCHABLE:
            count -= 1
            yield request


def planned(request: TrainingRequest, order: GroupOrder) -> Plan:
    asked = replace(request, search=replace(request.search, group_order=order))
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    assert check(plan, asked) == ()
    return plan


def turned(request: TrainingRequest) -> TrainingRequest:
    return replace(request, cluster=replace(request.cluster, groups=request.cluster.groups[::-1]))


@pytest.mark.slow
def test_any_order_is_the_best_of_all_orders() -> None:
    orders = set()
    for request in mixed_requests(20):
        here, there = planned(request, GroupOrder.GIVEN), planned(turned(request), GroupOrder.GIVEN)
        plan = planned(request, GroupOrder.ANY)
        steps = [p.certificate.objective for p in (here, there) if p.certificate.objective is not None]
        assert plan.feasible == bool(steps)
        if not plan.feasible:
            continue
        assert plan.certificate.objective == pytest.approx(min(steps), rel=1e-9)
        assert plan.certificate.status is Status.OPTIMAL
        orders.add(flat(plan).group_order)
        asked = replace(request, search=replace(request.search, group_order=GroupOrder.ANY))
        assert predict_training(asked, plan).predicted == plan.predicted
    assert orders == {(), ("group-1", "group-0")}


def test_a_plan_in_another_order_is_the_plan_of_the_turned_cluster() -> None:
    for request in mixed_requests(60):
        plan = planned(request, GroupOrder.ANY)
        if not flat(plan).group_order:
            continue
        assert Rule.SEARCH in {violation.rule for violation in check(plan, request)}
        asked = replace(request, search=replace(request.search, group_order=GroupOrder.ANY))
        wrong = with_fields(plan, group_order=("group-0", "group-0"))
        assert Rule.DEVICES in {violation.rule for violation in check(wrong, asked)}
        with pytest.raises(PlanFileError, match="group_order"):
            predict_training(asked, wrong)
        own = with_fields(plan, group_order=())
        moved = switch_bytes(AnsweredRequest(own, request), AnsweredRequest(plan, request))
        assert moved.moved_bytes > 0.0
        assert switch_bytes(AnsweredRequest(plan, request), AnsweredRequest(plan, request)).moved_bytes == 0.0
        return
    pytest.fail("no request is planned better in another order")


def test_more_orders_than_a_search_goes_through_are_refused() -> None:
    (request,) = mixed_requests(1)
    first = request.cluster.groups[0]
    groups = tuple(replace(first, name=f"g{i}", nodes=1) for i in range(5))
    many = replace(request, cluster=replace(request.cluster, groups=groups))
    with pytest.raises(WorkloadError, match="orders"):
        planned(many, GroupOrder.ANY)
