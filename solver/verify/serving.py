"""Rules of a serving plan: layers, replicas, divisibility, memory, load and latency targets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from statistics import fmean

from costmodels.operators import BATCH, SEQ, OperatorKind
from solver.plan import Plan, Stage
from solver.request import (
    ClosedArrivals,
    EmpiricalLength,
    FixedLength,
    Launcher,
    Length,
    LognormalLength,
    PlanRequest,
    ServingWorkload,
    Space,
    TraceArrivals,
)
from solver.verify.bytes import Share, owned_parameters, tied_copies
from solver.verify.layout import devices_by_group, layer_violations
from solver.verify.memory import capacity_violations, peak_violations
from solver.verify.numbers import at_most
from solver.verify.sharding import HEADS, KV_HEADS, REPLICATE
from solver.verify.times import band_violations, cost_violations
from solver.verify.violation import Rule, Violation

_SERVERS = (Launcher.VLLM,)
_SPLIT_DIMS = (HEADS, "ffn", "vocab")


def serving_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Every rule of a serving plan."""
    shape = (*layer_violations(plan, request), *_device_violations(plan, request), *_division_violations(plan, request))
    yield from shape
    if shape:
        return
    yield from _restriction_violations(plan, request)
    for index, stage in enumerate(plan.stages):
        yield from _weight_violations(plan, request, stage, f"plan.stages[{index}]")
        yield from _kv_violations(plan, request, stage, f"plan.stages[{index}]")
        yield from capacity_violations(request, stage, f"plan.stages[{index}]")
    yield from peak_violations(plan)
    yield from _load_violations(plan, request)
    yield from cost_violations(plan, request)
    yield from band_violations(plan)


