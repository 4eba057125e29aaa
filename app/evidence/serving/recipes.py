"""The launch recipes of public benchmarks for the engines whose figures they publish: what a source says for all of its rows.

InferenceX publishes the script of every configuration (github.com/SemiAnalysisAI/InferenceX, benchmarks/); AIConfigurator's
runs are launched as its generator does (github.com/ai-dynamo/aiconfigurator, src/aiconfigurator/generator/rule_plugin).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.queueing.simulation.replica import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType

DEFAULT_STEP_TOKENS = 8192
"""Default token limit of a step on 80 GB devices and larger: vLLM 0.12 server, SGLang 0.5 chunks, TensorRT-LLM 1.0."""

GENERATED_SEQUENCES = 512
"""Sequences at once that AIConfigurator's generator allows TensorRT-LLM (trtllm.rule, agg_decode max_batch_size)."""

GENERATED_TOKENS = 1500
"""Tokens of a step that it adds to a prompt and to the sequences (trtllm.rule and vllm.rule, max_num_tokens; sglang.rule,
max_prefill_tokens)."""


_MIXED_CHUNKS_SINCE = (0, 5, 6)
"""Release of SGLang since which AIConfigurator's generator switches mixed chunks on: its rule and template of January 2026
(sglang.rule, enable_mixed_chunk; cli_args.j2), with which releases of December 2025 and later were launched."""


