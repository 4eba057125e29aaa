"""Predictions of rows, and what calibration may see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.calibration import LEAST_ROWS, LeftOut, calibrate, figures
from meshwright.app.evidence.serving.deployment import deployment
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay
from meshwright.app.evidence.serving.report import serving_report
from meshwright.app.evidence.training.cells import NotPredictedError
from tests.support.command_line import Cli
from tests.unit.app.validation.serving.tables import point, points, write_points

OTHER_MODEL = {"model": "meta-llama/Llama-3.1-70B", "gpu": "h200_sxm", "tp": "8", "n_gpus": "8"}


def test_predictions_do_not_look_at_what_was_measured(tmp_path: Path) -> None:
    first, second = points(tmp_path, {}, {"ttft_ms": "7", "tpot_ms": "900"})
    constants = default_constants(EngineName.VLLM)
    assert replay(deployment(first.run), constants) == replay(deployment(second.run), constants)


def test_more_clients_wait_longer_and_get_more_done(tmp_path: Path) -> None:
    few, many = (
        replay(deployment(point(tmp_path, concurrency=n).run), default_constants(EngineName.VLLM)) for n in ("4", "64")
    )
    assert many.ttft_mean_ms > few.ttft_mean_ms
    assert many.tpot_ms > few.tpot_ms
    assert many.output_tokens_per_s > few.output_tokens_per_s


def test_clients_are_shared_by_replicas(tmp_path: Path) -> None:
    constants = default_constants(EngineName.VLLM)
    one = replay(deployment(point(tmp_path, concurrency="8").run), constants)
    four = replay(deployment(point(tmp_path, concurrency="32", n_gpus="4").run), constants)
    assert four.tpot_ms == one.tpot_ms
    assert four.output_tokens_per_s == pytest.approx(4 * one.output_tokens_per_s)


def test_full_load_keeps_the_engine_full(tmp_path: Path) -> None:
    constants = default_constants(EngineName.TENSORRT_LLM)
    row = {"engine": "trtllm", "osl": "32"}
    full = replay(deployment(point(tmp_path, **row, concurrency="max_load(all queued)").run), constants)
    assert full.output_tokens_per_s > replay(deployment(point(tmp_path, **row).run), constants).output_tokens_per_s


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    deployed = deployment(point(tmp_path, model="meta-llama/Llama-3.1-70B", precision="").run)
    with pytest.raises(NotPredictedError, match="do not fit in memory"):
        replay(deployed, default_constants(EngineName.VLLM))


def test_a_group_is_never_calibrated_on_its_own_rows(tmp_path: Path) -> None:
    """Constants for a group follow the other group's rows, whatever its own say."""
    lengths = [{"osl": str(64 + n)} for n in range(LEAST_ROWS)]

    def folds(**own: str) -> dict[tuple[str, str], object]:
        rows = points(tmp_path, *(n | own for n in lengths), *(n | OTHER_MODEL for n in lengths))
        return {fold.key: fold.constants for fold in calibrate(rows).folds}

    slow, fast = folds(tpot_ms="40", ttft_ms="5000"), folds(tpot_ms="7", ttft_ms="50")
    own, other = ("llama-3.1-8b", "dgx-h100"), ("llama-3.1-70b", "dgx-h200")
    assert slow[own] == fast[own]
    assert slow[other] != fast[other]


def test_calibration_finds_the_constants_that_made_the_rows(tmp_path: Path) -> None:
    lengths = [{"osl": str(64 + n)} for n in range(LEAST_ROWS)]
    made = []
    for row, measured in zip(lengths, points(tmp_path, *lengths), strict=True):
        true = figures(deployment(measured.run), replace(default_constants(EngineName.VLLM), step_s=1.5e-3, request_s=0.06))
        made.append(row | {"ttft_ms": str(true.ttft_mean_ms), "tpot_ms": str(true.tpot_ms)})
    rows = points(tmp_path, *made, {"gpu": "h200_sxm"})
    fitted = {fold.key: fold.constants for fold in calibrate(rows).folds}["llama-3.1-8b", "dgx-h200"]
    assert (fitted.step_s, fitted.request_s) == (1.5e-3, 0.06)


