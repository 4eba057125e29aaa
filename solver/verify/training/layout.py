"""Layers on stages, stages on devices, degrees of the axes, and the batch."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules.layers import layer_violations
from meshwright.solver.verify.training.branches import branch_violations
from meshwright.solver.verify.training.choice_rules import order_in_words, ranks_in_order, stage_choice_violations
from meshwright.solver.verify.training.experts import expert_axis_violations
from meshwright.solver.verify.training.mixers import sequence_violations
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
