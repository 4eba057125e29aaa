"""TensorRT-LLM: ``trtllm-serve`` with a file of further settings, one server a replica.

Flags are those of tensorrt_llm/commands/serve.py, keys those of LlmArgs and the records in it
(tensorrt_llm/llmapi/llm_args.py), which refuse any other.
"""

from __future__ import annotations

import math
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.exporters.command import command_text
from meshwright.app.launching.exporters.command import flag as dashed
from meshwright.app.launching.exporters.export import Export, ServerGroup
from meshwright.app.launching.exporters.served import (
    checkpoint,
    checkpoint_assumption,
    longest_that_fits,
    own_length,
    require_checkpoint,
    require_engine,
    uneven_layers,
)
from meshwright.app.launching.flags.tensorrt_llm import TENSORRT_LLM
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import DraftMethod
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest, ServingWorkload

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
    return math.floor(min(max(shares), 1.0) * 100) / 100


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
            "devices and a port of its own, behind a load balancer that spreads requests evenly"
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
