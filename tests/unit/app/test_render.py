"""The page of a plan: what it says, that equal stages are folded, that it holds in 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from meshwright.app.base.figures import axes, band, bar, gib, number_range, percent, ranks_of, seconds, significant, spread
from meshwright.app.base.plan_words import certificate_in_words, rates_of
from meshwright.app.cli.pages.plan_page import NextStep, folded, print_plan
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.layouts import EngineLoad, Kinds, Replicas, WorkerKind
from meshwright.solver.answer.plan import Interactivity, InteractivityPoint, Plan
from meshwright.solver.answer.plan_record import ReplicaPool, ReplicaShares
from meshwright.solver.answer.predicted import GIVEN_PLAN, Band, Certificate, Predicted, Status
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan
from meshwright.solver.problem.choices import Launcher, Objective
from meshwright.solver.problem.launchers.table import asked_launcher
from meshwright.solver.problem.request import PlanRequest, Slo
from tests.support.fakes import feasible_plan, infeasible_plan, stage_memory
from tests.support.flat_plans import flat, with_fields
from tests.support.requests_given import resolved, serving, training

NEXT = NextStep("Plan stored as sha256:0", "meshwright export sha256:0 --to vllm")


SCREEN_LINES = 50
"""Lines of a terminal window that is nearly as high as a laptop's screen."""


def page(plan: Plan, request: PlanRequest, width: int = 80, *, full: bool = True) -> str:
    out = io.StringIO()
    print_plan(Console(file=out, width=width, highlight=False), plan, request, NEXT, full=full)
    return out.getvalue()


def test_the_page_fits_a_screen_and_says_what_the_full_one_adds() -> None:
    request = resolved(training(cluster={"catalog": "dgx-h100", "nodes": 4}))
    plan = replace(uneven_plan(request), notes=("a note of the plan", "another note"))
    short, whole = page(plan, request, full=False), page(plan, request)
    assert len(short.splitlines()) <= SCREEN_LINES
    assert "2 notes" in short and "a note of the plan" not in short
    assert "a note of the plan" in whole and "Space: " in whole and "--full" not in whole
    assert "Rests on" in short and "Next: " in short


def test_a_plan_that_was_chosen_by_cost_says_the_money() -> None:
    request = resolved(training(objective="cost"))
    plan = feasible_plan(request)
    assert plan.predicted is not None
    priced = replace(
        plan,
        certificate=replace(plan.certificate, objective=0.04586, unit="USD per step"),
        predicted=replace(plan.predicted, cost_per_million_tokens=0.17494),
    )
    assert "Costs 0.0459 USD per step, 0.175 USD per million tokens" in page(priced, request)
    assert "Costs" not in page(priced, resolved(training()))


def test_adapters_stand_in_the_question() -> None:
    workload = training()["workload"] | {"adapter": {"rank": 16, "targets": ["q_proj"], "base_format": "nf4"}}
    request = resolved(training(workload=workload, search={"launcher": "trl"}))
    words = " ".join(page(infeasible_plan(request), request).split())
    assert "LoRA of rank 16 beside q_proj over nf4 weights" in words


def test_what_makes_a_request_infeasible_is_never_left_out() -> None:
    request = resolved(training())
    plan = replace(infeasible_plan(request), notes=("a note of the plan",))
    assert page(plan, request, full=False) == page(plan, request)


def uneven_plan(request: PlanRequest) -> Plan:
    plan = feasible_plan(request, pp=16)
    stages = list(flat(plan).stages)
    stages[0] = replace(stages[0], blocks=(LayerSpan("embedding", 0, 1), LayerSpan("layer", 1, 7)), memory=stage_memory(70))
    stages[-1] = replace(stages[-1], blocks=(LayerSpan("layer", 1, 7), LayerSpan("head", 8, 1)), time_s=0.3)
    return with_fields(plan, stages=tuple(stages))


