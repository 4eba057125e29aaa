"""The programs whose logs can be read."""

from __future__ import annotations

from enum import StrEnum


class LogWriter(StrEnum):
    """The program that wrote a log; the table says which module reads it. The first that finds times in a log is taken
    for its writer: Megatron-DeepSpeed writes lines of two."""

    MEGATRON_LM = "megatron-lm"
    TORCHTITAN = "torchtitan"
    NEMO = "nemo"
    DEEPSPEED = "deepspeed"
    HF_TRAINER = "hf-trainer"
    LLAMA_FACTORY = "llama-factory"
    SERVING_BENCHMARK = "serving-benchmark"
    GENAI_PERF = "genai-perf"
    GUIDELLM = "guidellm"
    TRTLLM_BENCH = "trtllm-bench"
    MINI_SGLANG = "mini-sglang"
    VLLM_SERVER = "vllm-server"
