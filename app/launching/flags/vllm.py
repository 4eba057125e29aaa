"""The flags of ``vllm serve`` (its engine arguments, releases 0.19 to 0.33)."""

from __future__ import annotations

import json
from typing import Any

from meshwright.app.launching.flags.flag import Flag, FlagTable, cache, count, share, working
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling


def _drafted(text: str) -> int:
    """Return the drafted tokens of its JSON."""
    return count(str(json.loads(text)["num_speculative_tokens"]))


def _redundant(text: str) -> Any:
    """Return the copies of hot experts of its JSON, None where it names none."""
    return json.loads(text).get("num_redundant_experts")


def _length(text: str) -> int | None:
    """Return a number of tokens, as in 8192, 8k (thousands) or 8K (of 1,024); None of ``auto`` and -1, the model's own."""
    if text in ("auto", "-1"):
        return None
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1:], 1)
    return count(text) if factor == 1 else int(float(text[:-1]) * factor)


VLLM = FlagTable(
    (
        Flag(("model",), "model", str),
        Flag(("tensor-parallel-size", "tp"), "tp", count),
        Flag(("pipeline-parallel-size", "pp"), "pp", count),
        Flag(("data-parallel-size", "dp"), "dp", count),
        Flag(("decode-context-parallel-size", "dcp"), "kvp", count),
        Flag(("enable-expert-parallel", "ep"), "ep", means=0),
        Flag(("max-num-batched-tokens",), "step_tokens", _length),
        Flag(("max-num-seqs",), "sequences", count),
        Flag(("max-model-len",), "longest", _length),
        Flag(("gpu-memory-utilization",), "memory_share", share),
        Flag(("dtype",), "dtype", working),
        Flag(("quantization", "q"), "quantization", str),
        Flag(("kv-cache-dtype",), "kv_dtype", cache),
        Flag(("enable-chunked-prefill",), "scheduling", means=Scheduling.CHUNKED_PREFILL),
        Flag(("no-enable-chunked-prefill",), "scheduling", means=Scheduling.WHOLE_PROMPTS),
        Flag(("speculative-config",), "draft_tokens", _drafted),
        Flag(("speculative-config.num-speculative-tokens",), "draft_tokens", count),
        Flag(("eplb-config",), "redundant_experts", _redundant),
        Flag(("config",), "config_file", str),
    ),
    harmless={
        **dict.fromkeys(
            (
                *(
                    "endpoint",
                    "connector",
                    "migration-limit",
                    "custom-jinja-template",
                    "kv-events-config",
                    "nnode",
                    "model-name",
                ),
                *("host", "port", "api-key", "served-model-name", "tokenizer", "tokenizer-mode", "revision", "seed"),
                *("download-dir", "load-format", "chat-template", "chat-template-content-format", "tool-call-parser"),
                *("reasoning-parser", "uvicorn-log-level", "ssl-keyfile", "ssl-certfile", "root-path", "generation-config"),
                *("node-rank", "master-addr", "master-port", "nnodes", "data-parallel-address", "data-parallel-rpc-port"),
                *("data-parallel-start-rank", "data-parallel-size-local", "distributed-executor-backend", "model-impl"),
                *("allowed-local-media-path", "allowed-origins", "max-logprobs", "config-format", "hf-token", "task", "runner"),
                *(
                    "override-generation-config",
                    "disable-log-stats",
                    "tokenizer-revision",
                    "code-revision",
                    "tool-parser-plugin",
                ),
            ),
            True,
        ),
        **dict.fromkeys(
            (
                # Those of Dynamo's worker, and of images.
                *("is-prefill-worker", "is-decode-worker", "enable-multimodal", "multimodal-worker", "no-trust-remote-code"),
                *("trust-remote-code", "disable-log-requests", "enable-log-requests", "no-enable-log-requests"),
                *("enable-auto-tool-choice", "headless", "disable-log-stats", "enable-prompt-tokens-details"),
                *("enable-server-load-tracking", "enable-reasoning", "disable-uvicorn-access-log", "enable-eplb"),
            ),
            False,
        ),
    },
    not_priced={
        "enable-prefix-caching": "prompts are planned as new ones; give hits of the prefix cache in a request file",
        "no-enable-prefix-caching": "as it is planned",
        "enforce-eager": "steps without CUDA graphs are slower than predicted",
        "compilation-config": "which steps run in CUDA graphs, and what is fused",
        "cpu-offload-gb": "weights in host memory: slower steps, more room",
        "swap-space": "caches that are moved to host memory",
        "block-size": "tokens of a block of the cache",
        "num-gpu-blocks-override": "size of the cache",
        "kv-cache-memory-bytes": "size of the cache",
        "kv-transfer-config": "caches that move between servers",
        "enable-lora": "adapters take memory and time",
        "max-loras": "adapters take memory and time",
        "max-lora-rank": "adapters take memory and time",
        "lora-modules": "adapters take memory and time",
        "hf-overrides": "sizes of the model",
        "rope-scaling": "positions of the model",
        "limit-mm-per-prompt": "images and sound of a prompt",
        "mm-encoder-tp-mode": "how the towers of images and sound are split",
        "mm-processor-cache-gb": "host memory of images",
        "speculative-config.method": "drafts",
        "speculative-config.model": "drafts",
        "language-model-only": "towers of images and sound are not planned anyway",
        "mm-processor-cache-type": "host memory of images",
        "enable-dbo": "two halves of a batch hide each other's messages",
        "all2all-backend": "how tokens get to their experts",
        "attention-backend": "kernels of attention",
        "prefill-context-parallel-size": "prompts shared by ranks, which vLLM's runner refuses",
        "async-scheduling": "host time of a step",
        "no-async-scheduling": "host time of a step",
        "scheduling-policy": "which requests run first",
        "long-prefill-token-threshold": "prompts that share a step",
        "max-num-partial-prefills": "prompts that share a step",
        "stream-interval": "tokens that are sent together",
        "data-parallel-backend": "who starts the ranks",
        "data-parallel-hybrid-lb": "who spreads requests over ranks",
        "api-server-count": "processes that take requests",
        "cuda-graph-sizes": "which steps run in CUDA graphs",
        "max-cudagraph-capture-size": "which steps run in CUDA graphs",
    },
    switches=frozenset(
        (
            *("enable-prefix-caching", "no-enable-prefix-caching", "enforce-eager", "enable-lora", "enable-dbo"),
            "language-model-only",
            *("async-scheduling", "no-async-scheduling", "data-parallel-hybrid-lb"),
        )
    ),
)
