"""Pools on the chart of throughput against interactivity: all that enumeration finds, and what the checker refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.costmodels.queueing.analytic.percentiles import most_running, rates_at
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.plan import InteractivityPoint, Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import FrontierScope, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts, prefill_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.pools import form as pools_form
from meshwright.solver.serving.forms.pools.form import pools_points
from meshwright.solver.serving.forms.pools.pools import placed
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.requests import serving_request

BOTH = Search(
    modes=(ServingMode.AGGREGATED, ServingMode.DISAGGREGATED),
    engine=ServingEngine.SGLANG,
    frontier=FrontierScope.SWEPT,
    pp=(1,),
)

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def asked() -> ServingRequest:
    return serving_request(rate=2.0, prompt=4000, output=200, ttft_ms=2000.0, tpot_ms=40.0, search=BOTH)


def planned(request: ServingRequest) -> Plan:
    plan = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(plan, request) == ()
    return plan


def test_a_time_limit_among_the_pools_leaves_a_note_and_no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[bool] = []

    def late(*given: Any) -> Iterator[InteractivityPoint]:
        began.append(True)
        yield from pools_points(*given)

    monkeypatch.setattr(pools_form, "pools_points", late)
    plan = plan_serving(asked(), stop=lambda: bool(began), progress=ignore_progress)
    assert began and plan.feasible and plan.interactivity is None
    assert "search.time_limit_s" in plan.notes[-1]


def all_pools(request: ServingRequest) -> list[tuple[float, float]]:
    """Tokens/s of a device and of a user: all layouts, batch limits and numbers of workers that keep decode workers full."""
    evaluator = Evaluator(request.workload, promised_of(request), 0)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    load = evaluator.traffic.load_of(Share(2.0))
    prompts = [c for layout in prefill_layouts(request) for c in evaluator.candidates(builder.engine(layout))]
    answers = [c for layout in layouts(request) for c in evaluator.candidates(builder.engine(layout))]
    found = []
    for p, d in itertools.product(prompts, answers):
        size = float(most_running(load, d.limits))
        prompt_s = float(rates_at(p.engine.times, load, p.limits, np.ones(1)).prefill_s[0])
        round_s = float(rates_at(d.engine.times, load, d.limits, np.array([size])).round_s[0])
        answered_per_s = size / (199.0 * round_s)
        for computing, workers in itertools.product(range(1, 5), repeat=2):
            fits = placed(p.engine.layout, computing, d.engine.layout, workers) is not None
            if fits and computing / prompt_s >= workers * answered_per_s * (1.0 - 1e-9):
                devices = computing * p.engine.layout.devices + workers * d.engine.layout.devices
                found.append((workers * answered_per_s * 200.0 / devices, 1.0 / round_s))
    return found


def test_no_pools_lie_above_the_curve_and_all_drawn_ones_are_pools() -> None:
    request = asked()
    drawn = planned(request).interactivity
    assert drawn is not None
    curve = [(point.tokens_per_s_per_device, point.tokens_per_s_per_user) for point in drawn.points]
    known_points = all_pools(request)
    for device, user in known_points:
        assert any(d >= device * (1.0 - 1e-9) and u >= user * (1.0 - 1e-9) for d, u in curve)
    of_pools = [point for point in drawn.points if point.prefill is not None]
    assert of_pools
    known = np.array(known_points)
    for point in of_pools:
        here = np.array([point.tokens_per_s_per_device, point.tokens_per_s_per_user])
        assert np.isclose(known, here, rtol=1e-9).all(axis=1).any()


def test_pools_are_drawn_only_where_the_request_allows_them() -> None:
    request = replace(asked(), search=replace(BOTH, modes=(ServingMode.AGGREGATED,)))
    drawn = planned(request).interactivity
    assert drawn is not None
    assert all(point.prefill is None for point in drawn.points)


def test_one_broken_thing_breaks_its_own_rules() -> None:
    request = asked()
    plan = planned(request)
    assert plan.interactivity is not None
    points = plan.interactivity.points
    place = next(i for i, point in enumerate(points) if point.prefill is not None)
    point, pool = points[place], points[place].prefill
    assert pool is not None
    for broken in (
        replace(point, devices=point.devices + 1),
        replace(point, workers=point.workers + 1),
        replace(point, prefill=replace(pool, workers=pool.workers + 4)),
        replace(point, prefill=replace(pool, group="none")),
        replace(point, prefill=None),
    ):
        shown = replace(plan.interactivity, points=(*points[:place], broken, *points[place + 1 :]))
        assert {v.rule for v in check(replace(plan, interactivity=shown), request)} == {Rule.FRONTIER}
