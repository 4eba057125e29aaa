"""SGLang: a plan of replicas, or of prefill and decode servers with their router, as commands.

Flags are those of ``sglang.launch_server`` (its ServerArgs, releases 0.5.9 to 0.5.23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from meshwright.costmodels.model.dims import EXPERTS, FFN, SHARED_FFN
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import DraftMethod
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Pools, Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest, ServingWorkload

SGLANG = FlagTable(
    (
        Flag(("model-path", "model"), "model", str),
        Flag(("tp-size", "tensor-parallel-size", "tp"), "tp", count),
        Flag(("pp-size", "pipeline-parallel-size", "pp"), "pp", count),
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
        Flag(("config",), "config_file", str),
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
                *(
                    "trust-remote-code",
                    "skip-tokenizer-init",
                    "use-sglang-tokenizer",
                    "enable-metrics",
                    "log-requests",
                    "show-time-cost",
                    "skip-server-warmup",
                ),
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
    short_names=ShortNames.ARGPARSE,
)


# A plan as its command.


def export_plan(plan: Plan, request: ServingRequest) -> Export:
    """Commands of one kind of worker, or of a prefill and a decode server with their router."""
    match plan.layout:
        case Pools() as layout:
            return export_pools(plan, layout, request)
        case Replicas() as layout:
            return export_replicas(plan, layout.workers, request)
        case _:
            raise AssertionError("no other layout is launchable")


# SGLang: one `sglang.launch_server` command a replica, or one for all replicas of a node.
#
# Rules are those of sglang/srt/server_args.py and sglang/srt/arg_groups (parallel, scheduling, speculation).

VERSION = "0.5.23"

MEETING_PORT = 20000
"""A port for --dist-init-addr, which has no default between nodes."""
PORT = 30000
"""SGLang's own default of --port."""

_ALGORITHMS = {
    DraftMethod.NGRAM: "NGRAM",
    DraftMethod.MTP: "NEXTN",
    DraftMethod.EAGLE: "EAGLE",
    DraftMethod.EAGLE3: "EAGLE3",
    DraftMethod.DRAFT_MODEL: "STANDALONE",
}
_MIXES = (DraftMethod.MTP, DraftMethod.EAGLE, DraftMethod.EAGLE3)
"""Drafts whose verification may share a step with prompts (SpeculativeAlgorithm.supports_mixed_chunk)."""


def export_replicas(plan: Plan, workers: Workers, request: ServingRequest) -> Export:
    """Flags of the layout, the scheduler and memory of workers that do both phases."""
    require_engine(request, ServingEngine.SGLANG)
    together = _replicas_share_a_server(workers, request)
    return Export(
        launcher=Launcher.SGLANG,
        version=VERSION,
        command=server_command(
            plan.model, workers, request, together=together, port=PORT, more=_mixed_words(workers.axes, request)
        ),
        inexpressible=lost_in_words(workers.axes, request),
        assumptions=(
            *server_assumptions(plan.model, workers, request),
            *_replica_assumptions(workers, request, together=together),
        ),
        servers=_servers(plan.model, workers, request, together=together, more=_mixed_words(workers.axes, request)),
    )


def _servers(model: str, workers: Workers, request: ServingRequest, *, together: bool, more: Sequence[Words]) -> ServerGroup:
    """The servers of the command: one of all replicas ``together``, else one a replica; ``more`` flags of each."""
    axes = workers.axes
    parts = (*_layout_words(axes, request.workload), *_load_words(workers, request), *more)
    return ServerGroup(
        count=1 if together else workers.count,
        nodes=_nodes(axes, request),
        devices=_ranks(axes) * axes.pp * (workers.count if together else 1),
        port=PORT,
        # It listens to its own host alone by default.
        outside="--host 0.0.0.0",
        meeting_port=MEETING_PORT,
        engine=ReplicaEngine(
            checkpoint(model),
            tuple(str(word) for part in parts for word in part),
            _environment(workers, request),
            copies=workers.count if together else 1,
        ),
    )


