"""Reading tables of measured runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.app.evidence.training.rows import COLUMNS, RunStatus, read_measured_runs
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.implementation import TrainedWeights
from tests.unit.app.validation.tables import measured, write_table


def test_cells_are_read_as_what_they_are(tmp_path: Path) -> None:
    row = measured(tmp_path, micro_batch="4.0", vpp="", sp="0", status="oom", step_time_s="")
    assert (row.run.line, row.run.micro_batch, row.run.vpp, row.run.sequence_parallel) == (2, 4, None, 0)
    assert row.outcome.status is RunStatus.OOM
    assert row.outcome.step_time_s is None


def test_a_throughput_alone_gives_the_step_time(tmp_path: Path) -> None:
    row = measured(tmp_path, step_time_s="", tokens_per_s="26214.4")
    assert row.outcome.step_time_s == pytest.approx(64 * 4096 / 26214.4)


@pytest.mark.parametrize(
    ("model", "trained"),
    [
        ("Llama-2-70B-LoRA-r16", TrainedWeights.ADAPTERS),
        ("llama-3-8b qlora", TrainedWeights.ADAPTERS),
        ("Florala-7B", None),
        ("LLoRATiny", None),
        ("Llama-3-8B", None),
    ],
)
def test_a_name_that_says_lora_trains_adapters(tmp_path: Path, model: str, trained: TrainedWeights | None) -> None:
    assert measured(tmp_path, model=model).run.implementation.trained is trained


@pytest.mark.parametrize(
    ("source", "cells", "devices"),
    [
        ("megatron_ci_dense", {"tp": "2", "pp": "2", "cp": "2"}, (8, 1)),
        ("megatron_ci_dense", {"tp": "3", "pp": "1"}, (None, None)),
        ("ours", {"tp": "2", "pp": "2"}, (None, None)),
    ],
)
def test_a_source_may_run_on_one_number_of_devices(
    tmp_path: Path, source: str, cells: dict[str, str], devices: tuple[int | None, int | None]
) -> None:
    run = measured(tmp_path, source_id=source, n_gpus="", dp="", **cells).run
    assert (run.n_gpus, run.dp) == devices
    assert measured(tmp_path, source_id=source, n_gpus="16", dp="", **cells).run.n_gpus == 16


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n_gpus", "eight"),
        ("tp", "1.5"),
        ("dp", "0"),
        ("step_time_s", "nan"),
        ("status", "fine"),
        ("quality", ""),
        ("sp", "-1"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, column: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"line 3, column {column}"):
        read_measured_runs(write_table(tmp_path / "bad.csv", {}, {column: value}))


def test_columns_must_be_those_of_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(",".join([*COLUMNS[1:], "surprise"]) + "\n")
    with pytest.raises(InvalidInputError, match="missing: source_id; unknown: surprise"):
        read_measured_runs(path)


def test_lines_of_other_lengths_are_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "long.csv", {})
    path.write_text(path.read_text() + "a,b\n")
    with pytest.raises(InvalidInputError, match="line 3 has 2 values"):
        read_measured_runs(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'"open'])
def test_what_is_no_table_is_bad_input(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "none.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError):
        read_measured_runs(path)


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="can't be read"):
        read_measured_runs(tmp_path / "nowhere.csv")