def test_ranks_of_a_stage_in_several_replicas_are_told_shortly() -> None:
    runs = [DeviceRange(8 * replica, 2) for replica in range(8)]
    assert ranks_of(runs[:1]) == "0-1"
    assert ranks_of([DeviceRange(4, 4), DeviceRange(0, 4)]) == "0-7"
    assert ranks_of(runs[:3]) == "0-1, 8-9, 16-17"
    assert ranks_of(runs) == "0-1, 8-9 ... 56-57"


def test_equal_stages_are_one_line() -> None:
    request = resolved(training(cluster={"catalog": "dgx-h100", "nodes": 4}))
    plan = uneven_plan(request)
    assert [[number for number, _ in run] for run in folded(flat(plan).stages)] == [[0], list(range(1, 15)), [15]]
    text = page(plan, request)
    assert "1-14   16 x layer each" in text
    assert "embedding + 7 x layer" in text
    assert "7 x layer + head" in text


def test_stages_with_other_axes_say_so() -> None:
    request = resolved()
    plan = feasible_plan(request)
    assert "axes" not in page(plan, request)
    stages = (flat(plan).stages[0], replace(flat(plan).stages[1], axes=Axes(dp=2, tp=2)))
    text = page(with_fields(plan, stages=stages), request)
    assert "axes" in text and "dp 2 x tp 2" in text


def test_replicas_of_every_node_group_are_shown() -> None:
    request = resolved()
    plan = feasible_plan(request)
    assert flat(plan).axes is not None and flat(plan).microbatch is not None
    stages = tuple(replace(stage, axes=Axes(dp=7)) for stage in flat(plan).stages)
    pool = ReplicaPool("damaged", 144, 14.5, Axes(dp=7), stages, (), False, "1f1b", flat(plan).microbatch)
    text = page(with_fields(plan, shares=ReplicaShares(368, 15.8, 0.14, (pool,))), request)
    assert "First node group: 368 sequences in 15.8 s" in text
    assert "damaged: 144 sequences in 14.5 s; layout: dp 7" in " ".join(text.split())


def test_a_plan_says_what_no_run_was_measured_with() -> None:
    request = resolved()
    plan = feasible_plan(request)
    assert "No run was measured" not in page(plan, request)
    longer = replace(request, workload=replace(request.workload, seq_len=2**18))
    assert "No run was measured with 262,144 tokens in a sequence (at most 131,072)" in page(plan, longer)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    request = resolved(training(cluster={"catalog": "dgx-h100", "nodes": 2048}))
    for plan in (uneven_plan(request), infeasible_plan(request)):
        assert max(len(line.rstrip()) for line in page(plan, request, width).splitlines()) <= width


def test_a_target_that_is_missed_is_taken_and_allowed() -> None:
    request = resolved()
    plan = infeasible_plan(request)
    assert plan.reason is not None
    text = page(replace(plan, reason=replace(plan.reason, need=106.0, have=10.9, unit="s")), request)
    assert "takes 106 s, allowed 10.9 s" in text and "972% of what is allowed" in text


def test_infeasible_page_has_reason_numbers_and_remedies() -> None:
    request = resolved()
    text = page(infeasible_plan(request), request)
    assert "device memory is the tightest constraint in stage 0" in text
    assert "need 400.0 GiB, have 76.0 GiB" in text
    assert "526% of what there is" in text
    assert "use at least 6 nodes" in text
    assert "no plan in the launchable space meets every constraint" in text


def test_serving_page_has_latencies_and_replicas() -> None:
    request = resolved(serving())
    plan = feasible_plan(request)
    predicted = Predicted(tokens_per_s=900.0, peak_memory_bytes=1e10, ttft_p95_s=0.6, tpot_p95_s=0.028)
    assert flat(plan).axes is not None
    layout = Replicas(flat(plan).axes, flat(plan).stages, EngineLoad(3, 64, 8192, 0.61, 0.2, 0.02, 12.0))
    served = replace(plan, kind="serving", predicted=predicted)
    text = page(replace(served, layout=layout), request)
    assert "P95 TTFT 600 ms" in text and "P95 TPOT 28.0 ms" in text
    assert "3 replicas, 61% busy" in text
    assert "decode step" in text
    assert asked_launcher(request) is Launcher.VLLM
    asked = replace(request, search=replace(request.search, engine=ServingEngine.SGLANG))
    assert asked_launcher(asked) is Launcher.SGLANG
    third = replace(request, search=replace(request.search, engine=ServingEngine.TENSORRT_LLM))
    assert asked_launcher(third) is Launcher.TENSORRT_LLM


