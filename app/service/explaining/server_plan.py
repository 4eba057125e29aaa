"""The plan that a server's command stands for, and the share of memory that it may fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from meshwright.app.base.figures import gib
from meshwright.app.launching.launchers.sglang import static_share
from meshwright.app.launching.launchers.table import FLAGS
from meshwright.app.launching.launchers.tensorrt_llm import cache_share
from meshwright.app.launching.launchers.vllm import VLLM, memory_utilisation
from meshwright.app.launching.parts.served import longest_request, own_length
from meshwright.app.launching.parts.serving import LEAST_SHARE, LaunchFlags, ServerDegrees
from meshwright.costmodels.queueing.simulation.step_forming import Scheduling
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.layouts import EngineLoad, Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, Certificate, SearchStats, Status
from meshwright.solver.answer.stage import Axes, DeviceRange, Stage, StageMemory
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.launchers.decoders import is_layer
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.layouts import served_shape
from meshwright.solver.serving.workers.given import CacheRoom

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


def server_plan(request: ServingRequest, flags: LaunchFlags, degrees: ServerDegrees) -> Plan:
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


def with_memory_share(request: ServingRequest, predicted: Plan, room: CacheRoom, share: float | None) -> ServingRequest:
    """Return the request on devices of which the engine fills what the command's share says.

    A share that an exporter would write of the plan leaves it as it is: it is rounded.
    """
    engine = request.search.engine
    if share is None:
        return request
    written = _WRITTEN_SHARE.get(engine)
    if isinstance(predicted.layout, Replicas) and written and share == written(predicted.layout.workers, request):
        return request
    filled = _FILLED[engine](share, room, request.cluster.groups[0].node.device.memory_bytes)
    cluster = replace(request.cluster, memory_reserve=min(request.cluster.memory_reserve, max(0.0, 1.0 - filled)))
    return replace(request, cluster=cluster, search=replace(request.search, memory_share=max(LEAST_SHARE, min(filled, 1.0))))


def _of_all(share: float, room: CacheRoom, device_bytes: float) -> float:
    """The share of a device that is filled, of one that counts everything."""
    return share


def _of_weights_and_cache(share: float, room: CacheRoom, device_bytes: float) -> float:
    """The same of a share that counts weights and cache, of what is free before they are loaded."""
    return (share * (device_bytes - room.overhead_bytes) + room.workspace_bytes + room.overhead_bytes) / device_bytes


def _of_what_is_left(share: float, room: CacheRoom, device_bytes: float) -> float:
    """The same of a share that counts the cache alone, of what is free when all else is loaded."""
    loaded_bytes = room.weights_bytes + room.workspace_bytes + room.overhead_bytes
    return (loaded_bytes + share * max(0.0, device_bytes - loaded_bytes)) / device_bytes


_FILLED: Mapping[ServingEngine, Callable[[float, CacheRoom, float], float]] = {
    ServingEngine.VLLM: _of_all,
    ServingEngine.SGLANG: _of_weights_and_cache,
    ServingEngine.TENSORRT_LLM: _of_what_is_left,
}
"""Share of a device that a command's share lets an engine fill, by what its devices hold."""


# The longest request that a server takes, and whether its cache has room for one.
#
# vLLM asks at its start whether one request of the model's length fits (check_enough_kv_cache_memory in
# vllm/v1/core/kv_cache_utils.py); SGLang starts, and refuses longer requests one by one (max_req_len of its TpModelWorker).


def longest_of(request: ServingRequest, flags: LaunchFlags) -> int | None:
    """Return the tokens of the longest request that a server takes: as its command says, else as the model's file does."""
    return flags.longest or own_length(request)


_LONGER: Mapping[ServingEngine, str] = {
    ServingEngine.VLLM: "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    ServingEngine.SGLANG: "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
}
"""The variables that let an engine take longer sequences than the model's file says."""


