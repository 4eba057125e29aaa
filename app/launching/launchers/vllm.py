"""vLLM: a plan of replicas, of prefill and decode servers, or of several kinds of workers as commands.

Flags are those of ``vllm serve`` (its engine arguments, releases 0.19 to 0.33).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.app.launching.parts.command import ShellVariable, Words, command_text, flag
from meshwright.app.launching.parts.export import Export, ReplicaEngine, ServerGroup, ServerPools
from meshwright.app.launching.parts.flag import Flag, FlagTable, ShortNames, cache, count, share, working
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
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.model.dims import EXPERTS
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes, DeviceRange
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest, ServingWorkload


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
    short_names=ShortNames.ARGPARSE,
)


# A plan as its command.


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, of several kinds, or of a prefill and a decode server."""
    match plan.layout:
        case Kinds() as layout:
            return export_kinds(plan, layout, request)
        case Pools() as layout:
            return export_pools(plan, layout, request)
        case Replicas() as layout:
            return export_replicas(plan, layout.workers, request)
        case _:
            raise AssertionError("no other layout is launchable")


# vLLM: one `vllm serve` command a replica, or one for all replicas of a node.
#
# Rules are those of vllm/config (parallel, model and scheduler) and vllm/engine/arg_utils.py.

VERSION = "0.33.0"
Environment = tuple[tuple[str, str], ...]

PORT = 8000
"""vLLM's own default of --port."""


def export_replicas(plan: Plan, workers: Workers, request: ServingRequest) -> Export:
    """Flags of the layout, the scheduler and memory of workers that do both phases."""
    require_engine(request, ServingEngine.VLLM)
    together = replicas_share_a_server(workers, request)
    return Export(
        launcher=Launcher.VLLM,
        version=VERSION,
        command=serve_command(plan.model, workers, request, together=together, port=PORT),
        assumptions=server_assumptions(plan.model, workers, request, together=together),
        servers=_servers(plan.model, workers, request, together=together),
    )


def _servers(
    model: str, workers: Workers, request: ServingRequest, *, together: bool, more: Sequence[Words] = ()
) -> ServerGroup:
    """The servers of the command: one of all replicas ``together``, else one a replica; ``more`` flags of each."""
    axes, per_node = workers.axes, request.cluster.groups[0].node.host_devices
    devices = _devices_of_one(axes) * (workers.count if together else 1)
    here = per_node // (axes.tp * axes.kvp)
    spreads = 0 < here < axes.attention_dp
    return ServerGroup(
        count=1 if together else workers.count,
        nodes=math.ceil(axes.attention_dp / here) if spreads else math.ceil(devices / per_node),
        devices=devices,
        port=PORT,
        others="--headless",
        ranks_a_node=here if spreads else 1,
        engine=ReplicaEngine(
            checkpoint(model),
            tuple(
                str(word) for part in (*_layout_words(axes, request), *_load_words(workers, request), *more) for word in part
            ),
            _environment(workers, request),
            copies=workers.count if together else 1,
        ),
    )


def serve_command(
    model: str,
    workers: Workers,
    request: ServingRequest,
    *,
    together: bool,
    port: int,
    more: Sequence[Words] = (),
    environment: Environment = (),
) -> str:
    """One ``vllm serve`` command, of a worker or of all ``together``."""
    axes = workers.axes
    parts = [
        ("vllm", "serve", checkpoint(model)),
        *_layout_words(axes, request, among=_rank_words(axes, request)),
        *([flag(VLLM.name("dp"), workers.count)] if together and workers.count > 1 else []),
        *_node_words(axes, request),
        *_load_words(workers, request),
        flag("port", port),
        *more,
    ]
    return command_text(environment=(*environment, *_environment(workers, request)), parts=parts)


