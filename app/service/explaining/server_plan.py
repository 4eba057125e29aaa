"""The plan that a server's command stands for, and the share of memory that it may fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.app.launching.exporters.served import longest_request
from meshwright.app.launching.exporters.sglang import static_share
from meshwright.app.launching.exporters.shape import is_layer
from meshwright.app.launching.exporters.tensorrt_llm import cache_share
from meshwright.app.launching.exporters.vllm import memory_utilisation
from meshwright.app.launching.flags.serving import TABLES, Degrees, LaunchFlags
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.layouts import EngineLoad, Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, SearchStats, Status
from meshwright.solver.answer.stage import Axes, DeviceRange, Stage, StageMemory
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.layouts import served_shape

LARGE_DEVICE_BYTES = 70 * GIB
"""Memory from which on a device counts as large in the engines' defaults (vLLM, EngineArgs.get_batch_defaults)."""
SEVERAL_GPUS_A = "a100"
"""The device that vLLM leaves out of the large ones."""


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """Batch limits of a server whose command gives none."""

    step_tokens: int
    sequences: int


def batch_defaults(request: ServingRequest) -> BatchDefaults:
    """Return an engine's own limits on the devices of a request.

    vLLM: EngineArgs.get_batch_defaults, for an API server. SGLang: chunks by device memory (ServerArgs), and as many sequences
    as its cache holds, here as many as vLLM runs. TensorRT-LLM: max_num_tokens and max_batch_size of LlmArgs, on any device.
    """
    if request.search.engine is ServingEngine.TENSORRT_LLM:
        return BatchDefaults(8192, 2048)
    device = request.cluster.groups[0].node.device
    large = device.memory_bytes >= LARGE_DEVICE_BYTES and SEVERAL_GPUS_A not in device.name.casefold()
    return BatchDefaults(8192, 1024) if large else BatchDefaults(2048, 256)


