"""The serving plan to run next: by hand, by drawing worlds, and on a planned request."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.serving.latency_law import LatencyLaw
from meshwright.solver.api import serving_trials, solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.search import Search
from meshwright.solver.serving.trials import Kept, ServingPlan, TrialPlan, best_next, ordered_trials, serving_candidates
from tests.unit.solver.serving.requests import serving_request

LAW = LatencyLaw(outside_s=0.0, scale=1.0, shared_sigma=0.12, own_sigma=0.09)
FREE = Kept(LAW, 0.0, math.inf)


def candidate(worth: float, share: float, *, first: float = 0.0, has_kept: bool | None = None) -> TrialPlan:
    """A plan whose median times take such shares of their targets."""
    return TrialPlan(worth, Kept(LAW, first, 1.0 if first else math.inf), Kept(LAW, share, 1.0), has_kept)


@pytest.mark.parametrize("share", [0.7, 0.9, 1.0, 1.2])
def test_the_chance_of_one_target_is_that_of_the_law(share: float) -> None:
    assert fmean(candidate(1.0, share).chances()) == pytest.approx(1.0 - LAW.chance_above(share, 1.0), abs=0.01)


def drawn_best(candidates: list[TrialPlan], tried: list[int], *, worlds: int) -> float:
    """The expected worth of the best of those tried that keeps its targets, by drawing all errors."""
    random, total = np.random.default_rng(7), 0.0
    for first, later in random.standard_normal((worlds, 2)):
        best = 0.0
        for i in tried:
            kept = True
            for time, shared in ((candidates[i].ttft, first), (candidates[i].tpot, later)):
                if time.target_s < math.inf:
                    error = shared * LAW.shared_sigma + random.standard_normal() * LAW.own_sigma
                    kept &= time.median_s * math.exp(error) <= time.target_s
            best = max(best, candidates[i].worth * kept)
        total += best
    return total / worlds


def test_expected_regret_is_that_of_drawn_worlds() -> None:
    candidates = [candidate(1.0, 0.8, first=0.9), candidate(1.3, 0.95), candidate(1.5, 1.1, first=0.8)]
    plans = [ServingPlan(None, None)] * 3  # type: ignore[arg-type]
    trials = ordered_trials(plans, candidates, most=3)
    order: list[int] = []
    while len(order) < 3:
        order.append(best_next(candidates, order))
    ideal = drawn_best(candidates, order, worlds=20_000)
    for n, trial in enumerate(trials, start=1):
        assert trial.expected_regret == pytest.approx(1.0 - drawn_best(candidates, order[:n], worlds=20_000) / ideal, abs=0.02)
    assert trials[-1].expected_regret == 0.0


def test_what_is_worth_no_more_than_what_kept_is_not_next() -> None:
    bold, timid = candidate(1.2, 1.0), candidate(0.9, 0.5)
    assert best_next([candidate(1.0, 0.8, has_kept=True), timid, bold], []) == 2
    # Where it missed, a plan that surely keeps its targets is worth more than one that may.
    assert best_next([candidate(1.0, 0.8, has_kept=False), timid, replace(bold, tpot=Kept(LAW, 1.2, 1.0))], []) == 1


def test_next_is_the_best_of_all_by_expectation() -> None:
    """One step: the worth found, or more where a plan that is worth more keeps its target."""
    kept = candidate(1.0, 0.8, has_kept=True)
    for shares in product((0.85, 1.0, 1.15), repeat=3):
        others = [candidate(1.1 + 0.2 * n, share) for n, share in enumerate(shares)]
        gains = [(each.worth - 1.0) * fmean(each.chances()) for each in others]
        assert best_next([kept, *others], []) == 1 + gains.index(max(gains))


def test_the_first_trial_is_the_one_of_most_expected_worth() -> None:
    """A confidence may ask for a plan that does far less than one which is likely to keep its targets too."""
    plans = [ServingPlan(None, None)] * 3  # type: ignore[arg-type]
    for shares in product((0.8, 0.95, 1.05), repeat=2):
        candidates = [candidate(1.0, 0.7), *(candidate(1.6 + 0.4 * n, share) for n, share in enumerate(shares))]
        worths = [each.worth * fmean(each.chances()) for each in candidates]
        first = ordered_trials(plans, candidates, most=1)[0]
        assert first.chance_kept == pytest.approx(fmean(candidates[worths.index(max(worths))].chances()), abs=1e-12)


def test_outcomes_tell_of_the_others() -> None:
    plans = [ServingPlan(None, None)] * 2  # type: ignore[arg-type]
    (first, _) = ordered_trials(plans, [candidate(1.0, 0.9), candidate(1.1, 1.0)], most=2)
    kept, missed = first.tells
    assert "worth 10% more" in kept and "50% before" in kept
    shares = [int(words.split("with ")[1].split("%")[0]) for words in (kept, missed)]
    assert shares[0] > 50 > shares[1]


@pytest.mark.usefixtures("short_simulations", "few_batch_limits")
def test_trials_of_a_request_hold_its_plan_and_leave_out_what_ran() -> None:
    search = Search(tp=(1, 2), pp=(1,))
    request = serving_request(rate=14.0, confidence=0.9, ttft_ms=400.0, tpot_ms=14.0, search=search)
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    ran: list[ServingPlan] = []

    def trials_after(outcome: bool | None) -> tuple[object, ...]:
        def has_kept(each: ServingPlan) -> bool | None:
            ran.append(each)
            return outcome if each.plan.layout == plan.layout else None

        found = serving_trials(request, plan, most=8, has_kept=has_kept, stop=never_stop)
        return tuple(trial.plan.layout for trial in found)

    before, after = trials_after(None), trials_after(True)
    assert plan.layout in before and len(before) >= 2 and len(set(map(repr, before))) == len(before)
    assert sorted(map(repr, after)) == sorted(repr(each) for each in before if each != plan.layout)
    assert all(each.request.slo.confidence <= 0.97 for each in ran)
    assert any(each.plan.devices < plan.devices for each in ran)


def test_plans_of_equal_layouts_are_one_and_nothing_fits_is_refused() -> None:
    request = serving_request(confidence=0.9, search=Search(tp=(1,)))
    plan = solve(replace(request, slo=replace(request.slo, confidence=0.5)), stop=lambda: True, progress=ignore_progress)
    assert not plan.feasible
    with pytest.raises(PlanFileError, match="nothing to try"):
        serving_trials(request, plan, most=2, has_kept=lambda each: None, stop=never_stop)


@pytest.mark.usefixtures("short_simulations", "few_batch_limits")
def test_each_layout_is_a_candidate_once() -> None:
    request = serving_request(search=Search(tp=(1,), pp=(1,)))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    asked: list[float] = []

    def same(other: object) -> object:
        asked.append(other.slo.confidence)  # type: ignore[attr-defined]
        return plan

    assert len(serving_candidates(request, plan, solve=same)) == 1  # type: ignore[arg-type]
    assert asked == [0.97, 0.75, 0.3]
