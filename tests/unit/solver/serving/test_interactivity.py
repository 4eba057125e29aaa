"""Throughput of a device against tokens/s of a user: the sweep against every candidate by itself, and against simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.queueing.analytic.percentiles import batch_rates, predict_closed
from meshwright.costmodels.queueing.simulation.replica import SimulationResult, simulate_closed_loop
from meshwright.solver.answer.plan import Interactivity, InteractivityPoint, Plan
from meshwright.solver.control import Progress, ignore_progress, never_stop
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals, LognormalLength
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.workers.goodput import undominated
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import Rule
from tests.support.serving_layouts import pools_of, replicas_of
from tests.unit.solver.serving.requests import cluster, serving_request

SWEPT = Search(frontier=FrontierScope.SWEPT)
MIXED = replace(
    cluster(per_node=2), groups=(*cluster(per_node=2).groups, *cluster(node="dgx-h200", per_node=2, name="b").groups)
)

pytestmark = pytest.mark.usefixtures("short_simulations")


def planned(request: ServingRequest) -> Plan:
    plan = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(plan, request) == ()
    return plan


def drawn(request: ServingRequest) -> Interactivity:
    interactivity = planned(request).interactivity
    assert interactivity is not None
    return interactivity


def by_itself(candidate: Candidate, evaluator: Evaluator) -> tuple[float, float] | None:
    """Tokens/s of a device and of a user with as many clients as places; None where prompts are too slow for that."""
    load = evaluator.traffic.load_of(Share(1.0))
    figures = predict_closed(candidate.engine.times, load, candidate.limits, clients=candidate.sequences)
    if figures.mean_batch < candidate.sequences:
        figures = predict_closed(candidate.engine.times, load, candidate.limits, clients=int(figures.mean_batch))
    rates = batch_rates(candidate.engine.times, load, candidate.limits)
    prefill_s = float(rates.prefill_s[int(figures.mean_batch) - 1])
    residence_s = (load.output.mean - 1.0) * figures.tpot_p95_s + prefill_s
    requests_per_s = figures.mean_batch / residence_s
    layout = candidate.engine.layout
    if requests_per_s * prefill_s > 1.0:
        return None
    return requests_per_s * load.output.mean * layout.grid.attention_dp / layout.devices, 1.0 / figures.tpot_p95_s


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_",
    [
        serving_request(search=SWEPT),
        serving_request(output=LognormalLength(mean=150.0, p95=400.0), on=MIXED, search=SWEPT, rate=1.0),
        serving_request(
            prompt=6000, output=20, search=replace(SWEPT, tp=(1, 2), pp=(1, 2)), ttft_ms=None, tpot_ms=None, rate=1.0
        ),
    ],
    ids=["one kind", "two kinds, lognormal", "long prompts, restricted"],
)
def test_no_candidate_beats_a_point_and_every_point_is_attained(request_: ServingRequest) -> None:
    evaluator = Evaluator(request_.workload, promised_of(request_), request_.search.seed)
    builder = EngineBuilder(request_, sequence_tokens=evaluator.longest_request)
    points = drawn(request_).points
    found: dict[tuple[object, ...], tuple[float, float]] = {}
    for layout in layouts(request_):
        for candidate in evaluator.candidates(builder.engine(layout)):
            figures = by_itself(candidate, evaluator)
            if figures is not None:
                found[layout.group.name, layout.name, candidate.step_tokens, candidate.sequences] = figures
    assert len(points) > 2
    for point in points:
        own = found[point.group, point.summary, point.max_num_batched_tokens, point.max_num_seqs]
        assert (point.tokens_per_s_per_device, point.tokens_per_s_per_user) == pytest.approx(own, rel=1e-12)
        slightly = 1.0 + 1e-9
        better = [
            f for f in found.values() if f[0] >= own[0] and f[1] >= own[1] and max(f[0] / own[0], f[1] / own[1]) > slightly
        ]
        assert better == []
    for device, user in found.values():
        assert any(
            p.tokens_per_s_per_device >= device * (1 - 1e-12) and p.tokens_per_s_per_user >= user * (1 - 1e-12) for p in points
        )


def test_points_are_near_the_simulated_steady_state() -> None:
    request = serving_request(search=replace(SWEPT, pp=(1,)), prompt=2000, output=500, tpot_ms=None)
    evaluator = Evaluator(request.workload, promised_of(request), 0)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = {layout.name: builder.engine(layout) for layout in layouts(request)}
    for point in drawn(request).points[::3]:
        candidate = Candidate(engines[point.summary], point.max_num_batched_tokens, point.max_num_seqs)
        (stream,) = evaluator.traffic.streams(Share(1.0), max(100, 20 * point.max_num_seqs))
        clients = int(point.batch)
        result = simulate_closed_loop(candidate.engine.times, stream, candidate.limits, concurrency=clients)
        assert 1.0 / point.tokens_per_s_per_user == pytest.approx(float(np.mean(result.tpot_s)), rel=0.1)


def test_the_plan_is_marked_at_its_load() -> None:
    request = serving_request(rate=9.0, tpot_ms=12.0, search=SWEPT)
    plan = planned(request)
    assert plan.interactivity is not None and plan.predicted is not None and plan.predicted.tpot_p95_s is not None
    assert plan.interactivity.plan_tokens_per_s_per_device == pytest.approx(9.0 * 100 / plan.devices)
    assert plan.interactivity.plan_tokens_per_s_per_user > 1.0 / plan.predicted.tpot_p95_s


def test_pools_are_marked_too() -> None:
    search = replace(SWEPT, modes=(ServingMode.DISAGGREGATED,))
    plan = planned(serving_request(search=search))
    assert pools_of(plan) and plan.interactivity is not None
    assert plan.interactivity.plan_tokens_per_s_per_user > 0.0


@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.THROUGHPUT])
def test_who_does_not_ask_gets_the_same_plan_without_it(objective: Objective) -> None:
    request = serving_request(objective=objective, rate=1.0)
    swept = planned(replace(request, search=SWEPT))
    assert planned(request) == replace(swept, interactivity=None)
    assert swept.interactivity is not None


def test_one_output_token_has_no_chart() -> None:
    plan = planned(serving_request(output=1, tpot_ms=None, search=SWEPT))
    assert plan.interactivity is None
    assert any("second token" in note for note in plan.notes)


def test_a_time_limit_before_the_sweep_leaves_the_plan_and_a_note() -> None:
    decided: list[bool] = []

    def progress(now: Progress) -> None:
        if now.done == now.total:
            decided.append(True)

    plan = plan_serving(serving_request(search=SWEPT), stop=lambda: bool(decided), progress=progress)
    assert decided and plan.feasible and plan.interactivity is None
    assert "search.time_limit_s" in plan.notes[-1]


def test_clients_in_a_closed_loop_take_the_turnaround_of_the_engine() -> None:
    request = serving_request(ttft_ms=None, tpot_ms=None)
    workload = replace(request.workload, arrivals=ClosedArrivals(process="closed", concurrency=4))
    evaluator = Evaluator(workload, promised_of(request), 0)
    engine = EngineBuilder(request, sequence_tokens=evaluator.longest_request).engine(next(iter(layouts(request))))

    def answered(turnaround_s: float) -> SimulationResult:
        candidate = Candidate(replace(engine, turnaround_s=turnaround_s), 2048, 4)
        (result,) = evaluator.simulations_of(candidate, Share(4.0), requests=40)
        return result

    none, long = answered(0.0), answered(0.5)
    # Ten requests of each client, each but the first after its turnaround.
    assert long.duration_s > none.duration_s + 9 * 0.4
    assert float(np.mean(long.ttft_s)) < float(np.mean(none.ttft_s)) + 0.1


def test_clients_in_a_closed_loop_have_the_chart_of_arrivals() -> None:
    open_loop = serving_request(search=SWEPT)
    clients = replace(open_loop.workload, arrivals=ClosedArrivals(process="closed", concurrency=16))
    # How requests come is not in a steady state.
    assert drawn(replace(open_loop, workload=clients)).points == drawn(open_loop).points


def test_the_checker_knows_a_chart_that_is_none() -> None:
    request = serving_request(search=SWEPT)
    plan = planned(request)
    chart = plan.interactivity
    assert chart is not None
    first = chart.points[0]

    def with_first(point: InteractivityPoint) -> Interactivity:
        return replace(chart, points=(point, *chart.points[1:]))

    wrong = [
        replace(chart, points=chart.points[::-1]),
        replace(chart, points=(first, *chart.points)),
        replace(chart, plan_tokens_per_s_per_device=1.0),
        with_first(replace(first, devices=first.devices + 1)),
        with_first(replace(first, group="elsewhere")),
        with_first(replace(first, batch=first.max_num_seqs + 1.0)),
        with_first(replace(first, tokens_per_s_per_device=first.tokens_per_s_per_device * 1e3)),
    ]
    for faulty in wrong:
        assert {violation.rule for violation in check(replace(plan, interactivity=faulty), request)} == {Rule.FRONTIER}
    restricted = replace(request, search=replace(SWEPT, tp=(replicas_of(plan).axes.tp,)))
    assert {v.rule for v in check(plan, restricted)} == {Rule.FRONTIER}
    assert {v.rule for v in check(plan, replace(request, search=Search()))} == {Rule.FRONTIER}


def test_of_equal_points_the_first_stays() -> None:
    point = drawn(serving_request(search=replace(SWEPT, tp=(1,), pp=(1,)))).points[0]
    slower = replace(point, tokens_per_s_per_user=point.tokens_per_s_per_user / 2)
    assert undominated([point, replace(point, summary="same"), slower]) == [point]
