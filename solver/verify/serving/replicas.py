"""Rules of a serving plan: layers, replicas, divisibility, memory, load and latency targets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

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
    VOCAB,
)
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.costmodels.units import DType
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import Launcher, ServingMode, Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals
from meshwright.solver.verify.launchers import ENGINES, SERVERS
from meshwright.solver.verify.numbers import at_most
from meshwright.solver.verify.serving.power import power_violations
from meshwright.solver.verify.serving.speculation import draft_bytes, proposed_tokens, speculation_violations
from meshwright.solver.verify.training.experts import picked_dims
from meshwright.solver.verify.training.layout import devices_by_group, layer_violations
from meshwright.solver.verify.training.memory import capacity_violations, peak_violations
from meshwright.solver.verify.training.sharding import REPLICATE
from meshwright.solver.verify.training.stage_bytes import Share, owned_parameters, tied_copies
from meshwright.solver.verify.training.times import band_violations, cost_violations
from meshwright.solver.verify.violation import Rule, Violation

_ORDERED = (OperatorKind.SCAN, OperatorKind.CONVOLUTION)
_SPLIT_DIMS = (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER, VOCAB)


def pool_shape_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Layers, devices and degrees of a plan's replicas."""
    yield from layer_violations(plan, request)
    yield from _device_violations(plan, request)
    yield from _division_violations(plan, request)


def pool_memory_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Restrictions of the search, and memory of a plan's replicas."""
    yield from _restriction_violations(plan, request)
    for index, stage in enumerate(plan.stages):
        yield from _weight_violations(plan, request, stage, f"plan.stages[{index}]")
        yield from _kv_violations(plan, request, stage, f"plan.stages[{index}]")
        yield from capacity_violations(request, stage, f"plan.stages[{index}]")


def aggregated_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a serving plan whose workers do both phases."""
    shape = (*_shared_worker_violations(plan, request), *pool_shape_violations(plan, request))
    yield from shape
    if shape:
        return
    if ServingMode.AGGREGATED not in request.search.modes:
        yield Violation(Rule.SEARCH, "plan.prefill", "missing, the request allows disaggregated plans only")
    yield from speculation_violations(plan, request)
    yield from pool_memory_violations(plan, request)
    yield from peak_violations(plan)
    yield from load_violations(plan, request)
    yield from cost_violations(plan, request)
    yield from power_violations(plan, request)
    yield from band_violations(plan)


def stage_ranks(axes: Axes) -> int:
    """Ranks of a pipeline stage."""
    return axes.tp * axes.kvp * axes.cp * axes.attention_dp


def whole_prompt_violations(plan: Plan) -> Iterator[Violation]:
    """Workers that only decode do not share the tokens of prompts."""
    if plan.axes is not None and plan.axes.cp != 1:
        given = f"{plan.axes.cp}; only workers that compute prompts share their tokens"
        yield Violation(Rule.AXES, "plan.axes.cp", given)


def shared_prompt_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """SGLang's prefill context parallelism (--enable-prefill-cp): inside a node, of attention without recurrent states, caches
    whole on every rank."""
    axes = plan.axes
    assert axes is not None
    if axes.cp == 1:
        return
    if not ENGINES[request.search.engine].shares_prompts:
        given = f"{axes.cp}; of {request.search.engine.value} no worker shares the tokens of a prompt"
        yield Violation(Rule.LAUNCHER, "plan.axes.cp", given)
    states = [b.name for b in request.model.blocks if any(o.kind in _ORDERED for o in b.operators)]
    if states or axes.kvp > 1 or axes.pp > 1:
        given = f"{axes}: neither recurrent states ({', '.join(states) or 'none'}) nor kvp or pp go with it"
        yield Violation(Rule.AXES, "plan.axes.cp", given)
    devices = (d for stage in plan.stages for d in stage.devices)
    smallest = min((g.node.devices_per_node for g, _ in devices_by_group(request.cluster, devices)), default=0)
    if stage_ranks(axes) > smallest:
        yield Violation(Rule.DEVICES, "plan.axes.cp", f"{stage_ranks(axes)} ranks of a stage, a node has {smallest} devices")


def _shared_worker_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Workers that do both phases share prompts where the request names the degree, and draft no tokens."""
    axes, workload = plan.axes, request.workload
    assert axes is not None
    yield from shared_prompt_violations(plan, request)
    if axes.cp > 1 and axes.cp not in request.search.cp:
        given = f"{axes.cp}, the request allows {request.search.cp or (1,)} of workers that do both phases"
        yield Violation(Rule.SEARCH, "plan.axes.cp", given)
    if axes.cp > 1 and workload.speculation is not None:
        yield Violation(Rule.AXES, "plan.axes.cp", f"{axes.cp}; tokens are drafted without ranks that share prompts only")


