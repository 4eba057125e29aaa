"""The flags of ``trtllm-serve`` and the keys of the file of further settings that it reads (release 1.0 to 1.2), and those of
Dynamo's worker over it.

Sources: tensorrt_llm/commands/serve.py, llmapi/llm_args.py; dynamo, components/backends/trtllm.
"""

from __future__ import annotations

from meshwright.app.launching.flags.flag import Flag, FlagTable, cache, count, share, truth, working
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling


def _scheduling(text: str) -> Scheduling:
    return Scheduling.CHUNKED_PREFILL if truth(text) else Scheduling.WHOLE_PROMPTS


_CACHE = "kv-cache-config"

TENSORRT_LLM = FlagTable(
    (
        Flag(("model", "model-path"), "model", str),
        Flag(("tp-size", "tp", "tensor-parallel-size"), "tp", count),
        Flag(("pp-size", "pp", "pipeline-parallel-size"), "pp", count),
        Flag(("ep-size", "ep", "moe-expert-parallel-size", "expert-parallel-size"), "ep", count),
        Flag(("cp-size", "context-parallel-size"), "kvp", count),
        Flag(("moe-tensor-parallel-size",), "moe_tp", count),
        Flag(("enable-attention-dp",), "attention_apart", truth, optional=True),
        Flag(("max-num-tokens",), "step_tokens", count),
        Flag(("max-batch-size",), "sequences", count),
        Flag(("max-seq-len",), "longest", count),
        Flag(("kv-cache-dtype", f"{_CACHE}.dtype"), "kv_dtype", cache),
        Flag(
            (
                *("kv-cache-free-gpu-memory-fraction", "kv-cache-free-gpu-mem-fraction", "free-gpu-memory-fraction"),
                f"{_CACHE}.free-gpu-memory-fraction",
            ),
            "memory_share",
            share,
        ),
        Flag(("dtype",), "dtype", working),
        Flag(("enable-chunked-prefill",), "scheduling", _scheduling, means=Scheduling.CHUNKED_PREFILL, optional=True),
        Flag(("quant-config.quant-algo",), "quantization", str.casefold),
        Flag(("speculative-config.max-draft-len", "speculative-config.num-nextn-predict-layers"), "draft_tokens", count),
        Flag(("extra-llm-api-options", "config", "extra-engine-args"), "config_file", str),
    ),
    harmless={
        **dict.fromkeys(("host", "port", "backend", "log-level", "tokenizer", "served-model-name", "server-role"), True),
        **dict.fromkeys(("reasoning-parser", "tool-parser", "metadata-server-config-file", "gpus-per-node"), True),
        **dict.fromkeys(("num-postprocess-workers", "print-iter-log", "perf-metrics-max-requests", "endpoint"), True),
        **dict.fromkeys(("chat-template", "revision", "hf-revision", "hostname", "cluster-size", "build-config"), True),
        **dict.fromkeys(("trust-remote-code", "fail-fast-on-attention-window-too-large", "return-perf-metrics"), False),
        **dict.fromkeys(("publish-events-and-metrics", "enable-iter-perf-stats"), False),
        **dict.fromkeys(("enable-iter-req-stats",), False),
    },
    not_priced={
        "max-beam-width": "answers that are searched side by side",
        "max-input-len": "the longest prompt",
        "num-experts": "which experts are where",
        "disable-overlap-scheduler": "host time of a step",
        "attn-backend": "kernels of attention",
        "stream-interval": "tokens that are sent together",
        "pp-partition": "layers of each stage: they are taken to be even",
        "sparse-attention-config": "which of the cache is read",
        "disaggregation-mode": "prompts and answers on other servers",
        "disaggregation-strategy": "prompts and answers on other servers",
        "enable-layerwise-nvtx-marker": "marks of a profiler",
        "disagg-cluster-uri": "prompts and answers on other servers",
    },
    switches=frozenset(("enable-layerwise-nvtx-marker",)),
    sections={
        _CACHE: "how the cache is kept",
        "cuda-graph-config": "which steps run in CUDA graphs",
        "moe-config": "kernels of experts",
        "torch-compile-config": "what is fused",
        "speculative-config": "drafts",
        "scheduler-config": "which requests run first",
        "cp-config": "how caches are shared",
        "cache-transceiver-config": "caches that move between servers",
        "attention-dp-config": "who spreads requests over ranks",
        "quant-config": "number formats",
        "peft-cache-config": "adapters take memory and time",
        "lora-config": "adapters take memory and time",
        "decoding-config": "drafts",
        "batching-wait": "how long requests wait for others",
    },
)
