"""Plans within the noise of ranking: all kinds are found, the answer stays what it was, the most different are named."""

from __future__ import annotations

import re
from dataclasses import astuple, replace

import pytest

from meshwright.app.base.plan_words import equals_in_words
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, Space
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, evaluate_decision, step_energy_j, time_breakdown
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.report.device_counts import Costed, frontier, headroom_bytes
from meshwright.solver.training.report.equals import MOST_TO_TRY, RANKING_NOISE, RankingNoise, energy_of, equal_plans
from meshwright.solver.training.report.plan_report import instead_of
from meshwright.solver.training.search import best_first
from meshwright.solver.training.search.aims import LeastEnergy
from meshwright.solver.training.search.best_first import (
    SLOWEST_THRIFTY,
    SearchResult,
    decision_tables,
    expand,
    search,
)
from meshwright.solver.training.search.bounds import Member
from meshwright.solver.training.search.partition import MemoryShortfall, partition_stages
from meshwright.solver.training.space.candidates import families
from tests.unit.solver.training.instances import random_request

SEEDS = range(12)
REACH = RANKING_NOISE.within


def searched(request: TrainingRequest, reach: float) -> SearchResult:
    return search(request, TrainingCosts(request), stop=never_stop, progress=ignore_progress, reach=reach)


def kinds_within(request: TrainingRequest, limit_s: float) -> set[tuple[object, ...]]:
    """The kinds of all plans of a request that take no longer."""
    costs, found = TrainingCosts(request), set()
    for family in families(request):
        for choice in family.by_recompute():
            for node in expand(choice, costs):
                for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                    spans = partition_stages(member.candidate, member.tables)
                    if isinstance(spans, MemoryShortfall):
                        continue
                    cost = evaluate_decision(Decision(member.candidate, member.sharding, spans), member.tables)
                    if cost.step_time_s <= limit_s:
                        found.add(member.candidate.kind)
    return found