def _device_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Replicas of pp stages of ranks. A stage lists its devices in every replica, or in the first."""
    axes, layout = plan.axes, plan.serving
    assert axes is not None and layout is not None
    ranks = stage_ranks(axes)
    needed = layout.replicas * ranks * axes.pp
    least = min(layout.replicas, axes.tp, axes.kvp, axes.cp, axes.attention_dp, axes.ep, axes.pp)
    if least < 1 or axes.dp not in (1, layout.replicas):
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, replicas {layout.replicas}: every degree is at least 1")
    if plan.devices != needed:
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, replicas x ranks of a stage x pp is {needed}")
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
        if listed not in (ranks, ranks * layout.replicas):
            given = f"{listed} devices; a stage has {ranks} in one replica, {ranks * layout.replicas} in all"
            yield Violation(Rule.DEVICES, where, given)
        if inside != listed:
            yield Violation(Rule.DEVICES, where, f"the cluster has ranks 0 to {request.cluster.n_devices - 1}")
        if replace(stage.axes, dp=axes.dp) != axes:
            yield Violation(Rule.AXES, f"plan.stages[{index}].axes", f"{stage.axes}, the plan has {axes}")


def _division_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Heads, columns and experts divide evenly; few key/value heads are copied; the vocabulary is padded."""
    axes, dims = plan.axes, request.model.dims
    assert axes is not None
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
        yield from _expert_division_violations(plan, request, ranks)


def _expert_division_violations(plan: Plan, request: ServingRequest, ranks: int) -> Iterator[Violation]:
    axes, dims, workload = plan.axes, request.model.dims, request.workload
    assert axes is not None
    slots, split = dims[EXPERTS] + workload.experts.redundant_experts, ranks // axes.ep
    if slots % axes.ep:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"{slots} experts and copies do not divide by ep {axes.ep}")
    width = dims.get(EXPERT_FFN, split)
    # Block fp8 checkpoints scale 128 columns together: a rank holds whole blocks.
    unit = split * (128 if workload.weight_format is WeightFormat.FP8_BLOCK else 1)
    if width % unit:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"experts of width {width} do not divide into units of {unit}")


def _restriction_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    search, axes = request.search, plan.axes
    assert axes is not None
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
        yield from _kvp_violations(plan, request)
    trains_only = search.launcher not in (*SERVERS, Launcher.MEGATRON_LM)
    if search.space is Space.LAUNCHABLE and trains_only:
        # Megatron-LM is the default of a request that names no launcher.
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{search.launcher.value} does not serve")


def _kvp_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """vLLM, decode context parallelism: the tensor-parallel ranks outnumber the key/value heads kvp times over."""
    axes = plan.axes
    assert axes is not None
    heads = _cached_heads(request)
    engine = request.search.engine
    if not ENGINES[engine].splits_caches:
        yield Violation(Rule.LAUNCHER, "plan.axes.kvp", f"{axes.kvp}; {engine.value} does not split a cache along the sequence")
    if axes.tp < heads:
        given = f"{axes.kvp} at tp {axes.tp}: the {heads} key/value heads are split first"
        yield Violation(Rule.DIVISIBILITY, "plan.axes.kvp", given)


