"""A server is priced alike however it is said: as a request, as a launch command, as a row of a measured table."""

from __future__ import annotations

import pytest

from benchmarks.agreement import Server, difference, drawn
from meshwright.app.evidence.serving.deployment import stored_format
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import Quantised


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


@pytest.mark.parametrize(
    ("text", "name", "quantised"),
    [
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2", Quantised.FEED_FORWARD),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-v3", Quantised.FEED_FORWARD_AND_OUTPUT),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b", Quantised.PROJECTIONS),
        ("nvidia/Qwen3-32B-NVFP4", "qwen3-32b", Quantised.PROJECTIONS),
    ],
)
def test_copies_in_nvfp4_are_narrow_where_their_makers_have_them(text: str, name: str, quantised: Quantised) -> None:
    stored = stored_format(text, name)
    assert stored is not None and (stored.weights, stored.quantised) == (WeightFormat.NVFP4, quantised)