def _layout_words(axes: Axes, request: ServingRequest, *, among: Sequence[Words] = ()) -> list[Words]:
    """Degrees; attention groups are data-parallel ranks that share experts, ``among`` nodes if need be."""
    return [
        flag(VLLM.name("tp"), axes.tp * axes.kvp),
        *([flag(VLLM.name("kvp"), axes.kvp)] if axes.kvp > 1 else []),
        flag(VLLM.name("pp"), axes.pp),
        *([flag(VLLM.name("dp"), axes.attention_dp)] if axes.attention_dp > 1 else []),
        *among,
        *_expert_words(axes, request.workload),
    ]


def _load_words(workers: Workers, request: ServingRequest) -> list[Words]:
    """Limits of a step, memory, formats and drafts."""
    workload = request.workload
    return [
        (*flag(VLLM.name("sequences"), workers.max_num_seqs), *flag(VLLM.name("step_tokens"), workers.max_num_batched_tokens)),
        *_length_words(workers, request),
        flag(VLLM.name("memory_share"), memory_utilisation(workers, request)),
        *_precision_words(workload),
        *_speculative_words(workload),
        flag(VLLM.name("scheduling")),
    ]


def replicas_share_a_server(workers: Workers, request: ServingRequest) -> bool:
    """Return True if one server runs all replicas: they fit on the first node, and share nothing.

    Data-parallel ranks of a model with experts share those, so its replicas are servers of their own.
    """
    devices = workers.count * _devices_of_one(workers.axes)
    return devices <= request.cluster.groups[0].node.host_devices and EXPERTS not in request.model.dims


def _devices_of_one(axes: Axes) -> int:
    return axes.tp * axes.kvp * axes.attention_dp * axes.pp


def _rank_words(axes: Axes, request: ServingRequest) -> list[Words]:
    """Attention groups over several nodes: those of this one, and where the first of all is."""
    here = request.cluster.groups[0].node.host_devices // (axes.tp * axes.kvp)
    if not 0 < here < axes.attention_dp:
        return []
    return [
        (*flag("data-parallel-size-local", here), *flag("data-parallel-start-rank", ShellVariable("FIRST_RANK"))),
        flag("data-parallel-address", ShellVariable("MASTER_ADDR")),
    ]


def _expert_words(axes: Axes, workload: ServingWorkload) -> list[Words]:
    words: list[Words] = [flag(VLLM.name("ep"))] if axes.ep > 1 else []
    if workload.experts.redundant_experts:
        config = json.dumps({"num_redundant_experts": workload.experts.redundant_experts})
        words.append((*flag("enable-eplb"), *flag(VLLM.name("redundant_experts"), config)))
    return words


def _speculative_words(workload: ServingWorkload) -> list[Words]:
    """The draft (vllm/config/speculative.py); raises ExportError where its checkpoint is not named."""
    speculation = workload.speculation
    if speculation is None:
        return []
    draft = speculation.draft
    require_checkpoint(draft, launcher="vLLM")
    named = {} if draft.model is None else {"model": draft.model}
    config = {"method": draft.method.value, **named, "num_speculative_tokens": speculation.draft_tokens}
    return [flag(VLLM.name("draft_tokens"), json.dumps(config))]


def memory_utilisation(workers: Workers, request: ServingRequest) -> float:
    """Share of a device's memory that the fullest stage was planned with, rounded down to a hundredth.

    vLLM gives to the KV cache what this share leaves beside weights and its own profiled peak.
    """
    cluster = request.cluster
    used = max(
        stage.memory.total_bytes / group.node.device.memory_bytes
        for stage in workers.stages
        for devices in stage.devices
        for group in cluster.groups_spanned(devices.first, devices.count)
    )
    return share_in_hundredths(used)


def _node_words(axes: Axes, request: ServingRequest) -> list[Words]:
    """A replica that is larger than a node runs the same command on each of its nodes."""
    per_node = request.cluster.groups[0].node.host_devices
    n_nodes = math.ceil(axes.tp * axes.kvp * axes.pp / per_node)
    if n_nodes == 1:
        return []
    return [
        (*flag("nnodes", n_nodes), *flag("node-rank", ShellVariable("NODE_RANK"))),
        flag("master-addr", ShellVariable("MASTER_ADDR")),
    ]


