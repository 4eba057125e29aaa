"""Each objective equals exhaustive enumeration on random small requests; the frontier holds what no plan beats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.plan import FrontierPoint
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import FrontierScope, Objective, Space
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import step_energy_j
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.training.every_plan import Priced, every_fitting_plan
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.planned import planned
from tests.unit.solver.verify.changes import changed

PRICE_PER_HOUR = 3.6


def request_with(seed: int, objective: Objective) -> TrainingRequest:
    """A small request of one node group in the launchable space, devices priced, two of three with room for parts."""
    request = random_request(seed)
    while (
        len(request.cluster.groups) > 1
        or request.cluster.n_devices not in (2, 4)
        or request.search.space is Space.FREE
        or len(request.model.layers) > 4
    ):
        seed += 1000
        request = random_request(seed)
    (group,) = request.cluster.groups
    memory_bytes = group.node.device.memory_bytes + (seed % 3) * 2**28
    device = replace(group.node.device, price_per_hour=PRICE_PER_HOUR, memory_bytes=memory_bytes)
    cluster = replace(request.cluster, groups=(replace(group, node=replace(group.node, device=device)),))
    return replace(request, cluster=cluster, objective=objective)


def with_slo(request: TrainingRequest, seed: int) -> TrainingRequest:
    """With a limit on the step that a part of the cluster may meet or miss; none for every third seed."""
    fastest = planned(request)
    factor = (0.9, 1.7, None)[seed % 3]
    if factor is None or fastest.predicted is None or fastest.predicted.step_time_s is None:
        return request
    return replace(request, slo=Slo(max_step_time_s=factor * fastest.predicted.step_time_s, confidence=0.5))


def parts_of(cluster: Cluster) -> Iterator[Cluster]:
    """1, 2, 4 ... devices of a node with their share of its cards; 1, 2, 3 ... nodes."""
    (group,) = cluster.groups
    node = group.node
    for n in range(1, node.devices_per_node):
        if node.devices_per_node % n == 0:
            cards = replace(node.inter, bytes_per_s=node.inter.bytes_per_s * n / node.devices_per_node)
            part = replace(group, node=replace(node, devices_per_node=n, inter=cards), nodes=1)
            yield replace(cluster, groups=(part,))
    for nodes in range(1, group.nodes + 1):
        yield replace(cluster, groups=(replace(group, nodes=nodes),))


@dataclass(frozen=True)
class Figures:
    """The worth of a plan on a part of the cluster by each objective."""

    devices: int
    step_s: float
    usd: float
    energy_j: float


def every_plan(request: TrainingRequest) -> Iterator[Figures]:
    """Figures of every plan of every part that fits and meets the SLO."""
    for part in parts_of(request.cluster):
        sized = replace(request, cluster=part)
        for priced in every_fitting_plan(sized):
            if priced.cost.step_time_s <= (request.slo.max_step_time_s or math.inf):
                usd = part.n_devices * PRICE_PER_HOUR / 3600.0 * priced.cost.step_time_s
                yield Figures(part.n_devices, priced.cost.step_time_s, usd, _energy_j(sized, priced))


def _energy_j(request: TrainingRequest, priced: Priced) -> float:
    return step_energy_j(request.cluster, priced.decision, priced.cost, priced.tables)


def least_of_each(whole: TrainingRequest) -> dict[Objective, float | None]:
    """The least of each objective among all plans of all parts; None where none meets the SLO."""
    plans = list(every_plan(whole))
    n_devices = whole.cluster.n_devices
    return {
        Objective.STEP_TIME: min((plan.step_s for plan in plans if plan.devices == n_devices), default=None),
        Objective.DEVICES: min((float(plan.devices) for plan in plans), default=None),
        Objective.COST: min((plan.usd for plan in plans), default=None),
        Objective.ENERGY: min((plan.energy_j for plan in plans), default=None),
    }


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(16))
def test_every_objective_equals_enumeration(seed: int) -> None:
    whole = with_slo(request_with(seed, Objective.THROUGHPUT), seed)
    for objective, expected in least_of_each(whole).items():
        plan = planned(replace(whole, objective=objective))
        assert plan.feasible == (expected is not None), objective
        if expected is not None:
            assert plan.certificate.objective == pytest.approx(expected, rel=1e-9), objective
            assert plan.certificate.status is Status.OPTIMAL
            assert all(rival.objective is None or rival.objective >= expected * (1 - 1e-9) for rival in plan.runners_up)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_a_swept_frontier_holds_the_best_of_every_size(seed: int) -> None:
    request = request_with(seed, Objective.THROUGHPUT)
    plans = list(every_plan(request))
    plan = planned(replace(request, search=replace(request.search, frontier=FrontierScope.SWEPT)))
    if not plan.feasible:
        return
    for n in {figures.devices for figures in plans if figures.devices & (figures.devices - 1) == 0}:
        here = [figures for figures in plans if figures.devices == n]
        fastest, thriftiest = min(f.step_s for f in here), min(f.energy_j for f in here)
        assert any(reaches(point, n, step_s=fastest, request=request) for point in plan.frontier), n
        least = min((p.energy_per_step_j for p in plan.frontier if p.devices <= n and p.energy_per_step_j), default=math.inf)
        assert least <= thriftiest * (1 + 1e-9)
    roomiest = max(point.memory_headroom_bytes or 0.0 for point in plan.frontier)
    assert roomiest >= max(point.memory_headroom_bytes or 0.0 for point in planned(request).frontier)


def reaches(point: FrontierPoint, devices: int, *, step_s: float, request: TrainingRequest) -> bool:
    """Return True if a point is at least as fast on no more devices."""
    workload = request.workload
    assert workload.kind == "training"
    return point.devices <= devices and point.tokens_per_s * step_s >= workload.global_batch * workload.seq_len * (1 - 1e-9)


def test_the_energy_of_bounds_is_below_that_of_plans() -> None:
    """Members' bounds, the basis of the proof, on plans that were costed one by one."""
    from meshwright.solver.training.search.aims import LeastEnergy
    from meshwright.solver.training.search.bounds import Member
    from meshwright.solver.training.space.candidates import families

    for seed in range(40, 52):
        request = random_request(seed)
        costs = TrainingCosts(request)
        aim = LeastEnergy(request, costs)
        bounds: dict[object, float] = {}
        by_family = {c: aim.family_bound(family) for family in families(request) for c in family.candidates()}
        for number, priced in enumerate(every_fitting_plan(request)):
            if number == 2000:
                break
            candidate = priced.decision.candidate
            key = (candidate, priced.decision.sharding)
            if key not in bounds:
                bounds[key] = aim.member_bound(Member(candidate, priced.decision.sharding, priced.tables))
            energy_j = _energy_j(request, priced)
            assert bounds[key] <= energy_j * (1 + 1e-9)
            family_j = by_family.get(candidate)
            assert family_j is None or family_j <= energy_j * (1 + 1e-9)


def test_the_checker_knows_a_frontier_that_is_none() -> None:
    request = request_with(7, Objective.ENERGY)
    plan = planned(replace(request, slo=Slo(), search=replace(request.search, frontier=FrontierScope.SWEPT)))
    assert len(plan.frontier) > 1
    point = plan.frontier[0]
    dearer = 2 * (point.cost_per_million_tokens or 0.0)
    worse = replace(point, summary="worse", tokens_per_s=point.tokens_per_s / 2, cost_per_million_tokens=dearer)
    for broken in (
        replace(plan, frontier=(*plan.frontier, worse)),
        replace(plan, frontier=(replace(point, devices=10**6),)),
        changed(plan, "frontier.0.cost_per_million_tokens", 1e-3),
    ):
        assert Rule.FRONTIER in {violation.rule for violation in check(broken, request)}
    wrong = changed(plan, "certificate.objective", 2.0 * (plan.certificate.objective or 0.0))
    assert Rule.CERTIFICATE in {violation.rule for violation in check(wrong, request)}
