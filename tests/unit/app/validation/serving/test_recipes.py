"""The recipes of launch scripts of public benchmarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.evidence.serving.recipes import (
    BenchmarkLoad,
    BenchmarkSource,
    EngineName,
    held_steps,
    kv_dtype,
    scheduling,
    step_tokens,
)
from meshwright.costmodels.queueing.simulation.replica import Scheduling
from meshwright.costmodels.units import DType

LOAD = BenchmarkLoad(
    source=BenchmarkSource.INFERENCEX,
    engine=EngineName.TENSORRT_LLM,
    model="llama-3.1-70b",
    node="dgx-h200",
    precision=DType.FP8,
    tp=4,
    prompt_tokens=1024,
    output_tokens=1024,
    clients=64,
)
MINIMAX = replace(LOAD, engine=EngineName.VLLM, model="minimax-m2.5", node="dgx-b200", measured="2026-04-10")
DEEPSEEK = replace(LOAD, model="deepseek-v3", node="dgx-b200", tp=8)


@pytest.mark.parametrize(
    ("load", "tokens"),
    [
        (LOAD, 2248),
        (replace(LOAD, engine=EngineName.VLLM), 8192),
        (replace(LOAD, model="gpt-oss-120b"), 20000),
        (DEEPSEEK, 8192),
        (replace(DEEPSEEK, prompt_tokens=8192), 8320),
        (replace(DEEPSEEK, measured="2026-01-29"), 8192),
        (replace(DEEPSEEK, measured="2025-11-02"), 1152),
        (replace(DEEPSEEK, engine=EngineName.SGLANG), 32768),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, precision=DType.FP4), 16384),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, model="glm-5", precision=DType.FP4), 32768),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, model="qwen3.5-397b-a17b", node="dgx-h200"), 16384),
        (MINIMAX, 2048),
        (replace(MINIMAX, measured="2026-03-20"), 8192),
        (replace(MINIMAX, node="dgx-h100"), 8192),
        (replace(LOAD, source=BenchmarkSource.AICONFIGURATOR), 512 + 1024 + 1500),
        (replace(LOAD, source=BenchmarkSource.AICONFIGURATOR, engine=EngineName.SGLANG), 1024 + 1500),
        (replace(LOAD, source=BenchmarkSource.OTHER), 8192),
    ],
)
def test_token_limits(load: BenchmarkLoad, tokens: int) -> None:
    assert step_tokens(load) == tokens


@pytest.mark.parametrize(
    ("load", "cache"),
    [
        (LOAD, DType.FP8),
        (replace(LOAD, model="gpt-oss-120b", precision=DType.FP4), DType.BF16),
        (replace(DEEPSEEK, engine=EngineName.SGLANG), DType.FP8),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, node="dgx-h200"), DType.BF16),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, model="qwen3.5-397b-a17b", node="dgx-h200"), DType.FP8),
        (replace(DEEPSEEK, engine=EngineName.SGLANG, node="gb200-nvl72"), DType.FP8),
        (MINIMAX, DType.FP8),
        (replace(MINIMAX, measured="2026-03-20"), DType.BF16),
        (replace(LOAD, source=BenchmarkSource.AICONFIGURATOR, engine=EngineName.VLLM), DType.BF16),
        (replace(LOAD, precision=DType.BF16), DType.BF16),
    ],
)
def test_formats_of_the_cache(load: BenchmarkLoad, cache: DType) -> None:
    assert kv_dtype(load) is cache


def test_requests_that_are_held_back() -> None:
    sglang = replace(DEEPSEEK, engine=EngineName.SGLANG)
    assert held_steps(sglang) == 15.0
    assert held_steps(replace(sglang, clients=8)) == 5.0
    assert held_steps(replace(sglang, node="dgx-h200")) == 0.0
    # 2,023 tokens are two prompts: the second comes after 16 steps, of 1,024 that 64 clients share.
    assert held_steps(LOAD) == pytest.approx(16 * 1.5 / 2)
    # Few clients: nobody else comes within the 20 steps that a request waits at most.
    assert held_steps(replace(LOAD, clients=1)) == pytest.approx(20, rel=0.02)
    assert held_steps(replace(LOAD, tp=8)) == 0.0
    assert held_steps(replace(LOAD, clients=None)) == 0.0


@pytest.mark.parametrize(
    ("release", "formed"),
    [
        ("0.5.1.post1", Scheduling.PREFILL_FIRST),
        ("0.5.6.post2", Scheduling.CHUNKED_PREFILL),
        ("0.5.10", Scheduling.CHUNKED_PREFILL),
        ("", Scheduling.PREFILL_FIRST),
    ],
)
def test_aiconfigurator_mixes_chunks_in_later_releases_of_sglang(release: str, formed: Scheduling) -> None:
    ran = replace(LOAD, source=BenchmarkSource.AICONFIGURATOR, engine=EngineName.SGLANG, release=release)
    assert scheduling(ran) is formed
    assert scheduling(replace(ran, engine=EngineName.VLLM)) is None
    assert scheduling(replace(ran, source=BenchmarkSource.INFERENCEX)) is None
