"""Ways to run a stage that are opened one by one: what a candidate takes before that, and runs of layers of equal blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages import objective_s
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s
from meshwright.solver.training.forms.stagewise.search import Layers, StagewiseSearch, unbeaten_runs
from meshwright.solver.training.forms.stagewise.stage_sizes import (
    Lines,
    StageWays,
    every_border,
    sized_request,
    stage_sizes,
    unlike_layers,
)
from meshwright.solver.training.search.bounds import SharedFigures
from tests.unit.solver.training.planned import planned
from tests.unit.solver.training.stagewise import stagewise_requests

ROUNDING = 1e-12
"""Relative difference of sums of the same figures in another order."""


def every_way(request: TrainingRequest, size: int) -> StageWays:
    group = request.cluster.groups[0]
    costs = TrainingCosts(sized_request(request, group, size, pp=2))
    return StageWays(SharedFigures(costs), every_border(request.cluster, group))


@pytest.mark.parametrize("place", range(3))
def test_no_way_takes_less_than_its_candidate_before_it_is_opened(place: int) -> None:
    request = list(stagewise_requests(place + 1))[place]
    n_opened = 0
    for size in stage_sizes(request, request.cluster.groups[0]):
        ways = every_way(request, size)
        for count in ways.counts:
            for candidates in ways.candidates(count, never_stop):
                before = _costs(candidates.lines)
                ways.open(candidates, never_stop)
                for own in _costs(candidates.lines):
                    slack = ROUNDING * np.where(np.isfinite(own), np.abs(own), 0.0)
                    assert (before <= own + slack).all(axis=1).any()
                    n_opened += 1
    assert n_opened > 10


def _costs(lines: Lines) -> np.ndarray:
    """[line, figure]: everything of which less is better."""
    flat = lines.figures.reshape(len(lines.step_s), -1)
    return np.column_stack([flat, lines.boundary_s, lines.step_s, -lines.capacity])


def test_costs_of_blocks_are_the_same_on_every_size() -> None:
    request = next(stagewise_requests(1))
    group = request.cluster.groups[0]
    small, large = (sized_request(request, group, size, pp=2) for size in (1, 2))
    borders, shared = every_border(request.cluster, group), TrainingCosts(small)
    known = StageWays(SharedFigures(shared), borders)
    for count in known.counts:
        known.candidates(count, never_stop)
    both = [StageWays(SharedFigures(costs), borders) for costs in (TrainingCosts(large), shared.on(large.cluster))]
    count = min(both[0].counts)
    one, other = (ways.candidates(count, never_stop) for ways in both)
    assert [each.family for each in one] == [each.family for each in other]
    assert all((_costs(a.lines) == _costs(b.lines)).all() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_equal_blocks_keep_what_may_be_best(seed: int) -> None:
    """Of a run of every cut, the best line under any neighbours is kept: as fast as the best of all lines."""
    request, rng = list(stagewise_requests(seed + 1))[seed], np.random.default_rng(seed)
    layers, n_layers = Layers.of(request.model), len(request.model.layers)
    n_unlike, n_lines, m = len(unlike_layers(request.model)), 40, 4
    figures = rng.uniform(0.5, 1.5, (n_lines, 8, n_unlike))
    lines = Lines(figures, rng.uniform(4, 24, (n_lines, 3)), rng.uniform(0, 1, (n_lines, 1)), rng.uniform(0, 1, n_lines))
    runs = unbeaten_runs(lines, 0, layers, n_microbatches=m, below_s=np.inf, stop=never_stop)
    for first in range(n_layers):
        for last in range(first, n_layers - (first == 0)):
            of = layers.unlike[first : last + 1]
            run, totals = layers.run_of[first, last], figures[:, :, of].sum(axis=2).T
            time_s, extra_s, static, kept, _, host, host_kept, drives = totals
            time_s, extra_s = time_s + lines.boundary_s[:, 0], extra_s + (lines.step_s if first else 0.0)
            static = static + figures[:, 4, of].max(axis=1)
            for held in range(1, m + 1):
                needs = np.column_stack([static + held * kept, host + held * host_kept, drives])
                fits = (needs <= lines.capacity).all(axis=1)
                known = np.flatnonzero(runs.later[run, : runs.number[run]] >= held - 1)
                tail_s, longest_s = rng.uniform(0, 8), rng.uniform(0, 8)
                best = [
                    min((objective_s([longest_s, t], [tail_s, x], m) for t, x in zip(ts, xs, strict=True)), default=np.inf)
                    for ts, xs in ((time_s[fits], extra_s[fits]), (runs.time_s[run, known], runs.extra_s[run, known]))
                ]
                assert best[0] == pytest.approx(best[1], rel=ROUNDING)


def test_a_search_that_is_stopped_on_its_way_has_a_bound_that_holds() -> None:
    """Wherever it is stopped, its plan is no worse than the given one, and its bound no more than the best plan's step."""
    *_, request = stagewise_requests(3)
    given = planned(replace(request, search=replace(request.search, stage_degrees=StageDegrees.SAME)))
    best_s = StagewiseSearch(request)(given, stop=never_stop, progress=ignore_progress).certificate.objective
    assert best_s is not None and given.certificate.objective is not None
    seen = set[Status]()
    for asked in range(0, 400, 40):
        left = iter(range(asked))
        plan = StagewiseSearch(request)(given, stop=lambda left=left: next(left, None) is None, progress=ignore_progress)
        seen.add(plan.certificate.status)
        assert plan.certificate.objective is not None and plan.certificate.bound is not None
        assert best_s <= plan.certificate.objective <= given.certificate.objective
        assert compute_bound_s(request) <= plan.certificate.bound <= best_s * (1 + 1e-9)
    assert Status.FEASIBLE in seen