def test_the_page_says_how_requests_reach_replicas() -> None:
    drawn = resolved(serving())
    turns = replace(drawn, workload=replace(drawn.workload, router=Router.ROUND_ROBIN))
    plan = replace(feasible_plan(drawn), kind="serving")
    assert [", dealt out round robin" in " ".join(page(plan, asked).split()) for asked in (drawn, turns)] == [False, True]


def test_a_run_has_days_and_a_price_where_devices_have_one() -> None:
    request = resolved(training(workload=training()["workload"] | {"run_tokens": 86_400_000_000}))
    plan = feasible_plan(request)
    assert plan.predicted is not None
    figures = replace(plan.predicted, tokens_per_s=1e5, bands={"tokens_per_s": Band(5e4, 2e5, "a basis")})
    priced, unpriced = (replace(plan, predicted=replace(figures, cost_per_million_tokens=cost)) for cost in (0.25, None))
    said = " ".join(page(priced, request).split())
    assert "A run of 86.4 billion tokens takes 10.0 days (5.00 days to 20.0 days) and costs 21,600 USD." in said
    assert "its cost is unknown" in " ".join(page(unpriced, request).split())
    assert "A run of" not in page(priced, resolved(training()))


def test_a_plan_for_throughput_says_at_which_rate_its_figures_are() -> None:
    """250 tokens/s are a rate of 250 / 50; closed loops, other objectives and given plans are at what was asked."""
    work = serving()["workload"] | {"output_tokens": {"fixed": 50}}
    request = resolved(serving(workload=work, objective="throughput"))
    plan = replace(feasible_plan(request), kind="serving")
    assert plan.predicted is not None
    plan = replace(plan, predicted=replace(plan.predicted, tokens_per_s=250.0))
    assert "about 5.00 requests/s, the most at which the targets are kept" in str(rates_of(plan, request))
    asked = replace(plan.predicted, tokens_per_s=80.0)
    out = io.StringIO()
    print_plan(Console(file=out, width=300), plan, request, NEXT, full=False, at_asked=asked)
    first, second = out.getvalue().split("\n")[2:4]
    assert first.startswith("Feasible: 80.0 tokens/s") and first.rstrip().endswith("requests/s")
    assert second.startswith("At most 250 tokens/s") and second.rstrip().endswith("at 5.00 requests/s")
    free = replace(request, slo=Slo())
    assert "the most that the devices keep up with" in str(rates_of(plan, free))
    assert rates_of(plan, replace(request, objective=Objective.DEVICES)) is None
    given = replace(plan, certificate=replace(plan.certificate, space=GIVEN_PLAN))
    assert rates_of(given, request) is None
    assert rates_of(plan, resolved()) is None


def test_serving_page_draws_throughput_against_interactivity() -> None:
    request = resolved(serving())
    predicted = Predicted(tokens_per_s=900.0, peak_memory_bytes=1e10, ttft_p95_s=0.6, tpot_p95_s=0.028)
    plan = replace(feasible_plan(request), kind="serving", predicted=predicted, layout=None)
    points = tuple(
        InteractivityPoint("tp 2", "node", Axes(tp=2), 2, float(n), n, 8192, 10.0 * n, 100.0 - n) for n in (64, 32, 16, 8)
    )
    text = page(replace(plan, interactivity=Interactivity(points, 100.0, 30.0)), request)
    chart = [line.split("│", 1)[1] for line in text.splitlines() if "│" in line]
    marked = {mark: [(row, line.index(mark)) for row, line in enumerate(chart) if mark in line] for mark in "●◆"}
    # Throughput falls from line to line as the tokens of a user rise; the plan lies below and left of the curve.
    assert [column for _, column in marked["●"]] == sorted(column for _, column in marked["●"])
    assert len(marked["●"]) == 4 and marked["●"][0][0] == 0
    ((row, column),) = marked["◆"]
    assert any(other < row and right > column for other, right in marked["●"])
    assert "100 tokens/s a device, 30.0 tokens/s to a user" in text
    assert "promises of percentiles" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "◆" not in page(plan, request)