def _length_words(workers: Workers, request: ServingRequest) -> list[Words]:
    """Nothing where the cache holds a request of the model's own length, else the longest that it holds: vLLM asks for room
    for one at its start."""
    own, fits = own_length(request), longest_that_fits(workers, request)
    return [] if own is None or own <= fits else [flag(VLLM.name("longest"), fits)]


def _precision_words(workload: ServingWorkload) -> list[Words]:
    words = []
    match workload.precision:
        # Weights that a checkpoint stores so need no flag, and may refuse this one.
        case DType.FP8 if workload.weights is None and workload.weight_format is WeightFormat.FP8:
            words.append((*flag(VLLM.name("dtype"), "bfloat16"), *flag(VLLM.name("quantization"), "fp8")))
        case DType.FP16:
            words.append(flag(VLLM.name("dtype"), "float16"))
        case _:
            words.append(flag(VLLM.name("dtype"), "bfloat16"))
    if workload.kv_dtype is DType.FP8:
        words.append(flag(VLLM.name("kv_dtype"), "fp8"))
    return words


def _environment(workers: Workers, request: ServingRequest) -> tuple[tuple[str, str], ...]:
    """vLLM splits layers evenly over stages, unless this variable names the layers of each."""
    counts = uneven_layers(workers, request, launcher="vLLM")
    return (("VLLM_PP_LAYER_PARTITION", ",".join(str(count) for count in counts)),) if counts else ()


def server_assumptions(model: str, workers: Workers, request: ServingRequest, *, together: bool) -> tuple[str, ...]:
    """Return the assumptions of the command of a worker, or of all ``together``."""
    axes = workers.axes
    devices = _devices_of_one(axes)
    said = [checkpoint_assumption(model)]
    if workers.count > 1 and not together:
        said.append(
            f"this is one replica of {workers.count}, on {devices} devices: start it {workers.count} times, "
            f"each on devices and a port of its own, behind {balancer_words(request.workload)}"
        )
    per_node = request.cluster.groups[0].node.host_devices
    here = per_node // (axes.tp * axes.kvp)
    if 0 < here < axes.attention_dp:
        said.append(
            f"run it on every node of the replica, with --headless on all but the first; FIRST_RANK is {here} times the node's "
            "number, from 0; MASTER_ADDR is the address of node 0"
        )
    elif devices > per_node:
        said.append(
            "run it on every node of the replica, with --headless on all but the first; NODE_RANK counts them from 0, "
            "MASTER_ADDR is the address of node 0"
        )
    workload = request.workload
    if workload.weight_format not in (WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP8):
        said.append(
            f"the checkpoint stores its weights in {workload.weight_format.value}; vLLM reads that from its config.json"
        )
    if axes.attention_dp > 1:
        said.append("--max-num-seqs and --max-num-batched-tokens are those of each of the data-parallel ranks")
    if own_length(request) is None:
        fits = longest_that_fits(workers, request)
        said.append(
            f"the model's own length is not known: the KV cache holds a request of {fits:,} tokens; where the model's is "
            f"longer add --max-model-len {fits}"
        )
    return tuple(said)


# vLLM with a pool of prefill and a pool of decode servers: one command each, keys and values through the NixlConnector.
#
# Rules are those of vllm/distributed/kv_transfer (NixlConnector) and of its documentation of disaggregated prefilling.

PREFILL_FILE, DECODE_FILE = "prefill.sh", "decode.sh"
SIDE_CHANNEL_PORT = 5600
"""vLLM's own default of VLLM_NIXL_SIDE_CHANNEL_PORT."""