def _device_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Replicas of tp x pp devices. A stage lists its devices in every replica, or in the first."""
    axes, layout = plan.axes, plan.serving
    assert axes is not None and layout is not None
    needed = layout.replicas * axes.tp * axes.pp
    if layout.replicas < 1 or min(axes.tp, axes.pp) < 1 or axes.cp != 1 or axes.ep != 1:
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, replicas {layout.replicas}: only replicas, tp and pp serve")
    if plan.devices != needed:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, replicas x tp x pp is {needed}")
    if plan.devices > request.cluster.n_devices:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the cluster has {request.cluster.n_devices}")
    if len(plan.stages) != axes.pp:
        yield Violation(Rule.STAGES, "plan.stages", f"{len(plan.stages)} stages, pp is {axes.pp}")
    ranges = sorted((devices.first, devices.count) for stage in plan.stages for devices in stage.devices)
    for (first, count), (following, _) in itertools.pairwise(ranges):
        if first + count > following:
            yield Violation(Rule.DEVICES, "plan.stages", f"device {following} is used twice")
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}].devices"
        listed = sum(devices.count for devices in stage.devices)
        inside = sum(count for _, count in devices_by_group(request.cluster, stage.devices))
        if listed not in (axes.tp, axes.tp * layout.replicas):
            given = f"{listed} devices; a stage has tp = {axes.tp} in one replica, {axes.tp * layout.replicas} in all"
            yield Violation(Rule.DEVICES, where, given)
        if inside != listed:
            yield Violation(Rule.DEVICES, where, f"the cluster has ranks 0 to {request.cluster.n_devices - 1}")
        if stage.axes.tp != axes.tp or stage.axes.pp != axes.pp:
            yield Violation(Rule.AXES, f"plan.stages[{index}].axes", f"{stage.axes}, the plan has {axes}")


def _division_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """vLLM asserts heads % tp; it copies few key/value heads, and pads the vocabulary to a multiple of 64."""
    assert plan.axes is not None
    tp, dims = plan.axes.tp, request.model.dims
    for dim in (HEADS, "ffn"):
        if dims.get(dim, tp) % tp:
            yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", f"{dim} {dims[dim]} does not divide by tp {tp}")
    kv = dims.get(KV_HEADS, tp)
    if kv % tp and tp % kv:
        given = f"{kv} key/value heads neither divide by tp {tp} nor can be copied evenly to its ranks"
        yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", given)


def _restriction_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    search, axes = request.search, plan.axes
    assert axes is not None
    for name, value, allowed in (("tp", axes.tp, search.tp), ("pp", axes.pp, search.pp)):
        if allowed and value not in allowed:
            yield Violation(Rule.SEARCH, f"plan.axes.{name}", f"{value}, the request allows {allowed}")
    trains_only = search.launcher not in (*_SERVERS, Launcher.MEGATRON_LM)
    if search.space is Space.LAUNCHABLE and trains_only:
        # Megatron-LM is the default of a request that names no launcher.
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{search.launcher.value} does not serve")


def _share(plan: Plan, request: PlanRequest) -> Share:
    """Heads, ffn and vocab split over tp wherever an operator has them, as serving engines do."""
    assert plan.axes is not None
    strategies = {}
    for block in request.model.blocks:
        for operator in block.operators:
            dims = [dim for dim in _SPLIT_DIMS if dim in operator.dims]
            strategies[block.name, operator.name] = dims[0] if dims else REPLICATE
    return Share(plan.axes.tp, strategies, {**request.model.dims, BATCH: 1, SEQ: 1})


def _weight_violations(plan: Plan, request: PlanRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """At least every parameter in the workload's format; at most all in bf16, as quantised models keep norms and
    embeddings in it."""
    share = _share(plan, request)
    owned = sum(span.count * owned_parameters(request.model.block(span.block), share).total for span in stage.blocks)
    copies = tied_copies(request, stage, share)
    least = (owned + copies[0]) * request.workload.precision.size_bytes
    most = (owned + copies[1]) * max(2.0, request.workload.precision.size_bytes)
    if not (at_most(least, stage.memory.weights_bytes) and at_most(stage.memory.weights_bytes, most)):
        given = f"{stage.memory.weights_bytes} bytes claimed, {owned} parameters take {least} to {most}"
        yield Violation(Rule.WEIGHTS, f"{where}.memory", given)


def _kv_violations(plan: Plan, request: PlanRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """The cache holds one whole request, and the mean batch at its mean length (prompt and half the output)."""
    workload, layout = request.workload, plan.serving
    assert isinstance(workload, ServingWorkload) and layout is not None
    prompt, output = _mean_lengths(workload)
    tokens = max(prompt + output, layout.mean_batch * (prompt + output / 2))
    needed = tokens * _kv_bytes_per_token(plan, request, stage)
    if not at_most(needed, stage.memory.kv_cache_bytes):
        given = f"{stage.memory.kv_cache_bytes} bytes claimed; {tokens:.0f} tokens at once take {needed}"
        yield Violation(Rule.KV_CACHE, f"{where}.memory", given)


def _kv_bytes_per_token(plan: Plan, request: PlanRequest, stage: Stage) -> float:
    """Keys and values of one token in all attention operators of the stage, on one rank."""
    workload = request.workload
    assert isinstance(workload, ServingWorkload)
    dtype = workload.precision if workload.kv_dtype is None else workload.kv_dtype
    share = _share(plan, request)
    elements = 0
    for span in stage.blocks:
        for operator in request.model.block(span.block).operators:
            # A sliding window bounds the cache of its layer, so such layers are left out of this lower bound.
            if operator.kind is OperatorKind.ATTENTION and operator.window is None:
                sizes = share.local(span.block, operator)
                elements += span.count * sum(tensor.elements(sizes) for tensor in operator.inputs[1:])
    return elements * dtype.size_bytes


def _mean_lengths(workload: ServingWorkload) -> tuple[float, float]:
    """Mean prompt and output in tokens."""
    if isinstance(workload.arrivals, TraceArrivals):
        return fmean(workload.arrivals.prompt_tokens), fmean(workload.arrivals.output_tokens)
    assert workload.prompt_tokens is not None and workload.output_tokens is not None
    return _mean(workload.prompt_tokens), _mean(workload.output_tokens)


def _mean(length: Length) -> float:
    match length:
        case FixedLength():
            return float(length.fixed)
        case EmpiricalLength():
            return fmean(length.empirical)
        case LognormalLength():
            return length.mean


def _load_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    layout, predicted, slo = plan.serving, plan.predicted, request.slo
    assert layout is not None and predicted is not None
    assert isinstance(request.workload, ServingWorkload)
    # Clients of a closed loop wait for answers, so they may keep an engine full.
    may_be_full = isinstance(request.workload.arrivals, ClosedArrivals)
    if not (0.0 <= layout.utilisation < 1.0 or (may_be_full and layout.utilisation == 1.0)):
        given = f"{layout.utilisation}, a stable queue is below 1"
        yield Violation(Rule.UTILISATION, "plan.serving.utilisation", given)
    if layout.mean_batch > layout.max_num_seqs:
        given = f"{layout.mean_batch} requests at once, max_num_seqs is {layout.max_num_seqs}"
        yield Violation(Rule.UTILISATION, "plan.serving.mean_batch", given)
    for name, value, limit_ms in (
        ("ttft_p95_s", predicted.ttft_p95_s, slo.p95_ttft_ms),
        ("tpot_p95_s", predicted.tpot_p95_s, slo.p95_tpot_ms),
    ):
        assert value is not None, "answer_violations asks for both percentiles"
        if limit_ms is not None and not at_most(value * 1e3, limit_ms):
            yield Violation(Rule.SLO, f"plan.predicted.{name}", f"{value * 1e3} ms, the SLO allows {limit_ms} ms")
