"""Errors, order of plans, fit; and the report over them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy_tables import Series, report_scatter, report_tables, scatter_svg, worst_first
from meshwright.app.evidence.training.prediction import Prediction
from meshwright.app.evidence.training.report import report_document, report_of, validate
from meshwright.app.evidence.training.scores import ScoredRun, errors, regret, score_source, spearman
from tests.unit.app.validation.tables import measured, write_table


def scored(folder: Path, *, predicted_s: float, measured_s: float, fits: bool = True, **cells: str) -> ScoredRun:
    row = measured(folder, step_time_s=str(measured_s), **cells)
    return ScoredRun(row, Prediction(predicted_s, 40.0, fits))


def test_errors_are_relative_to_what_was_measured() -> None:
    found = errors([1.1, 0.7, None])
    assert found is not None
    assert (found.n, found.mape, found.median, found.bias) == pytest.approx((2, 0.2, 0.2, -0.1))
    assert errors([None]) is None


def test_rank_correlation_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9**0.5)  # ranks 0.5, 0.5, 2, 3
    assert spearman([5, 5, 5], [1, 2, 3]) == 0


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=9, unique=True))
def test_order_is_all_that_rank_correlation_sees(values: list[float]) -> None:
    assert spearman(values, [7 * value**3 for value in values]) == pytest.approx(1)
    assert regret(values, [7 * value**3 for value in values]) == 0


def test_regret_is_what_the_wrong_choice_costs() -> None:
    assert regret([3, 1, 2], [10, 15, 20]) == pytest.approx(0.5)


def test_scores_of_a_source(tmp_path: Path) -> None:
    runs = [
        scored(tmp_path, predicted_s=1, measured_s=2),
        scored(tmp_path, predicted_s=3, measured_s=3),
        scored(tmp_path, predicted_s=5, measured_s=4, fits=False),
        scored(tmp_path, predicted_s=5, measured_s=4, fits=False, status="oom"),
        scored(tmp_path, predicted_s=5, measured_s=4, status="oom"),
        ScoredRun(measured(tmp_path), None, "because"),
    ]
    score = score_source("ours", runs)
    assert (score.rows, score.predicted, score.reasons) == (6, 5, (("because", 1),))
    assert score.time is not None and score.time.n == 3  # a run out of memory has no time
    assert score.memory is not None and score.memory.bias == pytest.approx(-0.2)
    assert score.fit is not None
    assert (score.fit.accuracy, score.fit.recall, score.fit.false_alarms) == (3 / 5, 1 / 2, 1)
    assert score.ranking is not None
    assert (score.ranking.groups, score.ranking.mean_regret) == (1, 0)
    assert score.ranking.spearman == pytest.approx(1)


def test_groups_too_small_to_rank_are_left_out(tmp_path: Path) -> None:
    runs = [scored(tmp_path, predicted_s=1, measured_s=2, group=str(number // 2)) for number in range(4)]
    assert score_source("ours", runs).ranking is None


def test_a_source_counts_once_in_the_mean(tmp_path: Path) -> None:
    runs = [scored(tmp_path, predicted_s=1.4, measured_s=1, source_id="small")]
    runs += [scored(tmp_path, predicted_s=1.2, measured_s=1, source_id="large") for _ in range(3)]
    report = report_of(runs, file="x.csv")
    assert report.mean_time_mape == pytest.approx(0.3)
    assert report.total.time is not None and report.total.time.mape == pytest.approx(0.25)
    assert worst_first(report, {"small": "Reason."}).splitlines()[0] == "1. `small`, off by 40%, bias +40%. Reason."


def test_every_row_is_in_the_document(tmp_path: Path) -> None:
    report = validate(write_table(tmp_path / "t.csv", {}, {"gpu": ""}, {"quality": "C", "status": "oom", "step_time_s": ""}))
    document = json.loads(json.dumps(report_document(report), allow_nan=False))
    assert document["coverage"] == {"A": {"rows": 2, "predicted": 1}, "C": {"rows": 1, "predicted": 1}}
    assert [run["line"] for run in document["runs"]] == [2, 3, 4]
    assert document["runs"][1]["not_predicted"] == "the row does not say which GPU"
    assert document["total"]["reasons"] == {"the row does not say which GPU": 1}
    assert "| ours | 3 | 2 | 1 |" in report_tables(report)


@pytest.mark.parametrize(("licence", "shown"), [("MIT", 1), ("CC BY-NC-SA 4.0", 0), ("none stated", 0)])
def test_points_are_drawn_only_where_the_licence_lets_them(tmp_path: Path, licence: str, shown: int) -> None:
    svg = report_scatter(report_of([scored(tmp_path, predicted_s=2, measured_s=3, licence=licence)], file="x"))
    assert svg.count("ours") == shown


def test_the_plot_puts_measured_across_and_predicted_up() -> None:
    root = ElementTree.fromstring(scatter_svg([Series("<a & b>", ((1.0, 10.0),)), Series("b", ((10.0, 1.0),))]))
    dots = [path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke-opacity")]
    (ax, ay), (bx, by) = ([float(v) for v in dot.removeprefix("M").removesuffix("h0").split()] for dot in dots)
    assert ax < bx
    assert ay < by  # SVG counts downwards
    assert any(text.text == "<a & b> (1)" for text in root.iter("{http://www.w3.org/2000/svg}text"))


def test_nothing_to_draw_is_an_empty_frame() -> None:
    ElementTree.fromstring(scatter_svg([]))