@pytest.mark.slow_beyond(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_is_the_same_and_every_kind_is_found(seed: int) -> None:
    request = random_request(seed)
    plain, wide = searched(request, 0.0), searched(request, REACH)
    assert plain.best == wide.best and plain.bound == wide.bound
    assert plain.alternatives == wide.alternatives and plain.near == []
    assert plain.n_solved == wide.n_solved and plain.complete == wide.complete
    if wide.best is None:
        return
    limit_s = wide.best.value * (1 + REACH)
    assert all(each.value <= limit_s for each in wide.near)
    found = {each.decision.candidate.kind for each in (wide.best, *wide.alternatives, *wide.near) if each.value <= limit_s}
    expected = kinds_within(request, limit_s)
    assert found <= expected
    assert wide.all_near and found == expected
    assert equal_plans(TrainingCosts(request), wide).count == len(expected)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("seed", [seed for seed in range(40) if random_request(seed).search.space is not Space.FREE][:8])
def test_large_launchable_spaces_show_as_much_beside_the_best(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    request = random_request(seed)
    listed = searched(request, REACH)
    monkeypatch.setattr(best_first, "MOST_LISTED", 0)
    wide = searched(request, REACH)
    if wide.best is None or listed.best is None:
        assert wide.best is listed.best
        return
    assert wide.best.decision == listed.best.decision and wide.bound == pytest.approx(listed.bound, rel=1e-12)
    assert wide.complete and wide.all_near
    limit_s = wide.best.value * (1 + REACH)
    found = {each.decision.candidate.kind for each in (wide.best, *wide.alternatives, *wide.near) if each.value <= limit_s}
    assert found == kinds_within(request, limit_s)
    costs = TrainingCosts(request)
    points = [
        len(
            frontier(Costed(request, costs, wide.best), (Costed(request, costs, each) for each in (*of.alternatives, *of.near)))
        )
        for of in (listed, wide)
    ]
    assert points[1] >= points[0]


def test_large_launchable_spaces_show_slower_plans_that_leave_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_first, "MOST_LISTED", 0)
    wide = searched(random_request(6), REACH)
    assert wide.best is not None
    plans, limit_s = (wide.best, *wide.alternatives, *wide.near), wide.best.value * (1 + REACH)
    most = max(headroom_bytes(each.cost) for each in plans if each.value <= limit_s)
    thrifty = [each for each in plans if each.value > limit_s and headroom_bytes(each.cost) > most]
    assert thrifty and all(each.cost.fits and each.value <= SLOWEST_THRIFTY * wide.best.value for each in thrifty)


@pytest.mark.slow
def test_the_plan_names_the_most_different() -> None:
    several = 0
    for seed in range(40):
        plan = plan_training(random_request(seed), stop=never_stop, progress=ignore_progress)
        if plan.equals is None:
            assert not plan.feasible
            continue
        equals = plan.equals
        assert plan.predicted is not None and plan.predicted.step_time_s is not None
        assert len(equals.also_try) == min(MOST_TO_TRY, equals.count - 1)
        assert len({each.summary for each in equals.also_try}) == len(equals.also_try)
        for each in equals.also_try:
            assert each.step_time_s <= plan.predicted.step_time_s * (1 + equals.within) * (1 + 1e-12)
            assert each.differs.startswith("predicted ") and "chance to run out of memory instead of" in each.differs
        several += equals.count > MOST_TO_TRY + 1
        least = "" if equals.all_found else "At least "
        assert equals_in_words(equals).startswith(f"{least}{equals.count} plans are equal within 12%")
    assert several > 3


def test_the_noise_is_that_of_normal_errors_of_parts() -> None:
    noise = RankingNoise(own=0.03, part=0.4, basis="")
    one, other = (0.5, 0.5, 0.0), (0.5, 0.2, 0.3)
    assert noise.spread(one, one) == pytest.approx(0.03 * 2**0.5)
    assert noise.spread(one, other) == pytest.approx((2 * 0.03**2 + 0.4**2 * (0.3**2 + 0.3**2)) ** 0.5)
    assert noise.error(one, (1.0, 0.0, 5.0), 2.0) == pytest.approx(0.4 * 0.5 + 0.06)


@pytest.mark.slow
def test_plans_that_break_a_target_are_in_no_class() -> None:
    narrower = 0
    for seed in range(12):
        request = random_request(seed)
        open_plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        if open_plan.equals is None or open_plan.certificate.objective is None:
            continue
        slowest_s = 1.05 * open_plan.certificate.objective
        slo = Slo(max_step_time_s=slowest_s, confidence=0.5)
        plan = plan_training(replace(request, slo=slo), stop=never_stop, progress=ignore_progress)
        assert plan.equals is not None and plan.equals.count <= open_plan.equals.count
        assert all(each.step_time_s <= slowest_s * (1 + 1e-12) for each in plan.equals.also_try)
        narrower += plan.equals.count < open_plan.equals.count
    assert narrower


def test_objectives_that_choose_devices_have_a_class_on_those_devices() -> None:
    for seed in (3, 16, 18):
        request = replace(random_request(seed), objective=Objective.DEVICES)
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        assert plan.predicted is not None and plan.predicted.step_time_s is not None and plan.equals is not None
        assert plan.equals.count >= 1
        for each in plan.equals.also_try:
            assert each.step_time_s <= plan.predicted.step_time_s * (1 + plan.equals.within) * (1 + 1e-12)


def test_plans_of_least_energy_have_a_class_by_their_energy() -> None:
    several = 0
    for seed in (3, 16, 18, 30):
        request = replace(random_request(seed), objective=Objective.ENERGY)
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        assert plan.equals is not None and plan.equals.within == REACH
        for each in plan.equals.also_try:
            words = re.match(r"predicted ([0-9.]+)% more energy; ", each.differs)
            assert words is not None and 0.0 <= float(words[1]) / 100 <= REACH + 5e-4
            assert "of the step" not in each.differs
        several += plan.equals.count > 1
    assert several


def test_the_class_of_least_energy_is_that_of_its_search() -> None:
    """By joules and not by seconds: no member is missed that was met, none is too slow for a target."""
    for seed in (3, 16, 30):
        request = random_request(seed)
        costs = TrainingCosts(request)
        aim = LeastEnergy(request, costs)
        result = search(request, costs, stop=never_stop, progress=ignore_progress, aim=aim, reach=REACH)
        assert result.best is not None
        met = (result.best, *result.alternatives, *result.near)
        within = [each for each in met if each.value <= result.best.value * (1 + REACH)]
        ranked = energy_of(request.cluster)
        equals = equal_plans(costs, result, ranked=ranked)
        assert equals.count == len({each.decision.candidate.kind for each in within})
        slowest_s = result.best.cost.step_time_s
        quick = {each.decision.candidate.kind for each in within if each.cost.step_time_s <= slowest_s}
        assert equal_plans(costs, result, slowest_s=slowest_s, ranked=ranked).count == len(quick)


@pytest.mark.slow
def test_parts_of_a_step_weigh_in_its_energy_by_the_power_they_take() -> None:
    """Together they make the energy of the cost model, where all ranks are alike."""
    checked = 0
    for seed in range(40):
        request = random_request(seed)
        costs = TrainingCosts(request)
        best = search(request, costs, stop=never_stop, progress=ignore_progress).best
        if best is None or best.decision.candidate.mesh.pp > 1 or len(request.cluster.groups) > 1:
            continue
        mesh = best.decision.candidate.mesh
        if mesh.stage_devices != request.cluster.n_devices:
            continue
        tables = decision_tables(best.decision, costs)
        parts = astuple(time_breakdown(best.decision, best.cost, tables))
        weights = energy_of(request.cluster).weights
        joules = sum(weight * seconds for weight, seconds in zip(weights, parts, strict=True))
        assert joules == pytest.approx(step_energy_j(request.cluster, best.decision, best.cost, tables), rel=1e-9)
        checked += 1
    assert checked > 3


def test_a_wider_form_names_the_plan_that_it_takes_the_place_of() -> None:
    plan = plan_training(random_request(3), stop=never_stop, progress=ignore_progress)
    assert plan.predicted is not None and plan.predicted.step_time_s is not None
    for slower in (0.0, 0.05, 0.2):
        figures = replace(plan.predicted, step_time_s=plan.predicted.step_time_s * (1 + slower))
        equals = instead_of(replace(plan, predicted=figures), plan, "stages of the same degrees").equals
        if slower > REACH:
            assert equals is None
            continue
        assert equals is not None and equals.plainest is not None and (equals.count, equals.all_found) == (2, False)
        assert equals.also_try == (equals.plainest,) and equals.plainest.summary == "stages of the same degrees"
        assert equals.plainest.differs.startswith(f"predicted {slower:.1%} slower; ")
