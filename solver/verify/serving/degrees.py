"""Degrees of serving workers: what divides, what the search, the engine and the launcher allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    SEQ,
    SHARED_FFN,
    SSM_GROUPS,
    SSM_HEADS,
    SSM_INNER,
)
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Workers
from meshwright.solver.answer.stage import Axes, Stage
from meshwright.solver.problem.choices import Launcher, Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.servers import ENGINES, SERVERS, PromptSharing
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import FixedLength, TraceArrivals
from meshwright.solver.verify.rules import devices_by_group, layer_violations, picked_dims
from meshwright.solver.verify.violation import Rule, Violation

_ORDERED = (OperatorKind.SCAN, OperatorKind.CONVOLUTION)


def stage_ranks(axes: Axes) -> int:
    """Ranks of a pipeline stage."""
    return axes.tp * axes.kvp * axes.cp * axes.attention_dp


def division_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """Heads, columns and experts divide evenly; few key/value heads are copied; the vocabulary is padded."""
    dims = request.model.dims
    if min(axes.tp, axes.kvp, axes.cp, axes.attention_dp, axes.ep) < 1:
        return
    dense, ranks = axes.tp * axes.kvp, stage_ranks(axes)
    over_ranks = f"tp {axes.tp}" + (f" x kvp {axes.kvp}" if axes.kvp > 1 else "")
    for dim in (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER):
        if dims.get(dim, dense) % dense:
            yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", f"{dim} {dims[dim]} does not divide by {over_ranks}")
    for dim, over in ((KV_HEADS, axes.tp), (KV_HEADS, dense), (SSM_GROUPS, dense)):
        have = dims.get(dim, over)
        if have % over and over % have:
            given = f"{have} {dim} neither divide by {over} ranks nor can be copied evenly to them"
            yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", given)
            break
    has_experts = any(picked_dims(operator) for block in request.model.blocks for operator in block.operators)
    if not has_experts and max(axes.ep, axes.attention_dp) > 1:
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, and the model has no experts: ep and attention_dp are 1")
    elif ranks % axes.ep:
        yield Violation(Rule.AXES, "plan.axes.ep", f"{axes.ep} does not divide the {ranks} ranks of a stage")
    elif has_experts:
        yield from _expert_division_violations(axes, request, ranks)


def _expert_division_violations(axes: Axes, request: ServingRequest, ranks: int) -> Iterator[Violation]:
    dims, workload = request.model.dims, request.workload
    slots, split = dims[EXPERTS] + workload.experts.redundant_experts, ranks // axes.ep
    if slots % axes.ep:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"{slots} experts and copies do not divide by ep {axes.ep}")
    width = dims.get(EXPERT_FFN, split)
    # Block fp8 checkpoints scale 128 columns together: a rank holds whole blocks.
    unit = split * (128 if workload.weight_format is WeightFormat.FP8_BLOCK else 1)
    if width % unit:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"experts of width {width} do not divide into units of {unit}")


def restriction_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """The degrees, the engine and the launcher that the search allows."""
    search = request.search
    restricted = (
        ("tp", axes.tp, search.tp),
        ("pp", axes.pp, search.pp),
        ("ep", axes.ep, search.ep),
        ("attention_dp", axes.attention_dp, search.attention_dp),
        ("kvp", axes.kvp, search.kvp),
    )
    for name, value, allowed in restricted:
        if allowed and value not in allowed:
            yield Violation(Rule.SEARCH, f"plan.axes.{name}", f"{value}, the request allows {allowed}")
    ranks = stage_ranks(axes)
    if not ENGINES[search.engine].spreads_over_some and axes.ep not in (1, ranks):
        given = f"{axes.ep}; {search.engine.value} spreads experts over all {ranks} ranks or none"
        yield Violation(Rule.LAUNCHER, "plan.axes.ep", given)
    if axes.kvp > 1:
        yield from _kvp_violations(axes, request)
    trains_only = search.launcher not in (*SERVERS, Launcher.MEGATRON_LM)
    if search.space is Space.LAUNCHABLE and trains_only:
        # Megatron-LM is the default of a request that names no launcher.
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{search.launcher.value} does not serve")


def _kvp_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """vLLM, decode context parallelism: the tensor-parallel ranks outnumber the key/value heads kvp times over."""
    heads = cached_heads(request)
    engine = request.search.engine
    if not ENGINES[engine].splits_caches:
        yield Violation(Rule.LAUNCHER, "plan.axes.kvp", f"{axes.kvp}; {engine.value} does not split a cache along the sequence")
    if axes.tp < heads:
        given = f"{axes.kvp} at tp {axes.tp}: the {heads} key/value heads are split first"
        yield Violation(Rule.DIVISIBILITY, "plan.axes.kvp", given)


def shared_prompt_violations(workers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """SGLang's prefill context parallelism (--enable-prefill-cp): inside a node, of attention without recurrent states, caches
    whole on every rank."""
    axes = workers.axes
    if axes.cp == 1:
        return
    if ENGINES[request.search.engine].prompt_sharing is PromptSharing.NONE:
        given = f"{axes.cp}; of {request.search.engine.value} no worker shares the tokens of a prompt"
        yield Violation(Rule.LAUNCHER, "plan.axes.cp", given)
    states = [b.name for b in request.model.blocks if any(o.kind in _ORDERED for o in b.operators)]
    if states or axes.kvp > 1 or axes.pp > 1:
        given = f"{axes}: neither recurrent states ({', '.join(states) or 'none'}) nor kvp or pp go with it"
        yield Violation(Rule.AXES, "plan.axes.cp", given)
    smallest = min((g.node.devices_per_node for g, _ in devices_by_group(request.cluster, workers.device_ranges)), default=0)
    if stage_ranks(axes) > smallest:
        yield Violation(Rule.DEVICES, "plan.axes.cp", f"{stage_ranks(axes)} ranks of a stage, a node has {smallest} devices")


def whole_prompt_violations(axes: Axes) -> Iterator[Violation]:
    """Workers that only decode do not share the tokens of prompts."""
    if axes.cp != 1:
        given = f"{axes.cp}; only workers that compute prompts share their tokens"
        yield Violation(Rule.AXES, "plan.axes.cp", given)


# Layers, devices and degrees of equal serving workers.


def devices_of(workers: Workers) -> int:
    """Devices of all of them."""
    return workers.count * stage_ranks(workers.axes) * workers.axes.pp


def shape_violations(workers: Workers, request: ServingRequest, *, devices: int) -> Iterator[Violation]:
    """Layers, ``devices`` that the plan claims for them, and degrees of workers."""
    yield from layer_violations(workers.stages, request)
    yield from _device_violations(workers, devices, request)
    yield from division_violations(workers.axes, request)


def _device_violations(workers: Workers, devices: int, request: ServingRequest) -> Iterator[Violation]:
    """Replicas of pp stages of ranks. A stage lists its devices in every replica, or in the first."""
    axes, replicas = workers.axes, workers.count
    ranks = stage_ranks(axes)
    needed = replicas * ranks * axes.pp
    least = min(replicas, axes.tp, axes.kvp, axes.cp, axes.attention_dp, axes.ep, axes.pp)
    if least < 1 or axes.dp not in (1, replicas):
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, replicas {replicas}: every degree is at least 1")
    if devices != needed:
        yield Violation(Rule.DEVICES, "plan.devices", f"{devices}, replicas x ranks of a stage x pp is {needed}")
    if devices > request.cluster.n_devices:
        yield Violation(Rule.DEVICES, "plan.devices", f"{devices}, the cluster has {request.cluster.n_devices}")
    if len(workers.stages) != axes.pp:
        yield Violation(Rule.STAGES, "plan.stages", f"{len(workers.stages)} stages, pp is {axes.pp}")
    ranges = sorted((listed.first, listed.count) for listed in workers.device_ranges)
    for (first, count), (following, _) in itertools.pairwise(ranges):
        if first + count > following:
            yield Violation(Rule.DEVICES, "plan.stages", f"device {following} is used twice")
    for index, stage in enumerate(workers.stages):
        where = f"plan.stages[{index}].devices"
        listed = sum(each.count for each in stage.devices)
        inside = sum(count for _, count in devices_by_group(request.cluster, stage.devices))
        if listed not in (ranks, ranks * replicas):
            given = f"{listed} devices; a stage has {ranks} in one replica, {ranks * replicas} in all"
            yield Violation(Rule.DEVICES, where, given)
        if inside != listed:
            yield Violation(Rule.DEVICES, where, f"the cluster has ranks 0 to {request.cluster.n_devices - 1}")
        if replace(stage.axes, dp=axes.dp) != axes:
            yield Violation(Rule.AXES, f"plan.stages[{index}].axes", f"{stage.axes}, the plan has {axes}")


# A request as workers of one phase see it.


def of_prompts(request: ServingRequest) -> ServingRequest:
    """The request as prefill workers see it: each prompt is answered with one token."""
    workload = request.workload
    if isinstance(workload.arrivals, TraceArrivals):
        single = replace(workload.arrivals, output_tokens=(1,) * len(workload.arrivals.times_s))
        return replace(request, workload=replace(workload, arrivals=single))
    return replace(request, workload=replace(workload, output_tokens=FixedLength(1)))


def of_answers(request: ServingRequest) -> ServingRequest:
    """The request as decode workers see it: prompts come whole from the prefill workers, nothing of them is shared."""
    return replace(request, workload=request.workload.without_prefix_cache())


# Keys and values of a token in the caches of a stage.


def kv_bytes_per_token(axes: Axes, request: ServingRequest, stage: Stage) -> float:
    """Keys and values of one token in all attention operators of the stage, on one rank."""
    workload = request.workload
    dtype = workload.kv_dtype or (DType.FP8 if workload.precision in (DType.FP8, DType.FP4) else workload.precision)
    elements = 0
    for span in stage.blocks:
        block = request.model.block(span.block)
        latent = _latent_elements(block, request)
        for operator in block.operators:
            # A sliding window bounds the cache of its layer, so such layers are left out of this lower bound.
            if operator.kind is OperatorKind.ATTENTION and operator.window is None:
                key, value = operator.inputs[1:]
                # Heads are split over tp alone, and copied where there are fewer; kvp splits the tokens.
                split = min(axes.tp, request.model.dims[key.dims[-2]])
                sizes = {**request.model.dims, BATCH: 1, SEQ: 1}
                whole = key.elements(sizes) + value.elements(sizes)
                elements += span.count * (latent or whole // split)
    return elements * dtype.size_bytes / axes.kvp


def cached_heads(request: ServingRequest) -> int:
    """Key/value heads of the cache; one where it holds latents."""
    latent = any(_latent_elements(block, request) for block in request.model.blocks)
    return 1 if latent else request.model.dims.get(KV_HEADS, request.model.dims.get(HEADS, 1))


def _latent_elements(block: Block, request: ServingRequest) -> int:
    """Elements of a token in a latent cache (DeepSeek-V2, section 2.1): the latent that one product expands to keys and values
    of every head, and the rotary key that all heads share; 0 for a block without one."""
    dims = request.model.dims
    for operator in block.operators:
        outputs = [tensor for tensor in operator.outputs if HEADS in tensor.dims]
        if operator.kind is OperatorKind.MATMUL and len(outputs) == len(operator.outputs) == 2:
            source = operator.inputs[0]
            if HEADS not in source.dims and source.dims[-1] != HIDDEN:
                joined = [o for o in block.operators if outputs[0] in o.inputs]
                shared = [t for o in joined for t in o.inputs if HEADS not in t.dims]
                return dims[source.dims[-1]] + sum(dims[t.dims[-1]] for t in shared)
    return 0