@pytest.mark.parametrize(
    ("status", "gap", "objective", "said"),
    [
        (Status.OPTIMAL, 0.0, "throughput", "Optimal: no plan in the launchable space is faster under this cost model."),
        (Status.OPTIMAL, 0.0, "devices", "Optimal: no plan in the launchable space needs fewer devices under"),
        (Status.FEASIBLE, 0.034, "cost", "Best found: no plan in the launchable space costs less by more than 3.4%"),
        (Status.FEASIBLE, None, "step_time", "Best found: no plan in the launchable space is faster under"),
    ],
)
def test_certificate_in_words(status: Status, gap: float | None, objective: str, said: str) -> None:
    request = replace(resolved(), objective=Objective(objective))
    plan = replace(feasible_plan(request), certificate=Certificate(status, 1.0, 1.0, gap, "s", "launchable by x"))
    assert certificate_in_words(plan, request).startswith(said)


@pytest.mark.parametrize("status", [Status.FEASIBLE, Status.INFEASIBLE])
def test_a_given_plan_claims_nothing_of_others(status: Status) -> None:
    request = resolved()
    plan = replace(feasible_plan(request), certificate=Certificate(status, 1.0, None, None, "s", GIVEN_PLAN))
    said = certificate_in_words(plan, request)
    assert "Proven" not in said and "no plan" not in said and "no search was made" in said.lower()


def test_undecided_is_not_infeasible() -> None:
    request = resolved()
    plan = replace(feasible_plan(request), certificate=Certificate(Status.UNDECIDED, None, None, None, "s", "launchable"))
    said = certificate_in_words(plan, request).lower()
    assert said.startswith("undecided") and "infeasible" not in said and "proven" not in said


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (seconds(0), "0 s"),
        (seconds(3.2e-6), "3.20 us"),
        (seconds(0.042), "42.0 ms"),
        (seconds(17.12), "17.1 s"),
        (seconds(1200), "20 min"),
        (gib(40 * 2**30), "40.0 GiB"),
        (percent(0.034), "3.4%"),
        (percent(0.75), "75%"),
        (percent(0), "0%"),
        (significant(61234.5), "61,234"),
        (axes(Axes(dp=4, tp=2)), "dp 4 x tp 2"),
        (axes(Axes()), "one device"),
        (number_range([3]), "3"),
        (number_range([4, 2, 3]), "2-4"),
        (spread(["a", "a"]), "a"),
        (spread(["a", "b", "c"]), "a .. c"),
        (band(100.0, Band(95.0, 106.0, "")), " (-5% to +6%)"),
        (band(100.0, None), ""),
    ],
)
def test_figures(shown: str, text: str) -> None:
    assert shown == text


@given(share=st.floats(-1, 3), width=st.integers(1, 60))
def test_bars_have_their_width(share: float, width: int) -> None:
    assert len(bar(share, width).plain) == width


@given(low=st.floats(0, 1), high=st.floats(0, 1))
def test_longer_bars_are_more(low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert bar(low).plain.count("█") <= bar(high).plain.count("█")


def test_every_kind_of_workers_is_shown() -> None:
    request = resolved(serving())
    plan = replace(feasible_plan(request), kind="serving")
    assert plan.predicted is not None
    kinds = tuple(
        WorkerKind(
            share,
            share * 10.0,
            plan.devices,
            plan.predicted,
            Replicas(Axes(tp=tp), flat(plan).stages, EngineLoad(2, 64, 8192, 0.5, 0.3, 0.02, 10.0)),
        )
        for share, tp in ((0.2, 4), (0.8, 8))
    )
    text = " ".join(page(replace(plan, layout=Kinds(kinds)), request).split())
    assert "20% of arrivals, 2.00 requests/s" in text and "80% of arrivals, 8.00 requests/s" in text
    assert "Layout: tp 4" in text and "Layout: tp 8" in text