def _cached_heads(request: ServingRequest) -> int:
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


@dataclass(frozen=True, slots=True)
class _ServingShare(Share):
    """Experts whole on ep groups of ranks, each split inside its group; copies of hot ones beside them."""

    expert_tp: int = 1
    copies: int = 0

    def local(self, block: str, operator: Operator) -> dict[str, int]:
        """Sizes of dims on one rank."""
        if not picked_dims(operator):
            return Share.local(self, block, operator)
        sizes = dict(self.sizes)
        sizes[EXPERTS] = (sizes[EXPERTS] + self.copies) // self.ep
        if EXPERT_FFN in sizes:
            sizes[EXPERT_FFN] //= self.expert_tp
        return sizes


def serving_share(plan: Plan, request: ServingRequest) -> Share:
    """Every operator split over tp x kvp by the first dim that engines split."""
    axes, workload = plan.axes, request.workload
    assert axes is not None
    strategies = {}
    for block in request.model.blocks:
        for operator in block.operators:
            dims = [dim for dim in _SPLIT_DIMS if dim in operator.dims]
            strategies[block.name, operator.name] = dims[0] if dims else REPLICATE
    return _ServingShare(
        tp=axes.tp * axes.kvp,
        strategies=strategies,
        sizes={**request.model.dims, BATCH: 1, SEQ: 1},
        ep=axes.ep,
        expert_tp=stage_ranks(axes) // axes.ep,
        copies=workload.experts.redundant_experts,
    )


def _weight_violations(plan: Plan, request: ServingRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """At least every parameter in the narrow format; at most all in 16 bits, as quantised models keep norms and embeddings
    in it. The draft's own memory comes to both."""
    share = serving_share(plan, request)
    owned = sum(span.count * owned_parameters(request.model.block(span.block), share).total for span in stage.blocks)
    copies = tied_copies(request, stage, share)
    draft = draft_bytes(request)
    least = (owned + copies[0]) * request.workload.weight_format.size_bytes + draft
    most = (owned + copies[1]) * 2.0 + draft
    if not (at_most(least, stage.memory.weights_bytes) and at_most(stage.memory.weights_bytes, most)):
        given = f"{stage.memory.weights_bytes} bytes claimed, {owned} parameters take {least} to {most}"
        yield Violation(Rule.WEIGHTS, f"{where}.memory", given)


def _kv_violations(plan: Plan, request: ServingRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """The cache holds one whole request, and the mean batch at its mean length (prompt and half the output), with
    the proposals of every sequence; of what all prompts begin with it holds one copy."""
    workload, layout = request.workload, plan.serving
    assert layout is not None
    prompt, output = mean_lengths(workload)
    system = 0 if workload.prefix_cache is None else workload.prefix_cache.system_tokens
    batch = system + layout.mean_batch * (max(prompt - system, 0.0) + output / 2)
    tokens = max(prompt + output, batch) + proposed_tokens(plan, request)
    needed = tokens * kv_bytes_per_token(plan, request, stage)
    if not at_most(needed, stage.memory.kv_cache_bytes):
        given = f"{stage.memory.kv_cache_bytes} bytes claimed; {tokens:.0f} tokens at once take {needed}"
        yield Violation(Rule.KV_CACHE, f"{where}.memory", given)


def kv_bytes_per_token(plan: Plan, request: ServingRequest, stage: Stage) -> float:
    """Keys and values of one token in all attention operators of the stage, on one rank."""
    workload = request.workload
    axes = plan.axes
    assert axes is not None
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


def mean_lengths(workload: ServingWorkload) -> tuple[float, float]:
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


def load_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Load below what the workers keep up with, and percentiles within the targets."""
    layout, predicted, slo = plan.serving, plan.predicted, request.slo
    assert layout is not None and predicted is not None
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
