"""A wider search that was stopped leaves undecided what the narrower one has no plan for: undecided is not infeasible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Stop, ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, GroupOrder, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.forms.by_group.search import ByGroupSearch
from meshwright.solver.training.forms.stagewise.search import StagewiseSearch
from meshwright.solver.training.forms.uniform.device_orders import best_arrangement, other_arrangements
from meshwright.solver.verify.check import check
from tests.unit.solver.training.planned import planned
from tests.unit.solver.training.shares import unequal_requests
from tests.unit.solver.training.stagewise import stagewise_requests

Search = Callable[[TrainingRequest, Plan, Stop], Plan]


def too_small(requests: Iterator[TrainingRequest]) -> TrainingRequest:
    """The first request on devices that hold none of its plans."""
    request = next(requests)
    groups = tuple(
        replace(group, node=replace(group.node, device=replace(group.node.device, memory_bytes=10**8)))
        for group in request.cluster.groups
    )
    return replace(request, cluster=Cluster(groups))


def shares(request: TrainingRequest, given: Plan, stop: Stop) -> Plan:
    return ByGroupSearch(request)(given, stop=stop, progress=ignore_progress)


def stages(request: TrainingRequest, given: Plan, stop: Stop) -> Plan:
    return StagewiseSearch(request)(given, stop=stop, progress=ignore_progress)


def orders(request: TrainingRequest, given: Plan, stop: Stop) -> Plan:
    others = other_arrangements(request)
    assert others
    return best_arrangement(request, given, others, stop=stop, progress=ignore_progress)


def narrowed(request: TrainingRequest) -> TrainingRequest:
    even, same = BatchShares.EVEN, StageDegrees.SAME
    return replace(request, search=replace(request.search, batch_shares=even, stage_degrees=same, group_order=GroupOrder.GIVEN))


def in_any_order(requests: Iterator[TrainingRequest]) -> Iterator[TrainingRequest]:
    for request in requests:
        yield replace(request, search=replace(narrowed(request).search, group_order=GroupOrder.ANY))


FORMS: dict[str, tuple[Search, Callable[[], Iterator[TrainingRequest]]]] = {
    "shares": (shares, lambda: unequal_requests(1)),
    "stages": (stages, lambda: stagewise_requests(1)),
    "orders": (orders, lambda: in_any_order(unequal_requests(1))),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_stopped_search_decides_nothing(form: str) -> None:
    search, requests = FORMS[form]
    request = too_small(requests())
    given = planned(narrowed(request))
    assert given.certificate.status is Status.INFEASIBLE
    stopped = search(request, given, lambda: True)
    assert stopped.certificate.status is Status.UNDECIDED
    assert not stopped.is_decided and not stopped.feasible
    assert check(stopped, request) == ()
    assert search(request, stopped, never_stop).certificate.status is Status.UNDECIDED
    decided = search(request, given, never_stop)
    assert decided.certificate.status is Status.INFEASIBLE
    assert decided.reason == given.reason
