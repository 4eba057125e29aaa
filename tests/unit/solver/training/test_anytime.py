"""Progress of searches in several parts: nothing worse than before is told."""

from __future__ import annotations

import pytest

from meshwright.solver.control import Progress, ignore_progress, never_stop, steps_of
from meshwright.solver.problem.choices import Space
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.planner import NeverWorse, plan_training
from meshwright.solver.training.search.best_first import search
from tests.unit.solver.training.instances import random_request


def test_a_listener_keeps_the_best_plan_and_the_highest_bound() -> None:
    told: list[Progress] = []
    listener = NeverWorse(told.append, 1.0, alone=True)
    for best, bound in ((None, 2.0), (9.0, 1.5), (None, 3.0), (10.0, 2.0), (8.0, None)):
        listener(Progress(0, 1, best, bound, "", None if best is None else lambda: None))
    assert [moment.best for moment in told] == [None, 9.0, 9.0, 9.0, 8.0]
    assert [moment.bound for moment in told] == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert told[2].incumbent is not None
    # A figure without a plan is none of the whole search's, nor is the bound of one form that of all.
    among = NeverWorse(told.append, 1.0, alone=False)
    among(Progress(0, 1, 7.0, 5.0))
    assert (told[-1].best, told[-1].bound) == (None, 1.0)
    steps_of(among)(Progress(3, 4, 0.5, 0.5, "", lambda: None))
    assert (told[-1].done, told[-1].best, told[-1].bound) == (3, None, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_search_never_tells_less_than_before(seed: int) -> None:
    request = random_request(seed)
    told: list[Progress] = []
    plan = plan_training(request, stop=never_stop, progress=told.append)
    best = [moment.best for moment in told if moment.best is not None]
    bounds = [moment.bound for moment in told if moment.bound is not None]
    assert best == sorted(best, reverse=True) and bounds == sorted(bounds)
    if plan.certificate.objective is not None:
        assert all(each >= plan.certificate.objective * (1 - 1e-9) for each in best)
        assert all(each <= plan.certificate.objective * (1 + 1e-9) for each in bounds)


@pytest.mark.slow
def test_a_search_that_is_stopped_at_once_is_bounded_by_the_work_of_its_model() -> None:
    for seed in range(40):
        request = random_request(seed)
        if request.search.space is not Space.FREE:
            continue
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return asked > 40

        plan = plan_training(request, stop=stop, progress=ignore_progress)
        if plan.certificate.bound is not None and plan.certificate.objective is not None:
            least_s = compute_bound_s(request)
            assert plan.certificate.bound >= least_s * (1 - 1e-12)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", [seed for seed in range(60) if random_request(seed).search.space is not Space.FREE][:12])
def test_launchable_searches_in_bundles_find_the_same_plan(seed: int) -> None:
    request = random_request(seed)
    listed, bundled = (
        search(request, TrainingCosts(request), stop=never_stop, progress=ignore_progress, bundled=bundled)
        for bundled in (False, True)
    )
    assert (listed.best is None) == (bundled.best is None) and bundled.complete == listed.complete
    if listed.best is not None and bundled.best is not None:
        assert bundled.best.decision == listed.best.decision
        assert bundled.bound == pytest.approx(listed.bound, rel=1e-12)