class EngineName(StrEnum):
    """Engine families whose constants are calibrated apart."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "trtllm"

    @property
    def engine(self) -> ServingEngine:
        """The engine of the cost models."""
        return ServingEngine[self.name]


class BenchmarkSource(StrEnum):
    """Who ran a row."""

    INFERENCEX = "inferencex"
    AICONFIGURATOR = "aiconfigurator"
    MLPERF = "mlperf"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class BenchmarkLoad:
    """The part of a row that a launch script looks at. ``clients`` is None under full load; ``measured`` is the date
    (2025-11-02), ``release`` that of the engine (0.5.6.post2), both empty where the row has none."""

    source: BenchmarkSource
    engine: EngineName
    model: str
    node: str
    precision: DType
    tp: int
    prompt_tokens: int
    output_tokens: int
    clients: int | None
    measured: str = ""
    release: str = ""


def step_tokens(load: BenchmarkLoad) -> int:
    """Token limit of a step."""
    prompt, clients = load.prompt_tokens, load.clients or 0
    if load.source is BenchmarkSource.AICONFIGURATOR:
        sequences = 0 if load.engine is EngineName.SGLANG else GENERATED_SEQUENCES
        return sequences + prompt + GENERATED_TOKENS
    if _is_later_minimax(load):
        return 2 * prompt
    if load.source in (BenchmarkSource.OTHER, BenchmarkSource.MLPERF) or load.engine is EngineName.VLLM:
        # InferenceX gives vLLM --max-num-batched-tokens 8192.
        return DEFAULT_STEP_TOKENS
    if load.engine is EngineName.SGLANG:
        # dsr1_fp8_*.sh, glm5_*.sh, qwen3.5_*_b200.sh: --chunked-prefill-size 32768; dsr1_fp4_b200.sh, qwen3.5_fp8_h200.sh:
        # 16384.
        fewer = (("deepseek-v3", DType.FP4), ("qwen3.5-397b-a17b", DType.FP8))
        return 16384 if (load.model, load.precision) in fewer else 32768
    if load.model == "gpt-oss-120b":
        # gptoss_fp4_h200_trt.sh: --max_num_tokens 20000.
        return 20000
    if load.model == "deepseek-v3":
        # dsr1_*_trt_slurm.sh of 2025: MAX_NUM_TOKENS, a prompt and all clients in blocks of 64; dsr1_*_trt.sh of 2026: 8192 at
        # least.
        least = 0 if load.measured.startswith("2025") else DEFAULT_STEP_TOKENS
        return max(least, (clients + prompt + 127) // 64 * 64)
    # 70b_fp8_h200_trt_slurm.sh: --max_num_tokens $MAX_MODEL_LEN, both lengths and 200.
    return prompt + load.output_tokens + 200


def scheduling(load: BenchmarkLoad) -> Scheduling | None:
    """Return how steps are formed, None where the source does not say."""
    if load.source is not BenchmarkSource.AICONFIGURATOR or load.engine is not EngineName.SGLANG:
        return None
    numbers = tuple(int(number) for number in re.findall(r"\d+", load.release)[:3])
    return Scheduling.CHUNKED_PREFILL if numbers >= _MIXED_CHUNKS_SINCE else Scheduling.PREFILL_FIRST


def kv_dtype(load: BenchmarkLoad) -> DType:
    """Format of the cache. NVIDIA's fp8 and fp4 checkpoints quantise it, and TensorRT-LLM runs them; scripts of InferenceX say
    fp8 but for gpt-oss, for DeepSeek by SGLang on Hopper and for MiniMax's earlier ones, which leave it at the model's own.
    Others keep 16 bits."""
    narrow = load.precision in (DType.FP8, DType.FP4)
    if load.source is BenchmarkSource.INFERENCEX:
        hopper = load.node in ("dgx-h100", "dgx-h200")
        deepseek = load.engine is EngineName.SGLANG and load.model not in ("glm-5", "qwen3.5-397b-a17b") and hopper
        minimax = load.model == "minimax-m2.5" and not _is_later_minimax(load)
        own = load.model == "gpt-oss-120b" or deepseek or minimax
        return DType.BF16 if own or not narrow else DType.FP8
    return DType.FP8 if load.engine is EngineName.TENSORRT_LLM and narrow else DType.BF16


def _is_later_minimax(load: BenchmarkLoad) -> bool:
    """Return True for runs of minimaxm2.5_*_b200.sh since 27 March 2026: --kv-cache-dtype fp8, --max-num-batched-tokens twice
    the prompt."""
    ran = load.source is BenchmarkSource.INFERENCEX and load.model == "minimax-m2.5" and load.node == "dgx-b200"
    return ran and load.measured >= "2026-03-27"


def held_steps(load: BenchmarkLoad) -> float:
    """Decode steps that a new request is held back for on average, so that others may join its prompt."""
    clients = load.clients or 0
    if load.source is not BenchmarkSource.INFERENCEX or not clients:
        return 0.0
    if load.engine is EngineName.SGLANG and load.node == "dgx-b200":
        # dsr1_fp*_b200.sh: --scheduler-recv-interval 10, 30 from 16 clients; requests come at any time between two polls.
        return (30 if clients >= 16 else 10) / 2.0
    waits, share = _batch_wait(load, clients)
    # Requests that a batch waits for, and how many steps until that many came: each client sends one in its output's steps.
    wanted = math.ceil(share * step_tokens(load) / load.prompt_tokens)
    steps = min(float(waits), max(0, wanted - 1) * load.output_tokens / clients)
    # The first of a batch waits all of it, those who join half.
    joined = steps * clients / load.output_tokens
    return steps * (1.0 + joined / 2.0) / (1.0 + joined)


def joined_steps(load: BenchmarkLoad) -> int:
    """Steps for which TensorRT-LLM's attention groups hold prompts back at most until every group has one."""
    # dsr1_*_trt*.sh with DP_ATTENTION: attention_dp_config with enable_balance, batching_wait_iters 0 and timeout_iters 60.
    ran = load.source is BenchmarkSource.INFERENCEX and load.engine is EngineName.TENSORRT_LLM and load.model == "deepseek-v3"
    return 60 if ran else 0


def _batch_wait(load: BenchmarkLoad, clients: int) -> tuple[int, float]:
    """TensorRT-LLM's batch_wait_timeout_iters and batch_wait_max_tokens_ratio."""
    square = load.prompt_tokens == load.output_tokens == 1024
    if load.engine is EngineName.TENSORRT_LLM and square:
        if load.model == "llama-3.1-70b" and load.tp < 8:
            # 70b_fp8_h200_trt_slurm.sh.
            return 20, 0.9
        if load.model == "deepseek-v3" and load.node == "dgx-b200" and load.precision is DType.FP8 and 64 <= clients < 256:
            # dsr1_fp8_b200_trt.sh, DELAY_BATCHING.
            return 40, 0.8
    return 0, 0.0
