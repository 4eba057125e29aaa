"""Launch commands of engines as data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.app.evidence.serving.degrees import EqualWorkers, flags_of
from meshwright.app.evidence.serving.deployment import deployment
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants, replay, simulated_engine
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.launching.parts.serving import LaunchFlags
from meshwright.costmodels.queueing.simulation.replica import Scheduling
from meshwright.costmodels.units import DType
from tests.unit.app.validation.serving.tables import point

VLLM = (
    "vllm serve meta/llama --tensor-parallel-size=4 -pp 2 --max-num-seqs 256 --max-num-batched-tokens 16384 "
    "--kv-cache-dtype fp8 --gpu-memory-utilization 0.95 --enable-expert-parallel --no-enable-prefix-caching "
    """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
)
SGLANG = (
    "python3 -m sglang.launch_server --model-path x --tp 8 --dp-size 8 --enable-dp-attention --ep-size 8 "
    "--chunked-prefill-size 32768 --max-running-requests 512 --mem-fraction-static 0.82 --speculative-num-steps 2"
)
TENSORRT_LLM = "trtllm-serve x --tp_size=8 --ep_size 4 --max_num_tokens=20000 --max_batch_size 512 --kv-cache-dtype auto"


def test_flags_of_vllm() -> None:
    found = flags_of(EngineName.VLLM, VLLM)
    assert found == LaunchFlags(
        tp=4, pp=2, ep=0, step_tokens=16384, sequences=256, kv_dtype=DType.FP8, memory_share=0.95, draft_tokens=2
    )


def test_flags_of_sglang() -> None:
    found = flags_of(EngineName.SGLANG, SGLANG)
    assert found == LaunchFlags(
        model="x",
        tp=8,
        dp=8,
        ep=8,
        attention_apart=True,
        step_tokens=32768,
        sequences=512,
        memory_share=0.82,
        draft_tokens=2,
    )


def test_flags_of_tensorrt_llm() -> None:
    found = flags_of(EngineName.TENSORRT_LLM, f"{TENSORRT_LLM} --enable_chunked_prefill")
    assert found == LaunchFlags(tp=8, ep=4, step_tokens=20000, sequences=512, scheduling=Scheduling.CHUNKED_PREFILL)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm serve 'x", "can't be read: No closing quotation"),
        ("vllm serve x --max-num-seqs many", "--max-num-seqs can't have this value: many"),
        ("vllm serve x --max-num-seqs 0", "--max-num-seqs can't have this value: 0"),
        ("vllm serve x --max-num-seqs", "--max-num-seqs has no value"),
        ("vllm serve x --gpu-memory-utilization 1.5", "can't have this value: 1.5"),
        ("vllm serve x --kv-cache-dtype fp7", "can't have this value: fp7"),
        ("vllm serve x --speculative-config [1]", "can't have this value"),
        ("x" * 20_001, "longer than 20,000 characters"),
    ],
)
def test_commands_that_no_engine_takes(command: str, reason: str) -> None:
    with pytest.raises(NotPredictedError, match=reason):
        flags_of(EngineName.VLLM, command)


def test_degrees_of_a_command_are_those_of_the_row(tmp_path: Path) -> None:
    def workers(**changes: str) -> EqualWorkers:
        return deployment(point(tmp_path, **changes).run).decode

    mixture = {"model": "MiniMaxAI/MiniMax-M2.5", "gpu": "b200", "n_gpus": "8"}
    assert workers(n_gpus="8", launch="vllm serve x -tp 2 -dp 4") == EqualWorkers(4, 2, 1, 1, 1)
    assert workers(**mixture, launch="vllm serve x -tp 2 -dp 4 --enable-expert-parallel") == EqualWorkers(1, 2, 1, 8, 4)
    assert workers(**mixture, launch="vllm serve x -tp 4 --enable-expert-parallel") == EqualWorkers(2, 4, 1, 4, 1)
    assert workers(**mixture, engine="sglang", launch=SGLANG) == EqualWorkers(1, 1, 1, 8, 8)
    with pytest.raises(NotPredictedError, match="8 attention groups over 4 devices"):
        workers(**mixture, engine="sglang", launch="sglang --tp 4 --dp 8 --enable-dp-attention")


def test_fewer_sequences_at_once_wait_longer(tmp_path: Path) -> None:
    free, held = (
        replay(deployment(point(tmp_path, launch=command).run), default_constants(EngineName.VLLM))
        for command in ("", "vllm serve x --max-num-seqs 2")
    )
    assert held.ttft_mean_ms > 2.0 * free.ttft_mean_ms
    assert held.tpot_ms < free.tpot_ms


def test_a_command_takes_the_place_of_what_is_assumed(tmp_path: Path) -> None:
    found = deployment(point(tmp_path, launch="vllm serve x --max-num-batched-tokens 2048 --kv-cache-dtype fp8").run)
    assert (found.step_tokens, found.kv_dtype) == (2048, DType.FP8)


def test_engines_of_rows_with_another_share_of_memory_hold_another_cache(tmp_path: Path) -> None:
    engine = simulated_engine(deployment(point(tmp_path).run))
    limits = {"step_tokens": 8192, "sequences": 64}
    whole = engine.kv_tokens(**limits)
    less = replace(engine, memory_share=0.9 * engine.memory_share)
    assert 0 < less.kv_tokens(**limits) < whole
    assert engine.kv_tokens(**limits) == whole