def server_plan(request: ServingRequest, flags: LaunchFlags, degrees: Degrees) -> Plan:
    """Return the plan of a server's replicas, whose figures are still to be predicted."""
    defaults = batch_defaults(request)
    groups = degrees.attention_dp if request.search.engine is ServingEngine.SGLANG else 1
    # SGLang's limits are those of all attention groups, which share them out evenly.
    step_tokens = max(1, (flags.step_tokens or groups * defaults.step_tokens) // groups)
    sequences = max(1, (flags.sequences or groups * defaults.sequences) // groups)
    axes = Axes(
        dp=degrees.replicas,
        tp=degrees.tp,
        pp=degrees.pp,
        cp=degrees.cp,
        ep=degrees.ep,
        attention_dp=degrees.attention_dp,
        kvp=degrees.kvp,
    )
    load = EngineLoad(degrees.replicas, min(sequences, step_tokens), step_tokens, 0.0, 0.0, 0.0, 0.0)
    n_devices = degrees.devices * degrees.replicas
    return Plan(
        kind="serving",
        feasible=True,
        certificate=Certificate(Status.FEASIBLE, None, None, None, "", GIVEN_PLAN),
        devices=n_devices,
        search=SearchStats(1, 0, 0.0),
        calibration=(),
        model=request.model.name,
        layout=Replicas(axes, (_place(axes, n_devices),), load),
    )


def _place(axes: Axes, n_devices: int) -> Stage:
    """The devices of a plan; its layers and memory are predicted."""
    nothing = StageMemory(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Stage((), (DeviceRange(0, n_devices),), axes, Recompute.NONE, 0, 0.0, 0.0, 0.0, nothing)


_WRITTEN_SHARE: Mapping[ServingEngine, Callable[[Workers, ServingRequest], float]] = {
    ServingEngine.VLLM: memory_utilisation,
    ServingEngine.SGLANG: static_share,
    ServingEngine.TENSORRT_LLM: cache_share,
}
"""The share that exporters write of a plan."""


def with_memory_share(request: ServingRequest, predicted: Plan, share: float | None) -> ServingRequest:
    """Return the request on devices that keep free what the command's share leaves, where a plan would fill more.

    Shares are compared as exporters write them, so that the command of a plan leaves it as it is.
    """
    if share is None or not isinstance(predicted.layout, Replicas):
        return request
    written = _WRITTEN_SHARE[request.search.engine](predicted.layout.workers, request)
    if share >= written:
        return request
    stage = max(predicted.layout.stages, key=lambda each: each.memory.total_bytes)
    filled = _FILLED[request.search.engine](share, stage.memory, request.cluster.groups[0].node.device.memory_bytes)
    return replace(request, cluster=replace(request.cluster, memory_reserve=max(0.0, 1.0 - filled)))


def _of_all(share: float, memory: StageMemory, device_bytes: float) -> float:
    """The share of a device that may be filled, of one that counts everything."""
    return share


def _of_weights_and_cache(share: float, memory: StageMemory, device_bytes: float) -> float:
    """The same of a share that counts weights and cache, of what is free before they are loaded."""
    static_bytes = share * (device_bytes - memory.overhead_bytes)
    return (static_bytes + memory.transient_bytes + memory.overhead_bytes) / device_bytes


def _of_free_for_cache(share: float, memory: StageMemory, device_bytes: float) -> float:
    """The same of a share that counts the cache alone, of what everything else leaves."""
    others_bytes = memory.total_bytes - memory.kv_cache_bytes
    return (others_bytes + share * (device_bytes - others_bytes)) / device_bytes


_FILLED: Mapping[ServingEngine, Callable[[float, StageMemory, float], float]] = {
    ServingEngine.VLLM: _of_all,
    ServingEngine.SGLANG: _of_weights_and_cache,
    ServingEngine.TENSORRT_LLM: _of_free_for_cache,
}
"""Share of a device that a command's share lets an engine fill, by the memory of a stage."""


# Rules by which serving engines refuse to start, read for a command's flags: each broken one in words.
#
# Sources: vllm/config (parallel, model, scheduler), sglang/srt/server_args.py and arg_groups/parallel_hook.py.


def broken_rules(request: ServingRequest, flags: LaunchFlags, degrees: Degrees) -> tuple[str, ...]:
    """Return why a server does not start, or would answer none of the requests; empty where it does."""
    engine = request.search.engine
    named = {each.field: f"--{each.names[0]}" for each in reversed(TABLES[engine].flags)}
    return (*_of_model(request, flags, degrees, named), *_of_limits(request, flags, named))


def _of_model(request: ServingRequest, flags: LaunchFlags, degrees: Degrees, named: dict[str, str]) -> Iterator[str]:
    shape = served_shape(request.model, request.workload.weight_format)
    layers = sum(1 for name in request.model.layers if is_layer(request.model.block(name)))
    ranks = degrees.tp * degrees.kvp
    if shape.heads % ranks:
        yield f"{named['tp']} {flags.tp}: the model's {shape.heads} attention heads do not divide by {ranks}"
    elif shape.kv_heads > 1 and max(degrees.tp, shape.kv_heads) % min(degrees.tp, shape.kv_heads):
        yield f"{named['tp']} {flags.tp}: {shape.kv_heads} key/value heads and {degrees.tp} ranks do not divide"
    if degrees.pp > layers:
        yield f"{named['pp']} {degrees.pp}: the model has {layers} layers"
    if degrees.ep > 1 and not shape.experts:
        yield f"{named['ep']}: the model has no experts"
    elif shape.experts and shape.experts % degrees.ep:
        yield f"{named['ep']}: {shape.experts} experts do not divide by {degrees.ep} ranks"
    devices = degrees.devices * degrees.replicas
    if devices > request.cluster.n_devices:
        yield f"the command starts on {devices} devices, and there are {request.cluster.n_devices}"


def _of_limits(request: ServingRequest, flags: LaunchFlags, named: dict[str, str]) -> Iterator[str]:
    longest = longest_request(request.workload)
    if flags.longest is not None and longest is not None and longest > flags.longest:
        yield f"{named['longest']} {flags.longest}: requests of {longest} tokens are refused"
    if request.search.engine is not ServingEngine.VLLM or flags.step_tokens is None:
        return
    too_few = f"{named['step_tokens']} {flags.step_tokens}: less than"
    if flags.sequences is not None and flags.step_tokens < flags.sequences:
        yield f"{too_few} {named['sequences']} {flags.sequences}"
    if flags.scheduling is Scheduling.WHOLE_PROMPTS and flags.longest is not None and flags.step_tokens < flags.longest:
        yield f"{too_few} {named['longest']} {flags.longest} without chunked prefill"
