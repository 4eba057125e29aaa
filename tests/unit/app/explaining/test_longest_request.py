"""The memory of servers against what vLLM prints at its start, and the longest request that fits their caches."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.launching.parts.serving import LaunchFlags, degrees
from meshwright.app.models.catalog.copies import Wide, copy_of, format_of_name, hub_id_of
from meshwright.app.models.checkpoint import FIELD, checkpoint_format
from meshwright.app.models.huggingface import read_hyperparameters
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.explaining.explain import asked_of, explained
from meshwright.app.service.explaining.explanation import Explanation, Verdict
from meshwright.app.service.explaining.server_plan import server_plan
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import GIB, DType
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.api import cache_room
from meshwright.solver.problem.request import PlanRequest, ServingRequest
from tests.unit.app.explaining.resolving import resolve

PRINTED = list(csv.DictReader((Path(__file__).parent / "engine_memory.csv").read_text(encoding="utf-8").splitlines()))
"""What servers on H100 80GB print at their start."""
LINE = OneLine("", gpus="8xH100", isl="1000", osl="200", rate="1")


def explanation(command: str, **options: str) -> Explanation:
    return explained(asked_of(command, replace(LINE, **options), resolve))


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row['model']} x{row['devices']}")
def test_weights_and_cache_are_what_the_engine_prints(row: dict[str, str]) -> None:
    document: dict[str, Any] = {
        "schema": "meshwright.request/1",
        "model": {"huggingface": row["model"]},
        "cluster": f"{row['devices']}xH100",
        "workload": {
            "kind": "serving",
            "arrivals": {"process": "poisson", "requests_per_s": 1},
            "prompt_tokens": {"fixed": 1000},
            "output_tokens": {"fixed": 100},
        },
        "search": {"launcher": "vllm", "engine": "vllm", "memory_share": float(row["memory_share"])},
    }
    request = resolve_request(document, files=NoFiles())
    assert isinstance(request, ServingRequest)
    flags = LaunchFlags(tp=int(row["devices"]), step_tokens=int(row["batched_tokens"]), sequences=int(row["sequences"]))
    of_server = degrees(flags, ServingEngine.VLLM, experts=EXPERTS in request.model.dims)
    layout = server_plan(request, flags, of_server).layout
    assert isinstance(layout, Replicas)
    room = cache_room(request, layout.workers)
    assert room.weights_bytes / GIB == pytest.approx(float(row["weights_gib"]), rel=0.05)
    assert room.workspace_bytes / GIB == pytest.approx(float(row["activation_gib"]), abs=0.25)
    assert room.overhead_bytes / GIB == pytest.approx(float(row["outside_gib"]), abs=0.15)
    assert room.free_bytes / GIB == pytest.approx(float(row["cache_gib"]), abs=0.3)


def test_a_server_whose_cache_is_smaller_than_one_request_does_not_start() -> None:
    long = explanation("vllm serve Qwen/Qwen2.5-14B-Instruct -tp 2", gpus="2xRTX4090")
    # 32,768 tokens of 192 KiB over two devices: 3 GiB of the six that are left.
    assert long.verdict is not Verdict.DOES_NOT_START
    own = explanation("vllm serve meta-llama/Llama-3.1-8B-Instruct", gpus="1xL4")
    assert own.verdict is Verdict.DOES_NOT_START and "--max-model-len" in own.problems[0]
    (starts,) = [int(word) for word in own.problems[0].split() if word.isdigit() and int(word) != 131072]
    fitting = explanation(
        f"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len {starts} --max-num-seqs 16", gpus="1xL4"
    )
    assert fitting.verdict is not Verdict.DOES_NOT_START
    longer = f"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len {starts + 16}"
    assert explanation(longer, gpus="1xL4").verdict is Verdict.DOES_NOT_START


def test_sglang_starts_and_refuses_longer_requests() -> None:
    found = explanation("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", gpus="1xL4")
    assert found.verdict is not Verdict.DOES_NOT_START
    assert any("are refused: the cache holds no more" in note for note in found.notes)


def test_a_length_beyond_the_models_needs_a_word() -> None:
    command = "vllm serve Qwen/Qwen3-8B --max-model-len 131072"
    assert "40960 positions" in explanation(command).problems[0]
    assert explanation(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {command}").problems == ()


@pytest.mark.slow
def test_a_share_above_the_engines_own_is_counted_as_given() -> None:
    def cache(share: str) -> float:
        found = explanation(f"vllm serve Qwen/Qwen3-8B --gpu-memory-utilization {share}")
        assert found.plan is not None and isinstance(found.plan.layout, Replicas)
        return found.plan.layout.stages[0].memory.kv_cache_bytes

    assert cache("0.95") - cache("0.85") == pytest.approx(0.1 * 84943715697, rel=0.01)


@pytest.mark.slow
def test_older_releases_that_refuse_are_named() -> None:
    found = explanation("vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.95", gpus="1xH100")
    assert found.verdict is Verdict.DOES_NOT_START and "up to 0.16" in found.problems[0]
    assert found.plan is not None
    fewer = explanation("vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.95 --max-num-seqs 100", gpus="1xH100")
    assert fewer.problems == ()


COPIES = {
    "unsloth/gpt-oss-120b-BF16": ("gpt-oss-120b", Wide.WIDE),
    "Qwen/Qwen2.5-32B-Instruct-AWQ": ("qwen2.5-32b", WeightFormat.INT4),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": ("qwen2.5-72b", WeightFormat.INT4),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8": ("qwen2.5-72b", WeightFormat.INT8),
    "Qwen/Qwen3-32B-FP8": ("qwen3-32b", WeightFormat.FP8_BLOCK),
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic": ("llama-3.1-70b", WeightFormat.FP8),
    "RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16": ("llama-3.1-70b", WeightFormat.INT4),
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama-3.1-8b", WeightFormat.INT8),
    "nvidia/Qwen3-32B-NVFP4": ("qwen3-32b", WeightFormat.NVFP4),
    "unsloth/Llama-3.1-8B-Instruct-bnb-4bit": ("llama-3.1-8b", WeightFormat.INT4),
    "bartowski/Qwen3-8B-GGUF": ("qwen3-8b", WeightFormat.INT4),
    "/models/DeepSeek-V3.2": ("deepseek-v3.2", None),
    "./checkpoints/Qwen3-8B/": ("qwen3-8b", None),
    "opensourcerelease/DeepSeek-V3-bf16": ("deepseek-v3", Wide.WIDE),
}


@pytest.mark.parametrize("text", COPIES)
def test_a_copy_is_known_by_its_name(text: str) -> None:
    name, stored = COPIES[text]
    found = copy_of(text)
    assert found is not None and found.is_sure and found.name == name
    told = format_of_name(text)
    if isinstance(stored, WeightFormat):
        assert not isinstance(told, Wide) and told is not None
        format_ = checkpoint_format({FIELD: told})
        assert format_ is not None and format_.weights is stored
    else:
        assert told is stored


def test_relatives_are_answered_with_a_sentence_and_strangers_are_not() -> None:
    near = copy_of("someone/Qwen3-8B-Instruct-2507")
    assert near is not None and not near.is_sure and near.name == "qwen3-8b"
    assert "sizes of qwen3-8b" in near.said("someone/Qwen3-8B-Instruct-2507")
    for stranger in ("gpt2-1024x", "someone/my-model", "Qwen/Qwen3-9B", "meta-llama/Llama-9-8B", "a" * 5000):
        assert copy_of(stranger) is None


def test_the_hub_names_a_catalogue_model() -> None:
    assert hub_id_of("llama-3.1-405b") == "meta-llama/Llama-3.1-405B"
    assert hub_id_of("qwen3-8b") == "Qwen/Qwen3-8B"
    assert hub_id_of("seed-llama-1b") is None


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("gpus", "command", "precision"),
    [
        ("2xA100", "vllm serve Qwen/Qwen3-32B-FP8 -tp 2", DType.FP8),
        ("1xT4", "vllm serve Qwen/Qwen3-0.6B", DType.FP16),
        ("4xV100-16GB", "vllm serve Qwen/Qwen3-8B -tp 4 --max-model-len 4096", DType.FP16),
        ("2x8xH100", "vllm serve meta-llama/Llama-3.1-405B-Instruct -tp 16 --max-model-len 8192", DType.BF16),
        ("1xRTX4090", "vllm serve Qwen/Qwen2.5-32B-Instruct-AWQ --max-model-len 8192 --max-num-seqs 32", DType.BF16),
    ],
)
def test_what_runs_is_no_error(gpus: str, command: str, precision: DType) -> None:
    found = explanation(command, gpus=gpus, rate="0.1")
    assert found.problems == () and found.plan is not None
    assert _serving(found.request).workload.precision is precision


def _serving(request: PlanRequest) -> ServingRequest:
    assert isinstance(request, ServingRequest)
    return request


@pytest.mark.parametrize(
    ("fields", "positions"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"n_positions": 1024}, 1024),
        ({"seq_length": 8192, "max_position_embeddings": 32768}, 8192),
        ({"hidden_size": 4096}, None),
    ],
)
def test_the_longest_sequence_of_a_file(fields: dict[str, Any], positions: int | None) -> None:
    read = read_hyperparameters(fields)
    assert (None if read is None else read.positions) == positions
