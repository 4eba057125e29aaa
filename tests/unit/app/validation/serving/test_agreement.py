"""A server is priced alike however it is said: as a request, as a launch command, as a row of a measured table."""

from __future__ import annotations

import pytest

from benchmarks.agreement import Server, difference, drawn


@pytest.mark.parametrize("server", tuple(drawn(8, seed=1)), ids=lambda each: f"{each.model} {each.engine} {each.device}")
def test_what_is_drawn_is_priced_alike(server: Server) -> None:
    assert difference(server) is None


@pytest.mark.parametrize(
    ("model", "engine", "device", "tp"),
    [
        ("Qwen/Qwen3-8B-FP8", "vllm", "H100", 2),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "sglang", "B200", 8),
        ("nvidia/Kimi-K2.5-NVFP4", "vllm", "B200", 8),
        ("RedHatAI/Qwen3-32B-quantized.w4a16", "sglang", "A100", 1),
        ("deepseek-ai/DeepSeek-V3.2", "vllm", "H200", 8),
        ("unsloth/gpt-oss-120b-BF16", "vllm", "H100", 4),
        ("Qwen/Qwen3-8B", "vllm", "T4", 4),
    ],
)
def test_each_format_is_priced_alike(model: str, engine: str, device: str, tp: int) -> None:
    assert difference(Server(model, engine, device, tp, narrow_cache=False)) is None
