"""Layers on stages, stages on devices, degrees of the axes, and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import GroupOrder
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.verify.rules import ModelSplit, layer_violations
from meshwright.solver.verify.training.choice_rules import (
    gathered_keys_violations,
    order_in_words,
    ranks_in_order,
    stage_choice_violations,
)
from meshwright.solver.verify.training.mixers import expert_axis_violations, sequence_violations
from meshwright.solver.verify.training.schedule import schedule_violations
from meshwright.solver.verify.violation import Rule, Violation

MAX_ZERO_STAGE = 3


def layout_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Rules of a training plan that need nothing but its shape."""
    if not request.model.is_chain:
        yield from branch_violations(plan, request)
    elif any(stage.chunk_layers for stage in plan.stages):
        yield from _name_violations(plan, request)
    else:
        yield from layer_violations(plan.stages, request)
    yield from _axis_violations(plan)
    yield from expert_axis_violations(plan, request)
    yield from _exchange_violations(plan, request)
    yield from gathered_keys_violations(plan, request)
    yield from schedule_violations(plan, request)
    yield from _device_violations(plan, request)
    yield from _batch_violations(plan, request)
    for index, stage in enumerate(plan.stages):
        if stage.shard_ranks is not None:
            yield from _hybrid_violations(plan, index)
        yield from stage_choice_violations(plan, request, index)
        if stage.zero_stage > MAX_ZERO_STAGE:
            given = f"ZeRO stage {stage.zero_stage}, allowed: 0 to {MAX_ZERO_STAGE}"
            yield Violation(Rule.ZERO, f"plan.stages[{index}].zero_stage", given)


def _hybrid_violations(plan: PipelinePlan, index: int) -> Iterator[Violation]:
    """Sharding within a part of dp x cp is ZeRO's, in equal parts, the ranks of a sequence together, experts not spread."""
    stage, axes = plan.stages[index], plan.axes
    assert stage.shard_ranks is not None
    ranks, where = axes.dp * axes.cp, f"plan.stages[{index}].shard_ranks"
    if stage.zero_stage == 0 or axes.ep > 1 or axes.etp is not None:
        yield Violation(Rule.ZERO, where, f"ZeRO-{stage.zero_stage} and ep {axes.ep}; it goes with ZeRO 1 to 3 and ep 1")
    if not 1 < stage.shard_ranks < ranks or ranks % stage.shard_ranks or stage.shard_ranks % axes.cp:
        given = f"{stage.shard_ranks}, no divisor of dp x cp = {ranks} between, or no multiple of cp {axes.cp}"
        yield Violation(Rule.ZERO, where, given)


def _name_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Layers stand under their own block's name, and model chunks account for all layers of their stage."""
    layers = request.model.layers
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        held = sum(span.count for span in stage.blocks)
        if sum(stage.chunk_layers) != held or min(stage.chunk_layers, default=0) < 1:
            yield Violation(Rule.LAYERS, where, f"chunks of {stage.chunk_layers} layers, the stage lists {held}")
        for span in stage.blocks:
            if any(name != span.block for name in layers[span.first : span.first + span.count]):
                yield Violation(Rule.LAYERS, where, f"not all of its layers are copies of block {span.block!r}")


def _axis_violations(plan: PipelinePlan) -> Iterator[Violation]:
    axes = plan.axes
    if min(axes.dp, axes.tp, axes.pp, axes.cp, axes.ep, axes.ulysses) < 1:
        yield Violation(Rule.AXES, "plan.axes", f"{axes}: every degree is at least 1")
    if len(plan.stages) != axes.pp:
        yield Violation(Rule.STAGES, "plan.stages", f"{len(plan.stages)} stages, pp is {axes.pp}")
    for index, stage in enumerate(plan.stages):
        if stage.axes != axes:
            yield Violation(Rule.AXES, f"plan.stages[{index}].axes", f"{stage.axes}, the plan has {axes}")