def over_the_models(request: ServingRequest, flags: LaunchFlags, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return why an engine does not start: it is told to take longer sequences than the model has positions for."""
    positions, variable, longest = own_length(request), _LONGER.get(request.search.engine), flags.longest
    if positions is None or variable is None or longest is None or longest <= positions:
        return ()
    if environment.get(variable, "").casefold() in ("1", "true"):
        return ()
    flag = f"--{FLAGS[request.search.engine].name('longest')}"
    return (f"{flag} {longest}: the model has {positions} positions; {variable}=1 or a rule of rotary scaling lets it",)


def too_long(request: ServingRequest, flags: LaunchFlags, room: CacheRoom) -> tuple[str, ...]:
    """Return why vLLM does not start: one request of the longest length does not fit the cache; empty where it does."""
    longest = longest_of(request, flags)
    if request.search.engine is not ServingEngine.VLLM or longest is None or longest <= room.longest_tokens:
        return ()
    flag = f"--{VLLM.name('longest')}"
    whose = f"{flag} {longest}" if flags.longest else f"the model's own length of {longest} tokens (no {flag} is given)"
    needed, free = gib(room.needed_bytes(longest)), gib(max(0.0, room.free_bytes))
    starts = f"{flag} {room.longest_tokens} starts" if room.longest_tokens else "no length does"
    return (f"{whose}: one such request takes {needed} of cache on a device, which has {free} for it; {starts}",)


LOGIT_BYTES_BEFORE_017 = 38.4
"""Bytes that vLLM up to 0.16 kept of each logit while it chose tokens: 5.64 GiB for Qwen3-14B (0.15.0 and 0.16.0), about 7.5
for gpt-oss-120b (vllm-project/vllm issue 27508), each of 1,024 sequences."""
MEASURED_SEQUENCES = 1024
"""Sequences from which on that is known: fewer, the default of small devices, were not measured."""


def too_long_before(request: ServingRequest, flags: LaunchFlags, room: CacheRoom, sequences: int) -> tuple[str, ...]:
    """Return why vLLM up to 0.16 does not start where later releases do: no command says its release."""
    longest, law = longest_of(request, flags), ENGINE_PROFILES[ServingEngine.VLLM].memory
    if request.search.engine is not ServingEngine.VLLM or longest is None or sequences < MEASURED_SEQUENCES:
        return ()
    more_bytes = (LOGIT_BYTES_BEFORE_017 - law.logit_bytes) * room.logits
    fits = room.longest_with(room.free_bytes - more_bytes)
    if longest <= fits:
        return ()
    flag, limit = f"--{VLLM.name('longest')}", f"--{VLLM.name('sequences')}"
    starts = f"{flag} {fits} or fewer {limit}" if fits else f"fewer {limit}"
    return (
        f"vLLM up to 0.16 keeps {gib(more_bytes)} more for choosing tokens, and one request of {longest} tokens does not fit "
        f"then: it starts with {starts}; from 0.17 on it starts as it is",
    )


def length_notes(request: ServingRequest, flags: LaunchFlags, room: CacheRoom) -> tuple[str, ...]:
    """Return what is worth knowing of the longest request of a server that starts."""
    longest = longest_of(request, flags)
    if longest is None:
        return ("the model's own length is not known: a server whose cache is smaller does not start without a flag for it",)
    if longest > room.longest_tokens:
        return (f"requests of more than {room.longest_tokens} tokens are refused: the cache holds no more",)
    return ()


# Rules by which serving engines refuse to start, read for a command's flags: each broken one in words.
#
# Sources: vllm/config (parallel, model, scheduler), sglang/srt/server_args.py and arg_groups/parallel_hook.py.


def broken_rules(request: ServingRequest, flags: LaunchFlags, degrees: ServerDegrees) -> tuple[str, ...]:
    """Return why a server does not start, or would answer none of the requests; empty where it does."""
    engine = request.search.engine
    named = {each.field: f"--{each.names[0]}" for each in reversed(FLAGS[engine].flags)}
    return (*_of_model(request, flags, degrees, named), *_of_limits(request, flags, named))


def _of_model(request: ServingRequest, flags: LaunchFlags, degrees: ServerDegrees, named: dict[str, str]) -> Iterator[str]:
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