def server_command(
    model: str, workers: Workers, request: ServingRequest, *, together: bool, port: int, more: Sequence[Words] = ()
) -> str:
    """One ``sglang.launch_server`` command, of a replica or of all ``together``."""
    axes = workers.axes
    parts = [
        ("python", "-m", "sglang.launch_server"),
        flag("model-path", checkpoint(model)),
        *_layout_words(axes, request.workload),
        *([flag(SGLANG.name("dp"), workers.count)] if together and workers.count > 1 else []),
        *_node_words(axes, request),
        *_load_words(workers, request),
        *more,
        flag("port", port),
    ]
    return command_text(environment=_environment(workers, request), parts=parts)


def _environment(workers: Workers, request: ServingRequest) -> tuple[tuple[str, str], ...]:
    counts = uneven_layers(workers, request, launcher="SGLang")
    return (("SGLANG_PP_LAYER_PARTITION", ",".join(str(count) for count in counts)),) if counts else ()


def _layout_words(axes: Axes, workload: ServingWorkload) -> list[Words]:
    """Degrees, attention groups and experts."""
    groups = [flag(SGLANG.name("attention_groups"), axes.attention_dp), flag("enable-dp-lm-head")]
    return [
        (*flag(SGLANG.name("tp"), _ranks(axes)), *flag(SGLANG.name("pp"), axes.pp)),
        *(groups if axes.attention_dp > 1 else []),
        *_shared_prompt_words(axes),
        *_expert_words(axes, workload),
    ]


def _load_words(workers: Workers, request: ServingRequest) -> list[Words]:
    """Limits of a step, memory, formats and drafts."""
    workload = request.workload
    # The limits of a server are those of all its attention groups, which share them out evenly.
    groups = workers.axes.attention_dp
    sequences, tokens = (groups * limit for limit in (workers.max_num_seqs, workers.max_num_batched_tokens))
    return [
        flag(SGLANG.name("sequences"), sequences),
        (*flag(SGLANG.name("step_tokens"), tokens), *flag("max-prefill-tokens", workers.max_num_batched_tokens)),
        flag(SGLANG.name("memory_share"), static_share(workers, request)),
        *_precision_words(workload),
        *_speculative_words(workload),
    ]


def static_share(workers: Workers, request: ServingRequest) -> float:
    """Weights and cache of the fullest stage, over what its device has free before they are loaded, rounded down to a
    hundredth (--mem-fraction-static): the rest is left to activations and graphs."""
    cluster = request.cluster
    shares = [
        (stage.memory.weights_bytes + stage.memory.kv_cache_bytes)
        / (group.node.device.memory_bytes - stage.memory.overhead_bytes)
        for stage in workers.stages
        for devices in stage.devices
        for group in cluster.groups_spanned(devices.first, devices.count)
    ]
    return share_in_hundredths(max(shares))


def lost_in_words(axes: Axes, request: ServingRequest, *, both_phases: bool = True) -> tuple[str, ...]:
    """Return, in words, the parts of the plan's workers, of both phases or of one, that SGLang runs in another way."""
    workload = request.workload
    lost = []
    dense = sorted({FFN, SHARED_FFN} & request.model.dims.keys())
    if axes.attention_dp * axes.cp > 1 and dense and EXPERTS in request.model.dims:
        lost.append(
            f"{', '.join(dense)} over tp {axes.tp}: SGLang splits what is dense beside the experts over all {_ranks(axes)} "
            "ranks, which takes less memory and more messages than planned"
        )
    if both_phases and workload.speculation is not None and not _mixes(workload):
        lost.append(
            f"steps of prompts and answers with a draft of method {workload.speculation.draft.method.value}: SGLang runs "
            "either in a step of its own, prompts first"
        )
    return tuple(lost)


def server_assumptions(model: str, workers: Workers, request: ServingRequest) -> tuple[str, ...]:
    """Return the assumptions of the command of any server."""
    axes, workload = workers.axes, request.workload
    said = [checkpoint_assumption(model)]
    if _nodes(axes, request) > 1:
        said.append(
            "run it on every node of the replica; NODE_RANK counts them from 0, MASTER_ADDR is the address of node 0 with a "
            f"port, as in 10.0.0.1:{MEETING_PORT}"
        )
    if workload.weight_format not in (WeightFormat.BF16, WeightFormat.FP16, WeightFormat.FP8):
        said.append(
            f"the checkpoint stores its weights in {workload.weight_format.value}; SGLang reads that from its config.json"
        )
    if axes.attention_dp > 1:
        said.append(
            f"--max-running-requests and --chunked-prefill-size are those of all {axes.attention_dp} attention groups, "
            "--max-prefill-tokens is that of each"
        )
    own, fits = own_length(request), longest_that_fits(workers, request)
    if own is None or own > fits:
        said.append(f"the KV cache holds a request of {fits:,} tokens: SGLang refuses longer ones, one by one")
    return tuple(said)