def _exchange_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Ranks of a sequence that exchange tokens for heads hold equal whole numbers of both kinds of heads, of attention within
    one sequence whose keys are as wide as its values."""
    axes = plan.axes
    if axes.ulysses <= 1:
        return
    where, parts = "plan.axes.ulysses", axes.tp * axes.ulysses
    if axes.cp % axes.ulysses:
        yield Violation(Rule.AXES, where, f"{axes.ulysses} does not divide cp {axes.cp}")
    for name in dict.fromkeys(request.model.layers):
        for operator in request.model.block(name).operators:
            if operator.kind is not OperatorKind.ATTENTION:
                continue
            named = f"{where} ({name}/{operator.name})"
            for tensor in operator.inputs:
                counts = [request.model.dims[dim] for dim in tensor.dims if dim in (HEADS, KV_HEADS)]
                if not counts or counts[0] % parts:
                    yield Violation(Rule.DIVISIBILITY, named, f"{counts} heads of {tensor.name!r} over tp x ulysses = {parts}")
                if SEQ not in tensor.dims:
                    yield Violation(Rule.SEQUENCE, named, f"{tensor.name!r} is of another sequence")
            key_width, value_width = (request.model.dims[tensor.dims[-1]] for tensor in operator.inputs[1:])
            if key_width != value_width:
                yield Violation(Rule.SEQUENCE, named, f"keys {key_width} wide, values {value_width}")


def _device_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Each stage holds the ranks that are its own in the plan's order, so none serves two stages."""
    n_cluster = request.cluster.n_devices
    used: set[int] = set()
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}].devices"
        ranks = stage_ranks(stage)
        needed = stage.axes.dp * stage.axes.tp * stage.axes.cp
        if len(ranks) != needed:
            yield Violation(Rule.DEVICES, where, f"{len(ranks)} devices, dp x tp x cp is {needed}")
        if ranks and max(ranks) >= n_cluster:
            yield Violation(Rule.DEVICES, where, f"rank {max(ranks)}, the cluster has ranks 0 to {n_cluster - 1}")
        expected = ranks_in_order(plan, index)
        if sorted(ranks) != expected:
            given = f"should be ranks {expected[0]} to {expected[-1]}" if expected else "should be none"
            yield Violation(Rule.DEVICES, where, f"{given}, {order_in_words(plan)}")
        used |= set(ranks)
    if plan.devices != len(used):
        yield Violation(Rule.DEVICES, "plan.devices", f"{plan.devices}, the stages hold {len(used)} devices")


def stage_ranks(stage: Stage) -> list[int]:
    """Ranks of a stage as its device ranges list them."""
    return [rank for devices in stage.devices for rank in range(devices.first, devices.first + devices.count)]


def _batch_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    axes, microbatch, workload = plan.axes, plan.microbatch, request.workload
    sequences = axes.dp * microbatch.size * microbatch.count
    if sequences != workload.global_batch:
        given = f"dp x size x count is {sequences} sequences a step, the request asks for {workload.global_batch}"
        yield Violation(Rule.BATCH, "plan.microbatch", given)
    yield from sequence_violations(plan, request)


# Models that branch, checked from the graph alone: what must run before what, and which tensors a stage holds besides.
#
# A layer reads the tensor that its run continues, and by name those of other runs that have an edge to its own.


def branch_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Every layer once under its own block's name, and none on an earlier stage than a layer that it reads from."""
    layers = request.model.layers
    stage_of: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        if not sum(span.count for span in stage.blocks):
            yield Violation(Rule.LAYERS, where, "holds no layer")
        for span in stage.blocks:
            for layer in range(span.first, span.first + span.count):
                if layer >= len(layers) or layers[layer] != span.block:
                    yield Violation(Rule.LAYERS, where, f"layer {layer} is no copy of block {span.block!r}")
                elif layer in stage_of:
                    yield Violation(Rule.LAYERS, where, f"layer {layer} is on stage {stage_of[layer]} already")
                stage_of[layer] = index
    missing = sorted(set(range(len(layers))) - set(stage_of))
    if missing:
        yield Violation(Rule.LAYERS, "plan.stages", f"they leave out layers {missing}")
        return
    for before, after in _dependencies(request.model):
        if stage_of[before] > stage_of[after]:
            given = f"layer {after} on stage {stage_of[after]} reads layer {before} on stage {stage_of[before]}"
            yield Violation(Rule.LAYERS, "plan.stages", given)


