"""Rules by which serving engines refuse to start, read for a command's flags: each broken one in words.

Sources: vllm/config (parallel, model, scheduler), sglang/srt/server_args.py and arg_groups/parallel_hook.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.app.exporters.served import longest_request
from meshwright.app.exporters.shape import is_layer
from meshwright.app.launch_flags.serving import TABLES, Degrees, LaunchFlags
from meshwright.costmodels.queueing.simulation.scheduling import Scheduling
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine_rules import served_shape


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
