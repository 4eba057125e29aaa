"""Regimes of points, and copies of one measurement."""

from __future__ import annotations

from pathlib import Path

from benchmarks.serving_regimes import Regime, ServingLoad, regime, without_copies
from meshwright.app.evidence.serving.deployment import Drafts, deployment
from meshwright.app.evidence.serving.rows import Statistic
from tests.unit.app.validation.serving.tables import point, points


def regime_of(folder: Path, **changes: str) -> Regime:
    run = point(folder, **changes).run
    return regime(deployment(run))


def test_load_is_of_one_replica(tmp_path: Path) -> None:
    assert regime_of(tmp_path, concurrency="8").load is ServingLoad.LOW
    assert regime_of(tmp_path, concurrency="64").load is ServingLoad.MEDIUM
    assert regime_of(tmp_path, concurrency="65").load is ServingLoad.HIGH
    assert regime_of(tmp_path, concurrency="64", n_gpus="8").load is ServingLoad.LOW
    assert regime_of(tmp_path, concurrency="max_load(all queued)").load is ServingLoad.FULL


def test_what_a_row_leaves_open(tmp_path: Path) -> None:
    assert regime_of(tmp_path) == Regime(pools=False, drafts=Drafts.NONE, stated=True, load=ServingLoad.LOW)
    assert not regime_of(tmp_path, tp="", n_gpus="2").stated
    dynamo = {"note": "source_file=aic-auto-gap-analysis/data/h100_sxm/vllm; gtl_task_id=102487529"}
    assert not regime_of(tmp_path, **dynamo).stated
    assert regime_of(tmp_path, note="source_file=aic-auto-gap-analysis/data/h100_sxm/vllm; silicon_concurrency=16").stated
    deepseek = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "b200", "tp": "8", "n_gpus": "8"}
    assert not regime_of(tmp_path, **deepseek).stated
    assert regime_of(tmp_path, **deepseek, speculation="none").stated


def test_copies_of_one_measurement_are_counted_once(tmp_path: Path) -> None:
    rows = points(tmp_path, {"ttft_ms": "100.001"}, {"source": "theirs", "ttft_ms": "100.002"}, {"ttft_ms": "101"})
    assert without_copies(rows) == [rows[0], rows[2]]


def test_the_statistic_that_a_row_states(tmp_path: Path) -> None:
    def said(text: str) -> Statistic | None:
        return point(tmp_path, ttft_stat=text).outcome.statistic

    assert said("median (p99 in own column)") is Statistic.MEDIAN
    assert said("Mean") is Statistic.MEAN
    assert said("not stated in the file (mean or median)") is None