def test_rows_that_leave_their_workers_open_are_not_fitted_to(tmp_path: Path) -> None:
    lengths = [{"osl": str(64 + n)} for n in range(LEAST_ROWS)]
    (open_rows,) = calibrate(points(tmp_path, *(n | {"tp": "", "ep": "", "n_gpus": "1"} for n in lengths), OTHER_MODEL)).folds[
        1:
    ]
    (stated,) = calibrate(points(tmp_path, *lengths, OTHER_MODEL)).folds[1:]
    assert (open_rows.rows, stated.rows) == (0, LEAST_ROWS)


def test_few_rows_leave_the_profile(tmp_path: Path) -> None:
    (fold,) = calibrate(points(tmp_path, {})).folds
    assert (fold.rows, fold.constants) == (0, default_constants(EngineName.VLLM))


def test_every_row_is_counted(tmp_path: Path) -> None:
    report = serving_report(points(tmp_path, {}, {"gpu": "abacus"}, {"concurrency": ""}), file="p.csv")
    assert (report.total.rows, report.total.predicted) == (3, 1)
    assert sum(n for _, n in report.total.reasons) == 2
    assert report.total.roofline.tpot is not None


def test_the_page_fits_eighty_columns(cli: Cli) -> None:
    table = write_points(cli.folder / "m.csv", {}, {"gpu": "abacus"})
    assert cli("validate", str(table)) == 0
    assert "1 of 2 rows predicted" in cli.out
    assert "GPU not in the catalogue: abacus" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80


def test_json_is_one_document(cli: Cli) -> None:
    assert cli("validate", str(write_points(cli.folder / "m.csv", {})), "--json") == 0
    assert json.loads(cli.out)["schema"] == "meshwright.serving-validation/1"


def test_columns_of_other_names_are_ignored(cli: Cli) -> None:
    table = write_points(cli.folder / "m.csv", {})
    header, row = table.read_text(encoding="utf-8").splitlines()
    table.write_text(f"{header},colour\n{row},blue\n", encoding="utf-8")
    assert cli("validate", str(table)) == 0
    assert "Columns that nothing is read from: colour" in cli.out


def test_models_of_a_folder_are_for_serving_points(cli: Cli) -> None:
    table = write_points(cli.folder / "m.csv", {})
    assert cli("validate", str(table), "--models", str(cli.folder / "none")) == 2
    assert "there is no such folder of models" in cli.err


def test_a_statistic_that_is_stated_is_the_one_compared(tmp_path: Path) -> None:
    stated, unstated = (
        serving_report(points(tmp_path, {"ttft_stat": said, "ttft_p99_ms": "900"}), file="p.csv").total.calibrated
        for said in ("median", "")
    )
    assert stated.ttft == stated.ttft_as_median
    assert unstated.ttft == unstated.ttft_as_mean
    assert stated.ttft != unstated.ttft
    assert stated.ttft_p99 is not None


def test_constants_without_the_source(tmp_path: Path) -> None:
    """Constants for rows of one source follow the others' rows."""
    lengths = [{"osl": str(64 + n)} for n in range(LEAST_ROWS)]
    ours = "db-dump/2026-04-27"

    def folds(**own: str) -> dict[tuple[str, ...], object]:
        rows = points(tmp_path, *(n | own | {"note": ours} for n in lengths), *lengths)
        return {fold.key: fold.constants for fold in calibrate(rows, left_out=LeftOut.SOURCE).folds}

    slow, fast = folds(tpot_ms="40", ttft_ms="5000"), folds(tpot_ms="7", ttft_ms="50")
    assert slow[("inferencex",)] == fast[("inferencex",)]
    assert slow[("other",)] != fast[("other",)]


def test_rows_with_drafts_are_not_fitted_to(tmp_path: Path) -> None:
    lengths = [{"osl": str(64 + n), "speculation": "mtp"} for n in range(LEAST_ROWS)]
    assert all(fold.rows == 0 for fold in calibrate(points(tmp_path, *lengths, OTHER_MODEL)).folds)


def test_a_table_without_an_answer_is_a_no(cli: Cli) -> None:
    assert cli("validate", str(write_points(cli.folder / "m.csv", {"gpu": "abacus"}))) == 1


def test_a_table_with_a_wrong_cell_is_refused(cli: Cli) -> None:
    assert cli("validate", str(write_points(cli.folder / "m.csv", {"ttft_ms": "soon"}))) == 2
    assert "line 2, column ttft_ms" in cli.err
