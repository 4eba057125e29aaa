"""The flags of ``sglang.launch_server`` (its ServerArgs, releases 0.5.9 to 0.5.23)."""

from __future__ import annotations

from meshwright.app.launch_flags.flag import Flag, FlagTable, count, share
from meshwright.app.launch_flags.formats import cache, working
from meshwright.costmodels.queueing.simulation.scheduling import Scheduling

SGLANG = FlagTable(
    (
        Flag(("model-path", "model"), "model", str),
        Flag(("tp-size", "tensor-parallel-size", "tp"), "tp", count),
        Flag(("pp-size", "pipeline-parallel-size"), "pp", count),
        Flag(("dp-size", "data-parallel-size", "dp"), "dp", count),
        Flag(("ep-size", "expert-parallel-size", "ep"), "ep", count),
        Flag(("enable-dp-attention",), "attention_apart", means=True),
        Flag(("attn-dp-size",), "attention_groups", count),
        Flag(("attn-cp-size",), "cp", count),
        Flag(("chunked-prefill-size",), "step_tokens", count),
        Flag(("max-running-requests",), "sequences", count),
        Flag(("context-length",), "longest", count),
        Flag(("kv-cache-dtype",), "kv_dtype", cache),
        Flag(("dtype",), "dtype", working),
        Flag(("quantization",), "quantization", str),
        Flag(("mem-fraction-static",), "memory_share", share),
        Flag(("enable-mixed-chunk",), "scheduling", means=Scheduling.CHUNKED_PREFILL),
        Flag(("speculative-num-steps",), "draft_tokens", count),
        Flag(("ep-num-redundant-experts",), "redundant_experts", count),
    ),
    harmless={
        **dict.fromkeys(
            (
                *(
                    "host",
                    "port",
                    "api-key",
                    "served-model-name",
                    "tokenizer-path",
                    "tokenizer-mode",
                    "revision",
                    "random-seed",
                ),
                *("download-dir", "load-format", "chat-template", "tool-call-parser", "reasoning-parser", "log-level"),
                *(
                    "node-rank",
                    "nnodes",
                    "dist-init-addr",
                    "nccl-init-addr",
                    "device",
                    "base-gpu-id",
                    "gpu-id-step",
                    "tokenizer-worker-num",
                ),
                *("watchdog-timeout", "decode-log-interval", "nccl-port", "cp-strategy", "log-level-http", "dist-timeout"),
            ),
            True,
        ),
        **dict.fromkeys(
            (
                *("trust-remote-code", "enable-metrics", "log-requests", "show-time-cost", "skip-server-warmup"),
                *("enable-prefill-cp", "enable-eplb", "enable-cache-report", "allow-auto-truncate"),
            ),
            False,
        ),
    },
    not_priced={
        "max-prefill-tokens": "tokens of prompts in a step beside --chunked-prefill-size",
        "max-total-tokens": "size of the cache",
        "page-size": "tokens of a block of the cache",
        "cuda-graph-max-bs": "which steps run in CUDA graphs",
        "cuda-graph-bs": "which steps run in CUDA graphs",
        "disable-cuda-graph": "steps without CUDA graphs are slower than predicted",
        "disable-cuda-graph-padding": "which steps run in CUDA graphs",
        "disable-radix-cache": "as it is planned: prompts are new ones",
        "disable-overlap-schedule": "host time of a step",
        "enable-torch-compile": "what is fused",
        "attention-backend": "kernels of attention",
        "prefill-attention-backend": "kernels of attention",
        "decode-attention-backend": "kernels of attention",
        "moe-runner-backend": "kernels of experts",
        "moe-a2a-backend": "how tokens get to their experts",
        "deepep-mode": "how tokens get to their experts",
        "moe-dense-tp-size": "how dense layers are split",
        "enable-dp-lm-head": "how the head is split; as it is planned beside attention groups",
        "enable-two-batch-overlap": "two halves of a batch hide each other's messages",
        "enable-flashinfer-allreduce-fusion": "messages over tp",
        "disable-custom-all-reduce": "messages over tp",
        "schedule-policy": "which requests run first",
        "schedule-conservativeness": "how many requests run at once",
        "scheduler-recv-interval": "how long requests wait to be seen",
        "stream-interval": "tokens that are sent together",
        "load-balance-method": "who spreads requests over ranks",
        "lora-paths": "adapters take memory and time",
        "cpu-offload-gb": "weights in host memory: slower steps, more room",
        "hicache-ratio": "caches in host memory",
        "enable-hierarchical-cache": "caches in host memory",
        "json-model-override-args": "sizes of the model",
        "disaggregation-mode": "prompts and answers on other servers",
        "disaggregation-transfer-backend": "caches that move between servers",
        "speculative-algorithm": "drafts",
        "speculative-eagle-topk": "drafts",
        "speculative-num-draft-tokens": "drafts",
        "speculative-draft-model-path": "drafts",
        "fp8-gemm-backend": "kernels of products",
    },
    switches=frozenset(
        (
            *("disable-cuda-graph", "disable-cuda-graph-padding", "disable-radix-cache", "disable-overlap-schedule"),
            *("enable-torch-compile", "enable-dp-lm-head", "enable-two-batch-overlap", "enable-flashinfer-allreduce-fusion"),
            *("disable-custom-all-reduce", "enable-hierarchical-cache"),
        )
    ),
)