def side_bytes(stage: Stage, request: TrainingRequest, share: ModelSplit, *, split: int) -> float:
    """Bytes kept for one micro-batch of tensors that layers of a stage read besides the stream they continue: each once.

    They lie as the residual stream between blocks does, split over ``split`` ranks of the tp axis.
    """
    model, dtype = request.model, request.workload.precision
    here = {span.block for span in stage.blocks}
    held: dict[int, float] = {}
    for source, target in model.edges:
        name = model.block(model.chain[source].block).output
        if model.chain[target].block in here and name in _read_names(model, target):
            held[source] = _tensor_bytes(model, target, name, share, dtype)
    return sum(held.values()) / split


def _read_names(model: ModelGraph, run: int) -> set[str]:
    """Names of tensors that a run reads by name besides its stream; none where it reads one tensor only."""
    block = model.block(model.chain[run].block)
    written = {tensor.name for operator in block.operators for tensor in operator.outputs}
    read = {tensor.name for operator in block.operators for tensor in operator.inputs} - written
    return read if len(read) > 1 else set()


def _tensor_bytes(model: ModelGraph, run: int, name: str, share: ModelSplit, dtype: DType) -> float:
    block = model.block(model.chain[run].block)
    tensor = next(t for operator in block.operators for t in operator.inputs if t.name == name)
    return tensor.elements(share.sizes) * dtype.size_bytes


def _dependencies(model: ModelGraph) -> Iterator[tuple[int, int]]:
    """(earlier, later) layers: neighbours in a run, and over an edge the earlier run's last and the later one's first."""
    ends: list[tuple[int, int]] = []
    count = 0
    for run in model.chain:
        ends.append((count, count + run.repeat - 1))
        count += run.repeat
    for first, last in ends:
        yield from ((layer, layer + 1) for layer in range(first, last))
    yield from ((ends[source][1], ends[target][0]) for source, target in model.edges)


# Where a plan's ranks lie: the order in which they go through the node groups, and which devices have none.


def order_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Every group with ranks once; another order than the cluster's, and idle devices, only in training plans whose search may
    choose them."""
    groups = {group.name: group for group in request.cluster.groups}
    placement = placement_of(plan)
    for name, idle in placement.idle_devices.items():
        where = f"plan.idle_devices.{name}"
        if name not in groups or not 1 <= idle <= groups[name].node.devices_per_node:
            yield Violation(Rule.DEVICES, where, f"{idle} devices of each node, which the cluster does not have")
            return
        if name not in request.search.idle_groups:
            yield Violation(Rule.SEARCH, where, f"{idle}, the request lets none be idle there")
    own = [name for name, group in groups.items() if _ranks_of_a_node(plan, group)]
    if not own:
        yield Violation(Rule.DEVICES, "plan.idle_devices", "no device is left")
    if not placement.group_order:
        return
    if sorted(placement.group_order) != sorted(own):
        yield Violation(Rule.DEVICES, "plan.group_order", f"{placement.group_order}, the groups in use are {own}")
    elif request.search.group_order is GroupOrder.GIVEN and list(placement.group_order) != own:
        yield Violation(Rule.SEARCH, "plan.group_order", f"{placement.group_order}, the request asks for {own}")


def ordered_request(plan: Plan, request: TrainingRequest) -> TrainingRequest:
    """The request with its groups as the plan's ranks meet them, idle devices left out with their share of the network."""
    places = {name: place for place, name in enumerate(placement_of(plan).group_order)}
    used = [_in_use(plan, group) for group in request.cluster.groups if _ranks_of_a_node(plan, group)]
    groups = sorted(used, key=lambda group: places.get(group.name, 0))
    return replace(request, cluster=replace(request.cluster, groups=tuple(groups)))


def _ranks_of_a_node(plan: Plan, group: NodeGroup) -> int:
    return group.node.devices_per_node - placement_of(plan).idle_devices.get(group.name, 0)


def _in_use(plan: Plan, group: NodeGroup) -> NodeGroup:
    left, whole = _ranks_of_a_node(plan, group), group.node.devices_per_node
    if left == whole:
        return group
    network = replace(group.node.inter, bytes_per_s=group.node.inter.bytes_per_s * left / whole)
    host = group.node.devices_per_host
    hosts = None if host is None else min(host, left)
    return replace(group, node=replace(group.node, devices_per_node=left, devices_per_host=hosts, inter=network))