def _replica_assumptions(workers: Workers, request: ServingRequest, *, together: bool) -> tuple[str, ...]:
    replicas, devices = workers.count, _ranks(workers.axes) * workers.axes.pp
    if replicas == 1 or together:
        return ()
    return (
        f"this is one replica of {replicas}, on {devices} devices: start it {replicas} times, each on devices and a port of "
        f"its own, behind {balancer_words(request.workload)}{_ROUTERS[request.workload.router]}",
    )


_ROUTERS = {
    Router.RANDOM: " (sglang_router.launch_router --worker-urls)",
    Router.ROUND_ROBIN: " (sglang_router.launch_router --worker-urls --policy round_robin)",
    Router.LEAST_LOADED: "",
}
"""SGLang's own router has no policy that looks at all servers: power_of_two looks at two."""


def _replicas_share_a_server(workers: Workers, request: ServingRequest) -> bool:
    """Return True if one server runs all replicas: they fit on the first node, and are not attention groups of their own
    (--dp-size goes without --attn-dp-size)."""
    axes = workers.axes
    devices = workers.count * _ranks(axes) * axes.pp
    return devices <= request.cluster.groups[0].node.host_devices and axes.attention_dp == 1


def _ranks(axes: Axes) -> int:
    """--tp-size: all ranks of a stage; SGLang cuts them into attention groups and groups that share prompts."""
    return axes.tp * axes.cp * axes.attention_dp


def _shared_prompt_words(axes: Axes) -> list[Words]:
    """Zigzag gives every rank a piece from either end of a prompt, as planned; interleave is of sparse attention."""
    if axes.cp == 1:
        return []
    return [(*flag(SGLANG.name("cp"), axes.cp), *flag("enable-prefill-cp"), *flag("cp-strategy", "zigzag"))]


def _expert_words(axes: Axes, workload: ServingWorkload) -> list[Words]:
    words: list[Words] = [flag(SGLANG.name("ep"), axes.ep)] if axes.ep > 1 else []
    if workload.experts.redundant_experts:
        words.append((*flag("enable-eplb"), *flag(SGLANG.name("redundant_experts"), workload.experts.redundant_experts)))
    return words


def _nodes(axes: Axes, request: ServingRequest) -> int:
    return math.ceil(_ranks(axes) * axes.pp / request.cluster.groups[0].node.host_devices)


def _node_words(axes: Axes, request: ServingRequest) -> list[Words]:
    """A replica that is larger than a node runs the same command on each of its nodes."""
    nodes = _nodes(axes, request)
    if nodes == 1:
        return []
    return [
        (*flag("nnodes", nodes), *flag("node-rank", ShellVariable("NODE_RANK"))),
        flag("dist-init-addr", ShellVariable("MASTER_ADDR")),
    ]


def _precision_words(workload: ServingWorkload) -> list[Words]:
    words: list[Words] = [flag(SGLANG.name("dtype"), "float16" if workload.precision is DType.FP16 else "bfloat16")]
    # Weights that a checkpoint stores so need no flag, and may refuse this one.
    if workload.precision is DType.FP8 and workload.weights is None and workload.weight_format is WeightFormat.FP8:
        words.append(flag(SGLANG.name("quantization"), "fp8"))
    if workload.kv_dtype is DType.FP8:
        words.append(flag(SGLANG.name("kv_dtype"), "fp8_e4m3"))
    return words


def _speculative_words(workload: ServingWorkload) -> list[Words]:
    """A chain of proposals; --speculative-num-draft-tokens counts the token before them, too."""
    speculation = workload.speculation
    if speculation is None:
        return []
    draft = speculation.draft
    require_checkpoint(draft, launcher="SGLang")
    words = [flag("speculative-algorithm", _ALGORITHMS[draft.method])]
    if draft.model is not None:
        words.append(flag("speculative-draft-model-path", draft.model))
    if draft.method is not DraftMethod.NGRAM:
        words.append((*flag(SGLANG.name("draft_tokens"), speculation.draft_tokens), *flag("speculative-eagle-topk", 1)))
    return [*words, flag("speculative-num-draft-tokens", speculation.query_tokens)]