_CONNECTOR = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def export_pools(plan: Plan, pools: Pools, request: ServingRequest) -> Export:
    """A script for a server of each pool; caches move between them, or they are not launchable."""
    prefill, decode = pools.prefill_workers, pools.decode_workers
    connector = (flag("kv-transfer-config", _CONNECTOR),)
    commands = {
        name: serve_command(
            plan.model,
            workers,
            request,
            together=False,
            port=PORT + index,
            more=connector,
            environment=(("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT + index)),),
        )
        for index, (name, workers) in enumerate(((PREFILL_FILE, prefill), (DECODE_FILE, decode)))
    }
    return Export(
        launcher=Launcher.VLLM,
        version=VERSION,
        command=f"bash {PREFILL_FILE} & bash {DECODE_FILE} & wait",
        files={name: f"#!/bin/bash\n{command}\n" for name, command in commands.items()},
        assumptions=_assumptions(plan.model, prefill, decode),
        pools=ServerPools(*(_servers(plan.model, each, request, together=False, more=connector) for each in (prefill, decode))),
    )


def _assumptions(model: str, prefill: Workers, decode: Workers) -> tuple[str, ...]:
    return (
        checkpoint_assumption(model),
        f"{PREFILL_FILE} is one prefill server of {prefill.count}, on {prefill.axes.tp} devices, {DECODE_FILE} one decode "
        f"server of {decode.count}, on {decode.axes.tp}: start each so many times, on devices (CUDA_VISIBLE_DEVICES) and ports "
        "of its own; VLLM_NIXL_SIDE_CHANNEL_PORT differs between the servers of a host, VLLM_NIXL_SIDE_CHANNEL_HOST is the "
        "host's address",
        "a proxy in front sends each request to a prefill server for one token, then to a decode server, both drawn evenly "
        "(vLLM has an example, tests/v1/kv_connector/nixl_integration/toy_proxy_server.py)",
    )


# vLLM with several kinds of workers: one server group a kind, and the weights by which a router shares requests among them.

WEIGHTS_FILE = "router-weights.json"


def export_kinds(plan: Plan, layout: Kinds, request: ServingRequest) -> Export:
    """A script for a server of each kind, and each server's share of the requests."""
    require_engine(request, ServingEngine.VLLM)
    files, weights, assumptions = {}, {}, []
    for index, kind in enumerate(layout.kinds, start=1):
        name = f"kind-{index}.sh"
        planned = kind.replicas.workers
        workers, own = _on_own_group(planned, request)
        together = replicas_share_a_server(workers, own)
        command = serve_command(plan.model, workers, own, together=together, port=PORT + index - 1)
        files[name] = f"#!/bin/bash\n{command}\n"
        servers = 1 if together else workers.count
        weights[name] = {"servers": servers, "weight_each": kind.share / servers}
        ranks = ", ".join(f"{d.first} to {d.first + d.count - 1}" for d in planned.device_ranges)
        where = f"{name}, on devices of ranks {ranks} ({own.cluster.groups[0].node.name}; CUDA_VISIBLE_DEVICES)"
        assumptions += [f"{where}: {said}" for said in server_assumptions(plan.model, workers, own, together=together)]
    shared = ", ".join(f"{each['weight_each']:.4g} to each of {each['servers']} {name}" for name, each in weights.items())
    assumptions.append(
        f"a router in front draws a server for each request at random by weight ({WEIGHTS_FILE}): {shared}; evenly spread "
        "requests would overload the slower kind"
    )
    return Export(
        launcher=Launcher.VLLM,
        version=VERSION,
        command=" & ".join(f"bash {name}" for name in files) + " & wait",
        files={**files, WEIGHTS_FILE: json.dumps(weights, indent=2) + "\n"},
        assumptions=tuple(assumptions),
    )


def _on_own_group(workers: Workers, request: ServingRequest) -> tuple[Workers, ServingRequest]:
    """The workers on their node group alone, whose ranks begin at 0."""
    first_rank = 0
    lowest = min(devices.first for devices in workers.device_ranges)
    for group in request.cluster.groups:
        if lowest < first_rank + group.n_devices:
            break
        first_rank += group.n_devices
    stages = tuple(
        replace(stage, devices=tuple(DeviceRange(d.first - first_rank, d.count) for d in stage.devices))
        for stage in workers.stages
    )
    return replace(workers, stages=stages), replace(request, cluster=Cluster((group,)))
