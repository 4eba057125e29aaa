"""Closed loops on prefill and decode pools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.deployment import deployment
from meshwright.app.evidence.serving.figures import Figures
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay, simulated_engine
from meshwright.app.evidence.training.cells import NotPredictedError
from tests.unit.app.validation.serving.tables import point

POOLS = {"mode": "disagg", "tp": "P1x1/D1x1", "n_gpus": "2"}


def figures(folder: Path, **changes: str) -> Figures:
    return replay(deployment(point(folder, **(POOLS | changes)).run), default_constants(EngineName.VLLM))


def test_one_client_waits_for_nobody(tmp_path: Path) -> None:
    """With one client each request is alone: its first tokens take a prompt's time, later ones a decode step's."""
    alone = replay(deployment(point(tmp_path, concurrency="1").run), default_constants(EngineName.VLLM))
    apart = figures(tmp_path, concurrency="1")
    assert apart.tpot_ms == pytest.approx(alone.tpot_ms, rel=0.02)
    assert alone.ttft_mean_ms < apart.ttft_mean_ms < alone.ttft_mean_ms + 2 * alone.tpot_ms


def test_prompts_do_not_slow_decoding_elsewhere(tmp_path: Path) -> None:
    load = {"concurrency": "32", "isl": "4096"}
    mixed = replay(deployment(point(tmp_path, n_gpus="2", **load).run), default_constants(EngineName.VLLM))
    assert figures(tmp_path, **load).tpot_ms < mixed.tpot_ms


def test_more_clients_get_more_done(tmp_path: Path) -> None:
    few, many = (figures(tmp_path, concurrency=clients) for clients in ("2", "32"))
    assert many.output_tokens_per_s > few.output_tokens_per_s
    assert many.ttft_mean_ms > few.ttft_mean_ms


def test_full_load_on_pools_is_not_predicted(tmp_path: Path) -> None:
    with pytest.raises(NotPredictedError, match="full load"):
        figures(tmp_path, concurrency="max_load(all queued)")


def test_decode_workers_do_not_pay_the_hosts_time_of_prompts(tmp_path: Path) -> None:
    deployed = deployment(point(tmp_path, **POOLS, concurrency="8").run)
    plain = default_constants(EngineName.VLLM)
    slow = replace(plain, operator_s=plain.operator_s + 60e-6)
    before, after = replay(deployed, plain), replay(deployed, slow)
    assert after.tpot_ms == pytest.approx(before.tpot_ms, rel=0.01)
    assert after.ttft_mean_ms > before.ttft_mean_ms


def test_experts_that_do_not_divide_are_held_more_than_once(tmp_path: Path) -> None:
    """As 48 ranks hold 288 experts of 256, the weights of a rank lie between those of 32 and of 64 ranks."""
    row = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "gb200", "engine": "sglang", "precision": "fp4", "mode": "agg"}

    def weights(ranks: int) -> float:
        degrees = {"tp": "1", "dp_attn": str(ranks), "ep": str(ranks), "n_gpus": str(ranks)}
        return simulated_engine(deployment(point(tmp_path, **row, **degrees).run)).needs[0].weights_bytes

    assert weights(64) < weights(48) < weights(32)
