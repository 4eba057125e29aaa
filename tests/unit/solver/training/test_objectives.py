"""Each objective equals exhaustive enumeration on random small requests; the frontier holds what no plan beats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.solver.answer.plan import FrontierPoint
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import FrontierScope, Objective
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.training.every_plan import every_fitting_plan
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.objectives import _energy_j, every_plan, least_of_each, request_with, with_slo
from tests.unit.solver.training.planned import planned
from tests.unit.solver.verify.changes import changed


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
