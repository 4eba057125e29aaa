"""TensorRT-LLM: ``trtllm-serve`` with a file of further settings, one server a replica.

Flags are those of tensorrt_llm/commands/serve.py (release 1.0 to 1.2) and of Dynamo's worker over it
(components/backends/trtllm), keys those of LlmArgs and the records in it (tensorrt_llm/llmapi/llm_args.py), which refuse
any other.
"""

from __future__ import annotations

import math
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.parts.command import command_text
from meshwright.app.launching.parts.command import flag as dashed
from meshwright.app.launching.parts.export import Export, ServerGroup
from meshwright.app.launching.parts.flag import Flag, FlagTable, cache, count, share, truth, working
from meshwright.app.launching.parts.served import (
    balancer_words,
    checkpoint,
    checkpoint_assumption,
    longest_that_fits,
    own_length,
    require_checkpoint,
    require_engine,
    uneven_layers,
)
from meshwright.app.launching.parts.serving import share_in_hundredths
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import DraftMethod
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest, ServingWorkload


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


# A plan as its command.

VERSION = "1.2.1"
CONFIG = "trtllm.yaml"
PORT = 8000
"""trtllm-serve's own default of --port."""

_DRAFTS = {
    DraftMethod.MTP: "MTP",
    DraftMethod.NGRAM: "NGram",
    DraftMethod.EAGLE3: "Eagle3",
    DraftMethod.DRAFT_MODEL: "Draft_Target",
}
"""Names of decoding_type, for all methods that it drafts by."""
_NGRAM = 2
"""Default of max_matching_ngram_size."""


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Flags of the layout and the scheduler of one replica, and the file of what has no flag."""
    require_engine(request, ServingEngine.TENSORRT_LLM)
    assert isinstance(plan.layout, Replicas), "no other layout is launchable"
    workers = plan.layout.workers
    axes = workers.axes
    own, fits = own_length(request), longest_that_fits(workers, request)
    parts = [
        *([("trtllm-llmapi-launch",)] if _nodes(axes, request) > 1 else []),
        ("trtllm-serve", checkpoint(plan.model)),
        (*_flag("tp", axes.tp * axes.attention_dp), *_flag("pp", axes.pp), *(_flag("ep", axes.ep) if axes.ep > 1 else ())),
        (*_flag("sequences", workers.max_num_seqs), *_flag("step_tokens", workers.max_num_batched_tokens)),
        *([] if own is None or own <= fits else [dashed("max_seq_len", fits)]),
        dashed("extra_llm_api_options", CONFIG),
        (*dashed("host", "0.0.0.0"), *dashed("port", PORT)),
    ]
    return Export(
        launcher=Launcher.TENSORRT_LLM,
        version=VERSION,
        command=command_text(parts=parts),
        files={CONFIG: yaml_text(_settings(workers, request))},
        assumptions=_assumptions(plan.model, workers, request),
        servers=ServerGroup(
            count=workers.count,
            nodes=_nodes(axes, request),
            devices=axes.tp * axes.attention_dp * axes.kvp * axes.pp,
            port=PORT,
            starts_by_itself=False,
        ),
    )


def _flag(field: str, value: int) -> tuple[Any, ...]:
    return dashed(TENSORRT_LLM.name(field).replace("-", "_"), value)


def _settings(workers: Workers, request: ServingRequest) -> dict[str, Any]:
    axes, workload = workers.axes, request.workload
    cache: dict[str, Any] = {"free_gpu_memory_fraction": cache_share(workers, request)}
    if workload.kv_dtype is DType.FP8:
        cache["dtype"] = "fp8"
    settings: dict[str, Any] = {
        "dtype": "float16" if workload.precision is DType.FP16 else "bfloat16",
        "enable_chunked_prefill": True,
        "kv_cache_config": cache,
    }
    if axes.attention_dp > 1:
        settings["enable_attention_dp"] = True
    if axes.kvp > 1:
        # World size is tp x pp x cp, whose cp ranks share each cache while decoding.
        settings |= {"context_parallel_size": axes.kvp, "cp_config": {"cp_type": "HELIX"}}
    if EXPERTS in request.model.dims:
        settings["moe_tensor_parallel_size"] = axes.tp * axes.attention_dp * axes.kvp // axes.ep
    if workload.experts.redundant_experts:
        slots = request.model.dims[EXPERTS] + workload.experts.redundant_experts
        settings["moe_config"] = {"load_balancer": {"num_slots": slots, "layer_updates_per_iter": 1}}
    counts = uneven_layers(workers, request, launcher="TensorRT-LLM")
    if counts:
        settings["pp_partition"] = list(counts)
    if _nodes(axes, request) > 1:
        settings["gpus_per_node"] = request.cluster.groups[0].node.host_devices
    return settings | _speculation(workload)


def cache_share(workers: Workers, request: ServingRequest) -> float:
    """The planned cache over what weights, activations and overhead leave on the fullest stage, rounded down to a hundredth
    (free_gpu_memory_fraction)."""
    shares = [
        stage.memory.kv_cache_bytes / (group.node.device.memory_bytes - stage.memory.total_bytes + stage.memory.kv_cache_bytes)
        for stage in workers.stages
        for devices in stage.devices
        for group in request.cluster.groups_spanned(devices.first, devices.count)
    ]
    return share_in_hundredths(max(shares))


def _speculation(workload: ServingWorkload) -> dict[str, Any]:
    speculation = workload.speculation
    if speculation is None:
        return {}
    draft, tokens = speculation.draft, speculation.draft_tokens
    require_checkpoint(draft, launcher="TensorRT-LLM")
    settings: dict[str, Any] = {"decoding_type": _DRAFTS[draft.method]}
    match draft.method:
        case DraftMethod.MTP:
            settings["num_nextn_predict_layers"] = tokens
        case DraftMethod.NGRAM:
            # Proposals are read from answers, which the overlapping scheduler has not yet.
            return {
                "speculative_config": settings | {"max_draft_len": tokens, "max_matching_ngram_size": _NGRAM},
                "disable_overlap_scheduler": True,
            }
        case _:
            settings |= {"max_draft_len": tokens, "speculative_model": draft.model}
    return {"speculative_config": settings}


def _devices(axes: Axes) -> int:
    return axes.tp * axes.attention_dp * axes.kvp * axes.pp


def _nodes(axes: Axes, request: ServingRequest) -> int:
    return math.ceil(_devices(axes) / request.cluster.groups[0].node.host_devices)


def _assumptions(model: str, workers: Workers, request: ServingRequest) -> tuple[str, ...]:
    axes, workload = workers.axes, request.workload
    said = [checkpoint_assumption(model)]
    if workers.count > 1:
        said.append(
            f"this is one replica of {workers.count}, on {_devices(axes)} devices: start it {workers.count} times, each on "
            f"devices and a port of its own, behind {balancer_words(workload)}"
        )
    if _nodes(axes, request) > 1:
        said.append(
            f"a replica is started by a task a device, {_devices(axes)} of them: srun --mpi=pmix "
            f"--ntasks-per-node {request.cluster.groups[0].node.host_devices} in front of the command"
        )
    if workload.weight_format not in (WeightFormat.BF16, WeightFormat.FP16):
        said.append(
            f"the checkpoint stores its weights in {workload.weight_format.value}: weights are not converted when loaded"
        )
    if axes.attention_dp > 1:
        said.append("--max_batch_size and --max_num_tokens are those of each attention group")
    if axes.kvp > 1:
        said.append("caches are shared along the sequence (HELIX) by latent attention on Blackwell, in servers that decode")
    if own_length(request) is None:
        fits = longest_that_fits(workers, request)
        said.append(f"the model's own length is not known: the KV cache holds a request of {fits:,} tokens (--max_seq_len)")
    return tuple(said)
