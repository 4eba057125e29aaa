"""Published recipes of prefill and decode pools, and limits that a row's commands give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.degrees import NO_LIMITS, EqualWorkers, PoolLimits, published_limits
from meshwright.app.evidence.serving.deployment import deployment
from meshwright.app.evidence.serving.figures import Figures
from meshwright.app.evidence.serving.recipes import BenchmarkLoad, BenchmarkSource, EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay
from meshwright.costmodels.units import DType
from tests.unit.app.validation.serving.tables import point

LOAD = BenchmarkLoad(
    source=BenchmarkSource.INFERENCEX,
    engine=EngineName.TENSORRT_LLM,
    model="deepseek-v3",
    node="dgx-b200",
    precision=DType.FP8,
    tp=8,
    prompt_tokens=1024,
    output_tokens=1024,
    clients=4,
)
PREFILL, DECODE = EqualWorkers(1, 1, 1, 8, 8), EqualWorkers(3, 8, 1, 1, 1)
POOLS = {"mode": "disagg", "tp": "P1x1/D1x1", "n_gpus": "2", "concurrency": "4"}


def limits(**changes: object) -> PoolLimits:
    return published_limits(replace(LOAD, **changes), PREFILL, DECODE, has_drafts=False)  # type: ignore[arg-type]


def test_the_recipe_that_a_row_fits_says_its_limits() -> None:
    assert limits() == PoolLimits(prefill_tokens=16384, prefill_sequences=16, decode_sequences=1)
    assert limits(clients=32).decode_sequences == 12


@pytest.mark.parametrize(
    "changes", [{"clients": 5}, {"source": BenchmarkSource.OTHER}, {"model": "glm-5"}, {"node": "dgx-h200"}, {"clients": None}]
)
def test_a_row_that_fits_none_has_no_limits(changes: dict[str, object]) -> None:
    assert limits(**changes) == NO_LIMITS


def test_drafts_are_part_of_a_recipe() -> None:
    assert published_limits(LOAD, PREFILL, DECODE, has_drafts=True) == NO_LIMITS


def figures(folder: Path, **changes: str) -> Figures:
    return replay(deployment(point(folder, **(POOLS | changes)).run), default_constants(EngineName.VLLM))


def test_clients_wait_for_a_place_among_the_sequences_of_decode_workers(tmp_path: Path) -> None:
    """Of four clients one is decoded: the others wait for three answers before their first token, and each answer is fast."""
    free, one = figures(tmp_path), figures(tmp_path, decode_launch="vllm serve some/model --max-num-seqs 1")
    assert one.tpot_ms is not None and free.tpot_ms is not None
    assert one.tpot_ms < free.tpot_ms
    assert one.ttft_mean_ms > 2.5 * 128 * one.tpot_ms


def test_commands_of_each_phase_are_their_own(tmp_path: Path) -> None:
    commands = {
        "prefill_launch": "vllm serve some/model --max-num-batched-tokens 2048 --max-num-seqs 2",
        "decode_launch": "vllm serve some/model --max-num-seqs 64 --kv-cache-dtype fp8",
    }
    deployed = deployment(point(tmp_path, **(POOLS | commands)).run)
    assert deployed.pools == PoolLimits(prefill_tokens=2048, prefill_sequences=2, decode_sequences=64)
    assert deployed.kv_dtype is DType.FP8