def _mixed_words(axes: Axes, request: ServingRequest) -> list[Words]:
    """Prompts and answers share steps, as planned; without the flag SGLang runs prompts first, in steps of their own, as is
    planned of ranks that share prompts."""
    workload = request.workload
    if axes.cp > 1 or (workload.speculation is not None and not _mixes(workload)):
        return []
    return [flag(SGLANG.name("scheduling"))]


def _mixes(workload: ServingWorkload) -> bool:
    return workload.speculation is not None and workload.speculation.draft.method in _MIXES


# SGLang with a pool of prefill and a pool of decode servers: one command each, and the router before them.
#
# Rules are those of sglang/srt/disaggregation (rank mapping of CommonKVReceiver) and of its documentation of PD
# disaggregation.

PREFILL_FILE, DECODE_FILE, ROUTER_FILE = "prefill.sh", "decode.sh", "router.sh"
BOOTSTRAP_PORT = 8998
"""SGLang's own default of --disaggregation-bootstrap-port."""
ROUTER_PORT = 8000


def export_pools(plan: Plan, pools: Pools, request: ServingRequest) -> Export:
    """A script for a server of each pool; caches move between them, or they are not launchable."""
    require_engine(request, ServingEngine.SGLANG)
    prefill, decode = pools.prefill_workers, pools.decode_workers
    of_prefill = [*_pool_words("prefill"), flag("disaggregation-bootstrap-port", BOOTSTRAP_PORT)]
    pools_of = ((PREFILL_FILE, prefill, of_prefill), (DECODE_FILE, decode, _pool_words("decode")))
    commands = {
        name: server_command(plan.model, workers, request, together=False, port=PORT + index, more=more)
        for index, (name, workers, more) in enumerate(pools_of)
    }
    commands[ROUTER_FILE] = _router_command()
    return Export(
        launcher=Launcher.SGLANG,
        version=VERSION,
        command=" & ".join(f"bash {name}" for name in commands) + " & wait",
        files={name: f"#!/bin/bash\n{command}\n" for name, command in commands.items()},
        inexpressible=tuple(
            dict.fromkeys(said for each in (prefill, decode) for said in lost_in_words(each.axes, request, both_phases=False))
        ),
        assumptions=(
            *dict.fromkeys(said for each in (prefill, decode) for said in server_assumptions(plan.model, each, request)),
            *_pool_assumptions(prefill, decode),
        ),
        pools=ServerPools(
            *(_servers(plan.model, workers, request, together=False, more=more) for _, workers, more in pools_of)
        ),
    )


def _pool_words(mode: str) -> list[Words]:
    return [(*flag("disaggregation-mode", mode), *flag("disaggregation-transfer-backend", "nixl"))]


def _router_command() -> str:
    parts = [
        ("python", "-m", "sglang_router.launch_router"),
        flag("pd-disaggregation"),
        flag("prefill", ShellVariable("PREFILL_URL"), BOOTSTRAP_PORT),
        flag("decode", ShellVariable("DECODE_URL")),
        flag("policy", "random"),
        flag("port", ROUTER_PORT),
    ]
    return command_text(parts=parts)


def _pool_assumptions(prefill: Workers, decode: Workers) -> tuple[str, ...]:
    sizes = [axes.tp * axes.cp * axes.attention_dp * axes.pp for axes in (prefill.axes, decode.axes)]
    return (
        f"{PREFILL_FILE} is one prefill server of {prefill.count}, on {sizes[0]} devices, {DECODE_FILE} one decode server "
        f"of {decode.count}, on {sizes[1]}: start each so many times, on devices (--base-gpu-id), ports "
        "and, for prefill, bootstrap ports of its own",
        f"{ROUTER_FILE} needs sglang-router; PREFILL_URL and DECODE_URL are the addresses of a server of each pool, as in "
        "http://10.0.0.1:30000: repeat --prefill and --decode for the others",
    )
