"""Open loops: how their rows are read, simulated and judged."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.deployment import Deployment, deployment
from meshwright.app.evidence.serving.open_loops import OpenLoop, cut_lognormal, lengths_of, open_figures, open_loop
from meshwright.app.evidence.serving.open_report import (
    FRONT_END_PER_S,
    OpenLaw,
    OpenPoint,
    fitted_open_law,
    open_point,
    open_report,
)
from meshwright.app.evidence.serving.open_rows import OPEN_COLUMNS, OPEN_OPTIONAL_COLUMNS, words_of_plan
from meshwright.app.evidence.serving.recipes import BenchmarkSource
from meshwright.app.evidence.serving.replay import default_constants, replay
from meshwright.app.evidence.serving.report import serving_report, serving_report_document, validate_serving
from meshwright.app.evidence.serving.rows import Arrival, MeasuredPoint, read_measured_points
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.models.checkpoint import CheckpointFormat
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.replica import Admission
from meshwright.costmodels.serving.engine_profile import Quantised
from meshwright.costmodels.units import DType
from tests.unit.app.validation.serving.tables import point

MADE_UP = {
    "source": "mlcommons/made_up/run_1",
    "submitter": "Ours",
    "system": "one",
    "accelerator": "NVIDIA H200-SXM-141GB",
    "nodes": "1",
    "acc_per_node": "8",
    "framework": "TensorRT 10.11, CUDA 12.9",
    "model": "llama2-70b-99.9",
    "dataset": "OpenOrca",
    "mean_in_tokens": "300.2",
    "mean_out_tokens": "999",
    "arrival": "Poisson, open loop",
    "rate_req_s": "40",
    "tokens_s": "12000",
    "ttft_mean_ms": "90",
    "ttft_p50_ms": "80",
    "ttft_p90_ms": "130",
    "ttft_p95_ms": "150",
    "ttft_p99_ms": "200",
    "tpot_mean_ms": "30",
    "tpot_p50_ms": "29",
    "tpot_p95_ms": "35",
    "tpot_p99_ms": "38",
    "slo_ttft_p99_ms": "450",
    "slo_tpot_p99_ms": "40",
    "plan": "precision=fp8 tensor_parallelism=1 max_num_tokens=3000 max_num_tokens=1536 kvcache_free_gpu_mem_frac=0.9",
}


def open_table(folder: Path, *changes: dict[str, str]) -> Path:
    path = folder / "open.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*OPEN_COLUMNS, *OPEN_OPTIONAL_COLUMNS, "licence"), restval="")
        writer.writeheader()
        writer.writerows(MADE_UP | change for change in changes)
    return path


def open_row(folder: Path, **changes: str) -> MeasuredPoint:
    (row,) = read_measured_points(open_table(folder, changes))
    return row


def test_a_row_of_result_files_is_read_as_a_serving_point(tmp_path: Path) -> None:
    row = open_row(tmp_path)
    run, outcome = row.run, row.outcome
    assert (run.arrival, run.requests_per_s, run.n_gpus) == (Arrival.POISSON, 40.0, 8)
    # Answers have tokens/s over the rate, whatever the column of means says.
    assert (run.prompt_tokens, run.output_tokens) == (300, 300)
    assert (run.submitter, run.system, run.dataset) == ("Ours", "one", "OpenOrca")
    assert (run.ttft_limit_p99_ms, run.tpot_limit_p99_ms) == (450.0, 40.0)
    assert (outcome.ttft.p50, outcome.ttft.p90, outcome.ttft.p95, outcome.ttft.p99) == (80.0, 130.0, 150.0, 200.0)
    assert (outcome.tpot.p50, outcome.tpot.p90, outcome.tpot.p95) == (29.0, None, 35.0)
    assert (outcome.ttft_ms, outcome.tpot_ms, outcome.output_tokens_per_s) == (90.0, 30.0, 12000.0)


def test_the_last_word_of_a_plan_counts() -> None:
    assert words_of_plan("a=1 b= c a=2") == {"a": "2"}


def test_a_row_is_deployed_as_its_plan_says(tmp_path: Path) -> None:
    deployed = deployment(open_row(tmp_path).run)
    assert (deployed.model, deployed.node, deployed.source) == ("llama-2-70b", "dgx-h200", BenchmarkSource.MLPERF)
    assert (deployed.decode.count, deployed.decode.tp, deployed.step_tokens) == (8, 1, 1536)
    assert (deployed.requests_per_s, deployed.clients, deployed.stated) == (40.0, None, True)
    assert deployed.flags.memory_share == 0.9
    limits = open_loop(deployed, default_constants(deployed.engine)).limits
    assert (limits.sequences, limits.admission) == (1536, Admission.PREEMPT)


@pytest.mark.parametrize(
    ("accelerator", "devices", "workers", "precision"),
    [
        ("NVIDIA H200-SXM-141GB-CTS", "8", (8, 1), "fp8"),
        ("NVIDIA H100-SXM-80GB", "8", (4, 2), "fp8"),
        ("NVIDIA B200-SXM-180GB", "4", (4, 1), "fp4"),
        ("Virtualized NVIDIA H200-SXM-141GB", "8", (8, 1), "fp8"),
        ("AMD Instinct MI300X-NPS1-SPX-192GB-750W", "8", (8, 1), "fp8"),
    ],
)
def test_without_a_plan_workers_are_the_smallest_that_leave_half(
    tmp_path: Path, accelerator: str, devices: str, workers: tuple[int, int], precision: str
) -> None:
    deployed = deployment(open_row(tmp_path, plan="", accelerator=accelerator, acc_per_node=devices).run)
    assert (deployed.decode.count, deployed.decode.tp) == workers
    assert deployed.precision == precision
    assert not deployed.stated


def test_all_queued_is_a_full_load(tmp_path: Path) -> None:
    row = open_row(tmp_path, arrival="all queued", ttft_p95_ms="", tpot_p95_ms="")
    deployed = deployment(row.run)
    assert row.run.arrival is Arrival.QUEUED
    assert deployed.requests_per_s is None and deployed.clients is None
    assert open_point(row, deployed) is None


def test_any_table_may_have_open_loops(tmp_path: Path) -> None:
    run = point(tmp_path, arrival="poisson", rate_req_s="4", concurrency="").run
    deployed = deployment(run)
    assert deployed.requests_per_s == 4.0
    assert point(tmp_path).run.arrival is Arrival.CLOSED
    with pytest.raises(NotPredictedError, match="rate of requests"):
        deployment(replace(run, requests_per_s=None))
    with pytest.raises(InvalidInputError, match="arrival"):
        point(tmp_path, arrival="sometimes")


def test_a_row_says_how_its_requests_reach_workers(tmp_path: Path) -> None:
    drawn, turns = (deployment(open_row(tmp_path, router=router).run) for router in ("", "round_robin"))
    assert (drawn.router, turns.router) == (Router.RANDOM, Router.ROUND_ROBIN)
    loops = [open_loop(each, default_constants(each.engine)) for each in (drawn, turns)]
    # Each of 8 workers gets every eighth request; what it keeps up with is the same.
    assert [loop.load.cv for loop in loops] == pytest.approx([1.0, 8**-0.5])
    assert loops[0].utilisation == loops[1].utilisation
    first = [loop.times_s(0.95, requests=2_000)[0] for loop in loops]
    assert first[1] < first[0]
    assert point(tmp_path, arrival="poisson", rate_req_s="4", router="round_robin").run.router is Router.ROUND_ROBIN
    with pytest.raises(InvalidInputError, match="router"):
        open_row(tmp_path, router="nearest")


def test_workers_that_a_router_looks_at_are_simulated_together(tmp_path: Path) -> None:
    drawn, fewest = (
        open_loop(deployed, default_constants(deployed.engine))
        for deployed in (deployment(open_row(tmp_path, router=router).run) for router in ("", "least_loaded"))
    )
    assert (drawn.together, fewest.together) == (1, 8)
    assert fewest.utilisation == drawn.utilisation
    drawn_s, fewest_s = (loop.times_s(0.95, requests=2_000) for loop in (drawn, fewest))
    assert fewest_s[0] < drawn_s[0] and fewest_s[1] <= drawn_s[1]


def test_lengths_are_cut_and_keep_their_mean() -> None:
    cut = cut_lognormal(294.0, 0.8, 1024)
    assert cut.mean == pytest.approx(294.0, rel=0.01)
    assert cut.values[-1] == 1024 and cut.values[0] < 60
    assert cut_lognormal(128.0, 0.0, 128).is_fixed


def test_lengths_of_unknown_data_sets_are_fixed(tmp_path: Path) -> None:
    known, other = (deployment(open_row(tmp_path, dataset=name).run) for name in ("OpenOrca", "ours"))
    assert not any(each.is_fixed for each in lengths_of(known))
    assert all(each.is_fixed for each in lengths_of(other))


def loop_of(folder: Path, **changes: str) -> tuple[Deployment, OpenLoop]:
    deployed = deployment(open_row(folder, **changes).run)
    return deployed, open_loop(deployed, default_constants(deployed.engine))


def test_a_factor_on_step_times_is_found_again(tmp_path: Path) -> None:
    _, loop = loop_of(tmp_path)
    _, tpot_s = loop.times_s(0.95, slowdown=1.2, requests=4000)
    assert loop.slowdown_of(tpot_s) == pytest.approx(1.2, rel=0.01)
    assert loop.slowdown_of(1e-9) is None


def test_slower_steps_cost_more_than_their_factor(tmp_path: Path) -> None:
    _, loop = loop_of(tmp_path, rate_req_s="80", tokens_s="24000")
    once, slower = loop.times_s(0.95), loop.times_s(0.95, slowdown=1.2)
    assert slower[0] > 1.2 * once[0] and slower[1] > 1.2 * once[1]


def test_goodput_is_the_rate_at_which_limits_still_hold(tmp_path: Path) -> None:
    _, loop = loop_of(tmp_path)
    rate = loop.goodput_of(0.45, 0.040)
    assert rate is not None and rate > 1.0
    kept, broken = (loop.times_s(0.99, rate=rate * by, requests=4000) for by in (0.98, 1.05))
    assert kept[0] + loop.outside_s <= 0.45 and kept[1] <= 0.040
    assert broken[0] + loop.outside_s > 0.45 or broken[1] > 0.040


class OpenErrors(OpenPoint):
    """A point whose first tokens are late by a factor, however long steps take."""

    def ttft_error(self, slowdown: float) -> float:
        return math.log(self.ttft_p95_s)


def made_up(
    loop: OpenLoop, *, submitter: str, step: float, late: float = 1.0, use: float = 0.5, rate: float = 5.0
) -> OpenPoint:
    return OpenErrors(
        line=2,
        submitter=submitter,
        system=f"{submitter} {step} {late} {rate}",
        model="llama-2-70b",
        node="dgx-h200",
        stated=True,
        utilisation=use,
        ttft={"p95": 1.0 / late},
        tpot={"p95": 1.0 / step},
        slowdown=step,
        goodput=None,
        today=(False, False),
        each_per_s=rate,
        ttft_p95_s=late,
        loop=loop,
    )


def test_the_law_covers_nine_of_ten_below_the_knee(tmp_path: Path) -> None:
    _, loop = loop_of(tmp_path)
    steps = [1.0 + 0.02 * n for n in range(1, 11)]
    points = [made_up(loop, submitter=f"s{n}", step=step, late=step) for n, step in enumerate(steps)]
    law = fitted_open_law(points)
    assert law is not None and law.slowdown() == pytest.approx(1.18)
    assert law.ttft_sigma == pytest.approx(law.step_sigma)
    # Neither rows near the knee nor first tokens of a busy front end are fitted to.
    knee = made_up(loop, submitter="near", step=3.0, use=0.95)
    front = [made_up(loop, submitter=f"s{n}", step=step, late=9.0, rate=FRONT_END_PER_S + 1) for n, step in enumerate(steps)]
    more = fitted_open_law([*points, knee, *front])
    assert more is not None and more.slowdown() == pytest.approx(1.18)
    assert more.ttft_sigma == pytest.approx(law.ttft_sigma)
    assert fitted_open_law([knee]) is None


def test_a_submitter_is_judged_by_the_rows_of_others(tmp_path: Path) -> None:
    _, loop = loop_of(tmp_path)
    points = [made_up(loop, submitter="fast", step=1.05), made_up(loop, submitter="slow", step=1.5)]
    report = open_report(points)
    assert report is not None
    # The slow one is above what the fast one says; the fast one below what the slow one says.
    assert report.scores[0].kept is not None and report.scores[0].kept[1] == 0.5
    given = open_report(points, law=OpenLaw(step_sigma=0.4, ttft_sigma=0.0, rows=2, submitters=2))
    assert given is not None and given.scores[0].kept == (1.0, 1.0)
    assert open_report([]) is None


def test_the_report_has_open_loops_and_counts_copies_once(tmp_path: Path) -> None:
    other = {"submitter": "Theirs", "system": "two", "tpot_p95_ms": "33"}
    report = validate_serving(open_table(tmp_path, {}, {}, other))
    assert report.ignored == ("licence",)
    assert report.open_loops is not None and report.open_loops.scores[0].rows == 2
    assert report.total.predicted == 3
    score = report.open_loops.scores[0]
    assert set(score.ttft) == {"p50", "p90", "p95", "p99"} and set(score.tpot) == {"p50", "p95", "p99"}
    document = json.loads(json.dumps(serving_report_document(report)))
    assert len(document["open_loops"]["points"]) == 2


def test_a_table_without_open_loops_says_nothing_of_them(tmp_path: Path) -> None:
    report = serving_report([point(tmp_path)], file="points.csv")
    assert report.open_loops is None and "open_loops" not in serving_report_document(report)


_BURST = {"concurrency": "open loop", "rate_req_s": "10", "requests": "300", "precision": "bfloat16", "ttft_ms": "60000"}


def test_a_row_with_a_rate_and_no_clients_is_an_open_loop(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, **_BURST, max_num_seqs="64", max_num_batched_tokens="2048").run)
    assert (found.requests_per_s, found.requests, found.clients) == (10.0, 300, None)
    assert (found.precision, found.flags.sequences, found.step_tokens) == (DType.BF16, 64, 2048)
    closed = deployment(point(tmp_path, **_BURST | {"concurrency": "8"}).run)
    assert (closed.requests_per_s, closed.clients, closed.requests) == (None, 8, None)


def test_a_finite_run_is_predicted_from_its_first_request_to_its_last(tmp_path: Path) -> None:
    """Twice the requests of a queue that grows wait twice as long; a run that goes on has no such end."""
    given = deployment(point(tmp_path, **_BURST | {"rate_req_s": "400"}, max_num_seqs="16").run)
    constants = default_constants(given.engine)
    loop = open_loop(given, constants)
    assert len(loop.run().ttft_s) == 300
    assert float(loop.run().requests.arrival_s[-1]) == pytest.approx(300 / 400)
    short, long = (open_figures(replace(given, requests=count), constants) for count in (300, 600))
    assert long.ttft_mean_ms == pytest.approx(2.0 * short.ttft_mean_ms, rel=0.15)
    answered_per_s = short.output_tokens_per_s / given.output_tokens
    assert 0.0 < answered_per_s < 400.0


def test_weights_in_int4_are_predicted(tmp_path: Path) -> None:
    row = {"model": "moonshotai/Kimi-K2.5", "gpu": "h200_sxm", "n_gpus": "8", "tp": "8", "precision": "int4"}
    found = deployment(point(tmp_path, **row).run)
    assert found.stored == CheckpointFormat(DType.BF16, WeightFormat.INT4, Quantised.FEED_FORWARD)
    assert replay(found, default_constants(found.engine)).tpot_ms is not None
