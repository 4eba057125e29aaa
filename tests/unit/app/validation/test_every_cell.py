"""No cell ends a table: its row is predicted or says why not, and the rows beside it are predicted as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.evidence.serving import calibration
from meshwright.app.evidence.serving import report as serving_reports
from meshwright.app.evidence.serving.rows import COLUMNS as SERVING_COLUMNS
from meshwright.app.evidence.serving.rows import OPTIONAL_COLUMNS, read_measured_points
from meshwright.app.evidence.tables import predicted_rows, table_document, validate_table
from meshwright.app.evidence.training import scores
from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.app.evidence.training.rows import COLUMNS, read_measured_runs
from meshwright.costmodels.errors import InvalidInputError
from tests.unit.app.validation.serving.tables import ROWS as SERVING
from tests.unit.app.validation.serving.tables import write_points
from tests.unit.app.validation.tables import ROWS as TRAINING
from tests.unit.app.validation.tables import write_table

HOSTILE = ("", "0", "1", "3", "nan", "²", "٣", "int4", "1/0", "P0x0/D0x0", "x" * 300, "65535")
"""Words that some column takes for a number, a degree or a name, and should not, or that break a layout."""

LONG_WORK = {
    (column, "65535") for column in ("concurrency", "draft_tokens", "isl", "osl", "seq_len", "global_batch", "micro_batch")
}
"""Numbers that are long work, and no fault."""


@pytest.mark.parametrize(
    ("write", "read", "rows", "columns", "each"),
    [
        (write_points, read_measured_points, SERVING, (*SERVING_COLUMNS, *OPTIONAL_COLUMNS), "points"),
        (write_table, read_measured_runs, TRAINING, COLUMNS, "runs"),
    ],
    ids=["serving", "training"],
)
def test_a_cell_costs_its_own_row_at_most(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., Path],
    read: Callable[[Path], Any],
    rows: tuple[dict[str, str], ...],
    columns: tuple[str, ...],
    each: str,
) -> None:
    """All changed rows stand in one table, between those that nothing was changed in; no constants are fitted to it."""
    monkeypatch.setattr(calibration, "LEAST_ROWS", 10**6)
    alone = table_document(validate_table(write(tmp_path / "table.csv", *rows)))[each]
    changes = [(column, word) for column in columns for word in HOSTILE if (column, word) not in LONG_WORK]
    changed = [(rows[place % len(rows)], change) for place, change in enumerate(changes)]
    taken = [row | {column: word} for row, (column, word) in changed if _is_read(write, read, tmp_path, row, column, word)]
    assert len(taken) > len(columns)
    document = table_document(validate_table(write(tmp_path / "table.csv", *rows, *taken, *rows)))
    json.dumps(document, allow_nan=False)
    found = document[each]
    assert len(found) == len(taken) + 2 * len(rows)
    assert _answers(found[: len(rows)]) == _answers(found[-len(rows) :]) == _answers(alone)
    reasons = [answer["not_predicted"] for answer in found if "not_predicted" in answer]
    assert all(reasons)
    assert not [reason for reason in reasons if "internal error" in reason]


def _is_read(
    write: Callable[..., Path], read: Callable[[Path], Any], folder: Path, row: dict[str, str], column: str, word: str
) -> bool:
    """Return False for a cell that is no word of its column, which the error must name."""
    refused = f"line 2, column {column}"
    try:
        read(write(folder / "cell.csv", row | {column: word}))
    except InvalidInputError as error:
        found = error.problem
    else:
        return True
    assert found == refused
    return False


def _answers(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in document.items() if name != "line"} for document in documents]


def test_a_format_that_no_engine_computes_in_says_so(tmp_path: Path) -> None:
    kimi = {"model": "moonshotai/Kimi-K2.5", "gpu": "b200_sxm", "precision": "int4", "tp": "8", "n_gpus": "8"}
    wide = kimi | {"precision": "fp32"}
    report = validate_table(write_points(tmp_path / "points.csv", {}, kimi, wide, {"concurrency": "4"}))
    assert predicted_rows(report) == 3
    assert "fp32" in table_document(report)["points"][2]["not_predicted"]


@pytest.mark.parametrize(
    "raised", [KeyError("int4"), ZeroDivisionError(), StopIteration(), MemoryError(), AssertionError("no")]
)
def test_whatever_raises_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    def raising(*_: object) -> None:
        raise raised

    with pytest.raises(NotPredictedError), of_one_row():
        raising()
    monkeypatch.setattr(serving_reports, "deployment", raising)
    assert predicted_rows(validate_table(write_points(tmp_path / "points.csv", {}, {}))) == 0
    monkeypatch.setattr(scores, "predict_run_with_band", raising)
    assert predicted_rows(validate_table(write_table(tmp_path / "runs.csv", {}, {}))) == 0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"pp": "65535"}, "65535 stages of 32 layers"),
        ({"tp": "", "n_gpus": "2", "pp": "3"}, "3 stages on 2 devices"),
        ({"dp_attn": "2"}, "attention groups of a model without experts"),
        ({"mode": "disagg", "tp": "P0x0/D0x0"}, "the row does not state the workers of each phase"),
        ({"precision": "fp32"}, "fp32"),
    ],
)
def test_what_no_engine_runs_says_so(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    (point,) = table_document(validate_table(write_points(tmp_path / "points.csv", cells)))["points"]
    assert reason in point["not_predicted"]


def test_a_stop_is_no_reason() -> None:
    with pytest.raises(KeyboardInterrupt), of_one_row():
        raise KeyboardInterrupt


def test_answers_of_one_token_have_a_first_token_alone(tmp_path: Path) -> None:
    (point,) = table_document(validate_table(write_points(tmp_path / "points.csv", {"osl": "1"})))["points"]
    assert point["calibrated"]["ttft_mean_ms"] > 0
    assert point["calibrated"]["tpot_ms"] is None
