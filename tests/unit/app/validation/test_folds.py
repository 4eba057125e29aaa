"""Constants fitted to runs: known ones are found again, and no run sees its own group."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from meshwright.app.evidence.training.fitting import fit_constants, refit
from meshwright.app.evidence.training.folds import assigned_folds, fold_tables, folded_report, folds_document, group_of
from meshwright.app.evidence.training.prediction import Constant, Constants, predict_run, silicon_name
from meshwright.app.evidence.training.rows import ValidationRun, read_measured_runs
from meshwright.costmodels.hardware import device
from tests.support.command_line import Cli
from tests.unit.app.validation.tables import write_table

A100 = "a100_sxm/400W"
TRUE = Constants(
    {(Constant.MATRIX, A100): 0.8, (Constant.MEMORY, A100): 0.9, (Constant.INTRA_NODE_LINK, "ours/A100-SXM-80GB"): 0.7}
)
PLANS = ({"dp": "8", "tp": "1", "pp": "1"}, {"tp": "4"}, {"tp": "8", "pp": "1"}, {"tp": "2", "dp": "2"})
SIZES = ({"model": "a"}, {"model": "b", "n_layers": "24", "hidden": "3072", "heads": "24"}, {"model": "c", "seq_len": "8192"})


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[ValidationRun, ...]:
    """Runs that took what the model says at known constants."""
    return read_measured_runs(measured_at(tmp_path_factory.mktemp("folds") / "m.csv", TRUE))


def measured_at(path: Path, constants: Constants, **last: str) -> Path:
    cells = [size | plan for size in SIZES for plan in PLANS]
    runs = read_measured_runs(write_table(path, *cells))
    times = [{"step_time_s": str(predict_run(row.run, constants).step_time_s)} for row in runs]
    return write_table(path, *(cell | time for cell, time in zip(cells, times, strict=True)), *([last] if last else []))


def test_known_constants_are_found_again(rows: tuple[ValidationRun, ...]) -> None:
    found, _ = fit_constants(rows)
    assert found.rate(Constant.MATRIX, A100) == pytest.approx(0.8, abs=0.02)
    # The prior draws towards 1 what little of a step depends on.
    assert 0.7 < found.rate(Constant.INTRA_NODE_LINK, "ours/A100-SXM-80GB") < 0.95
    assert found.rate(Constant.INTER_NODE_LINK, "ours/A100-SXM-80GB") == 1.0
    assert found.rate(Constant.LOW_PRECISION_MATRIX, A100) == 1.0


def test_constants_of_one_model_hold_for_the_others(rows: tuple[ValidationRun, ...]) -> None:
    report = folded_report(rows, folds=3, file="m.csv")
    assert report.unfitted.mean_time_mape is not None and report.unfitted.mean_time_mape > 0.1
    assert report.held_out.mean_time_mape is not None and report.held_out.mean_time_mape < 0.02


def test_a_fit_without_a_group_does_not_see_it(rows: tuple[ValidationRun, ...]) -> None:
    chosen = np.array([group_of(row)[0] != "a" for row in rows])
    _, parts = fit_constants(rows)
    others = [row if taken else rows[0] for row, taken in zip(rows, chosen, strict=True)]
    assert refit(parts, rows, chosen) == refit(parts, others, chosen)


def test_one_run_far_off_moves_constants_little(tmp_path: Path) -> None:
    straggler = read_measured_runs(measured_at(tmp_path / "m.csv", TRUE, model="a", tp="2", dp="2", step_time_s="100"))
    found, _ = fit_constants(straggler)
    assert found.rate(Constant.MATRIX, A100) == pytest.approx(0.8, abs=0.06)


def test_groups_stay_together_and_sources_spread(tmp_path: Path) -> None:
    cells = [
        {"model": f"m{i}", "source_id": f"s{i % 2}", "step_time_s": str(1 + j)} for i in range(8) for j in range(1 + i % 3)
    ]
    rows = read_measured_runs(write_table(tmp_path / "m.csv", *cells))
    fold_of = assigned_folds(rows, 4)
    assert set(fold_of) == {group_of(row) for row in rows}
    assert set(fold_of.values()) == {0, 1, 2, 3}
    for source in ("s0", "s1"):
        assert len({fold_of[group_of(row)] for row in rows if row.run.source == source}) == 4


def test_boards_of_one_chip_share_constants_unless_their_power_differs() -> None:
    assert silicon_name(device("a100-sxm-40gb")) == silicon_name(device("a100-sxm-80gb"))
    assert silicon_name(device("h100-sxm-96gb-hbm2e")) != silicon_name(device("h100-sxm-80gb"))


def test_the_report_shows_three_errors_and_the_constants(rows: tuple[ValidationRun, ...]) -> None:
    report = folded_report(rows, folds=2, file="m.csv")
    document = folds_document(report)
    assert json.loads(json.dumps(document))["folds"] == 2
    assert document["unfitted"]["mean_over_sources"]["time_mape"] > document["mean_over_sources"]["time_mape"]
    assert {key: document["constants"][0][key] for key in ("constant", "of")} == {"constant": "matrix", "of": A100}
    assert "| ours | 12 |" in fold_tables(report)


def test_folds_from_the_command_line(cli: Cli) -> None:
    table = measured_at(cli.folder / "m.csv", TRUE)
    assert cli("validate", str(table), "--folds", "2") == 0
    assert "held out" in cli.out and A100 in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80
    assert cli("validate", str(table), "--folds", "1") == 2


def test_serving_tables_have_no_folds(cli: Cli) -> None:
    from meshwright.app.evidence.serving.rows import COLUMNS

    table = cli.folder / "s.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerow(COLUMNS)
    assert cli("validate", str(table), "--folds", "2") == 2
    assert "folds" in cli.err
