"""Shared by the tests of log formats and others: LOGS, PLAN, TRAINED_BY_OTHERS, SERVED, served_by."""

from __future__ import annotations

from pathlib import Path

from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support.requests_given import resolved, serving
from tests.unit.solver.verify.plans import serving_plan

LOGS = Path(__file__).parents[3] / "support" / "logs"


PLAN = "sha256:" + "0" * 64


# The plan trains on 128 sequences of 8,192 tokens a step, on 8 devices.
TRAINED_BY_OTHERS: dict[str, tuple[LogWriter, float, int | None]] = {
    "nemo.log": (LogWriter.NEMO, 7.1, None),
    "nemo_bar.log": (LogWriter.NEMO, 7.1, None),
    "megatron_bridge.log": (LogWriter.MEGATRON_LM, 7.1, None),
    "deepspeed_2020.log": (LogWriter.DEEPSPEED, 128 / 18.0, None),
    "deepspeed_mean.log": (LogWriter.DEEPSPEED, 128 / 18.0, round(19.52 * GIB)),
    "torchtitan_no_memory.log": (LogWriter.TORCHTITAN, 128 * 8192 / (7184.0 * 8), None),
    "trainer_log.jsonl": (LogWriter.LLAMA_FACTORY, 7.1, None),
    "trainer_state.json": (LogWriter.HF_TRAINER, 128 / 18.024, None),
    "axolotl.log": (LogWriter.HF_TRAINER, 128 / 18.02, 25 * GIB),
}


_BOTH = {"ttft_p95_s": 0.1185, "tpot_p95_s": 0.0112}


# The plan serves 2 requests a second of 2,000 tokens that are answered with 300.
SERVED: dict[str, tuple[LogWriter, dict[str, float]]] = {
    "vllm_bench.txt": (LogWriter.SERVING_BENCHMARK, {"tokens_per_s": 594.63, **_BOTH}),
    "sglang_bench.txt": (LogWriter.SERVING_BENCHMARK, {"tokens_per_s": 594.7}),
    "genai_perf.json": (LogWriter.GENAI_PERF, {"tokens_per_s": 594.63, **_BOTH}),
    "genai_perf.txt": (LogWriter.GENAI_PERF, {"tokens_per_s": 594.63}),
    "guidellm.json": (LogWriter.GUIDELLM, {"tokens_per_s": 594.63, **_BOTH}),
    "trtllm_bench.txt": (LogWriter.TRTLLM_BENCH, {"tokens_per_s": 2730.0, "ttft_p95_s": 1.502, "tpot_p95_s": 0.0254}),
    "mini_sglang.txt": (LogWriter.MINI_SGLANG, {"tokens_per_s": 153600 / 258.31}),
}


def served_by(name: str) -> AnsweredRequest:
    """The serving plan of a result; TensorRT-LLM's benchmark sends requests as fast as they are let in."""
    document = serving()
    if name == "trtllm_bench.txt":
        document["workload"]["arrivals"] = {"process": "closed", "concurrency": 64}
    return AnsweredRequest(serving_plan(), resolved(document))
