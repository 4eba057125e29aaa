"""Memory of each stage: what the plan claims against what the graph says.

Weights, gradients, optimizer state and kept activations are exact arithmetic, so they must agree but for rounding.
Transient buffers and the framework's overhead depend on the implementation: transients must not be less than what any
implementation needs (re-made activations of one layer, its whole weights and gradients under ZeRO 2 and 3, the logits of
the loss); overhead may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodels.operators import OperatorKind
from solver.plan import LayerSpan, Plan, Stage
from solver.request import Gradients, PlanRequest, Recompute, Space, TrainingWorkload
from solver.verify.branches import side_bytes
from solver.verify.bytes import (
    Share,
    StateBytes,
    entry_bytes,
    kept_bytes,
    loss_bytes,
    owned_parameters,
    state_bytes,
    tied_copies,
    training_share,
    updated_by,
)
from solver.verify.layout import devices_by_group
from solver.verify.numbers import agrees, at_most
from solver.verify.schedule import chunks, held_at_most
from solver.verify.violation import Rule, Violation


def memory_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """In-flight micro-batches, memory by kind, capacity, and the plan's peak."""
    assert plan.axes is not None and plan.microbatch is not None and plan.predicted is not None
    share = training_share(plan, request)
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        yield from _state_violations(plan, request, stage, share, where)
        yield from _activation_violations(plan, request, index, share)
        yield from capacity_violations(request, stage, where)
        yield from _host_violations(plan, request, index, share)
    yield from peak_violations(plan)


def _host_violations(plan: Plan, request: PlanRequest, index: int, share: Share) -> Iterator[Violation]:
    """What is said to lie on the host is what was moved there, and hosts have room for all of their devices."""
    stage, where = plan.stages[index], f"plan.stages[{index}].memory.host_bytes"
    moved, claimed = stage.offload, stage.memory.host_bytes
    everything = replace(stage, offload=replace(moved, optimizer=0.0, activations=0.0))
    expected = 0.0
    if moved.optimizer:
        beside = stage.memory.optimizer_bytes * moved.optimizer / (1.0 - moved.optimizer) if moved.optimizer < 1.0 else None
        expected += _whole_optimizer_bytes(plan, request, stage, share)[1] * moved.optimizer if beside is None else beside
    if moved.activations:
        options = []
        for split in _residual_splits(plan, request):
            kept, _ = _layer_activations(request, everything, share, split)
            left, _ = _layer_activations(request, stage, share, split)
            gone = [sum(kept[layer] - left[layer] for layer in chunk) for chunk in chunks(stage)]
            options.append(expected + held_at_most(plan, index, gone)[1])
        expected = min(options, key=lambda value: abs(value - claimed))
    if not agrees(claimed, expected):
        yield Violation(Rule.HOST_MEMORY, where, f"{claimed} bytes claimed, what was moved there is {expected}")
    for group, _ in devices_by_group(request.cluster, stage.devices):
        room = group.node.host_memory_bytes / group.node.devices_per_node
        if not at_most(claimed, room):
            given = f"{claimed} bytes of each device, a device's share of its host is {room}"
            yield Violation(Rule.HOST_MEMORY, where, given)


def _whole_optimizer_bytes(plan: Plan, request: PlanRequest, stage: Stage, share: Share) -> tuple[float, float]:
    """Least and most bytes of optimizer states of a stage's layers wherever they lie (`tied_copies`)."""
    least = most = 0.0
    for span in stage.blocks:
        block = request.model.block(span.block)
        shared, experts = _states(plan, request, stage, updated_by(plan, request, block))
        owned = owned_parameters(block, share)
        here = span.count * (owned.shared * shared.optimizer + owned.experts * experts.optimizer)
        least, most = least + here, most + here
    # What is tied across stages are embeddings and heads.
    fewest, copies = tied_copies(request, stage, share)
    ends = "adamw" if _optimizer(plan, request) == "muon" else _optimizer(plan, request)
    of_copies, _ = _states(plan, request, stage, ends)
    return least + fewest * of_copies.optimizer, most + copies * of_copies.optimizer


def _optimizer(plan: Plan, request: PlanRequest) -> str:
    assert isinstance(request.workload, TrainingWorkload)
    return (plan.optimizer or request.workload.optimizer).value


def capacity_violations(request: PlanRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """What may be used is what the smallest device of the stage has beside the reserve, and the stage keeps to it."""
    memory = stage.memory
    groups = devices_by_group(request.cluster, stage.devices)
    smallest = min(group.node.device.memory_bytes for group, _ in groups)
    usable = smallest * (1.0 - request.cluster.memory_reserve)
    if not agrees(memory.capacity_bytes, usable):
        given = f"{memory.capacity_bytes}, usable are {usable}"
        yield Violation(Rule.CAPACITY, f"{where}.memory.capacity_bytes", given)
    if not at_most(memory.total_bytes, usable):
        yield Violation(Rule.CAPACITY, f"{where}.memory", f"{memory.total_bytes} bytes needed, {usable} usable")


def peak_violations(plan: Plan) -> Iterator[Violation]:
    """The predicted peak is that of the fullest stage."""
    assert plan.predicted is not None
    pools = plan.stages if plan.prefill is None else (*plan.stages, *plan.prefill.stages)
    peak = max(stage.memory.total_bytes for stage in pools)
    if not agrees(plan.predicted.peak_memory_bytes, peak):
        given = f"{plan.predicted.peak_memory_bytes}, the fullest stage has {peak}"
        yield Violation(Rule.PEAK_MEMORY, "plan.predicted.peak_memory_bytes", given)


def _states(plan: Plan, request: PlanRequest, stage: Stage, optimizer: str) -> tuple[StateBytes, StateBytes]:
    """Bytes a parameter takes: of those that dp x cp ranks share, and of experts, which dp x cp / ep ranks share."""
    assert plan.axes is not None and isinstance(request.workload, TrainingWorkload)
    ranks = plan.axes.dp * plan.axes.cp
    shared = state_bytes(request.workload, optimizer, zero_stage=stage.zero_stage, shards=stage.shard_ranks or ranks)
    return shared, state_bytes(request.workload, optimizer, zero_stage=stage.zero_stage, shards=ranks // plan.axes.ep)


def _state_violations(plan: Plan, request: PlanRequest, stage: Stage, share: Share, where: str) -> Iterator[Violation]:
    (shared, experts), memory = _states(plan, request, stage, _optimizer(plan, request)), stage.memory
    owned = [(span.count, owned_parameters(request.model.block(span.block), share)) for span in stage.blocks]
    of_experts = sum(count * block.experts for count, block in owned)
    parameters = [sum(count * block.shared for count, block in owned) + copies for copies in tied_copies(request, stage, share)]
    passing = stage.gradients is Gradients.RELEASED
    ranges = [
        (rule, claimed, [number * each + of_experts * each_of_experts for number in parameters])
        for rule, claimed, each, each_of_experts in (
            (Rule.WEIGHTS, memory.weights_bytes, shared.weights, experts.weights),
            (Rule.GRADIENTS, memory.gradients_bytes, shared.gradients, experts.gradients),
        )
        if not (passing and rule is Rule.GRADIENTS)
    ]
    if passing:
        ranges.append((Rule.GRADIENTS, memory.gradients_bytes, _waiting_gradients(plan, request, stage, share)))
    stays = 1.0 - stage.offload.optimizer
    states = [stays * held for held in _whole_optimizer_bytes(plan, request, stage, share)]
    for rule, claimed, (least, most) in (*ranges, (Rule.OPTIMIZER, memory.optimizer_bytes, states)):
        if not (at_most(least, claimed) and at_most(claimed, most)):
            given = f"{claimed} bytes claimed, {parameters[0] + of_experts} parameters make {least}"
            yield Violation(rule, f"{where}.memory", given)


def _waiting_gradients(plan: Plan, request: PlanRequest, stage: Stage, share: Share) -> list[float]:
    """Least and most bytes of gradients that can't be released: those of weights with several uses, with what lies beside them
    in the block that owns them; and those of copies."""
    shared, experts = _states(plan, request, stage, _optimizer(plan, request))
    blocks = _blocks_with_ties(request)
    held = 0.0
    for span in stage.blocks:
        if span.block in blocks:
            owned = owned_parameters(request.model.block(span.block), share)
            held += span.count * (owned.shared * shared.gradients + owned.experts * experts.gradients)
    return [held + copies * shared.gradients for copies in tied_copies(request, stage, share)]


def _blocks_with_ties(request: PlanRequest) -> set[str]:
    ties = [(block, weight.tied_to or "") for block, _, weight in request.model.tied_weights()]
    return {name for block, owner in ties for name in (block, owner.split("/")[0])}


def _activation_violations(plan: Plan, request: PlanRequest, index: int, share: Share) -> Iterator[Violation]:
    stage, where = plan.stages[index], f"plan.stages[{index}]"
    memory = stage.memory
    splits = _residual_splits(plan, request)
    of_layers = [_layer_activations(request, stage, share, split) for split in splits]
    if request.model.is_chain:
        parts = [[sum(kept[layer] for layer in chunk) for chunk in chunks(stage)] for kept, _ in of_layers]
    else:
        parts = [
            [sum(kept.values()) + side_bytes(stage, request, share, split=split)]
            for (kept, _), split in zip(of_layers, splits, strict=True)
        ]
    held = [held_at_most(plan, index, of_parts) for of_parts in parts]
    in_flight = held[0][0]
    if not agrees(stage.in_flight, in_flight):
        given = f"{stage.in_flight} micro-batches in flight, {plan.schedule} holds {in_flight}"
        yield Violation(Rule.IN_FLIGHT, where, given)
    if not any(agrees(memory.activations_bytes, value) for _, value in held):
        given = f"{memory.activations_bytes} bytes claimed, what {in_flight} micro-batches save is {held[0][1]}"
        yield Violation(Rule.ACTIVATIONS, f"{where}.memory", given)
    needed = max(
        min(remade for _, remade in of_layers),
        *(_transient_state(plan, request, stage, share, span) for span in stage.blocks),
        *(loss_bytes(request.model.block(span.block), share, request.workload.precision) for span in stage.blocks),
    )
    if not at_most(needed, memory.transient_bytes):
        given = f"{memory.transient_bytes} bytes claimed, one layer at work needs {needed}"
        yield Violation(Rule.TRANSIENT, f"{where}.memory", given)


def _residual_splits(plan: Plan, request: PlanRequest) -> tuple[int, ...]:
    """Over how many tp ranks the residual stream between blocks may lie split. The free space may split its hidden dim,
    which a plan does not say, so there both are possible."""
    assert plan.axes is not None
    if plan.sequence_parallel:
        return (plan.axes.tp,)
    return (1, plan.axes.tp) if request.search.space is Space.FREE else (1,)


def _layer_activations(request: PlanRequest, stage: Stage, share: Share, split: int) -> tuple[dict[int, float], float]:
    """Bytes that each layer of a stage keeps for one micro-batch, and the most that one makes again in its backward pass."""
    dtype = request.workload.precision
    kept: dict[int, float] = {}
    remade = 0.0
    for span in stage.blocks:
        block = request.model.block(span.block)
        entry = entry_bytes(block, share, dtype, split=split)
        layer = kept_bytes(block, share, request, stage.recompute, entry=entry)
        whole = kept_bytes(block, share, request, Recompute.NONE, entry=entry)
        ends = {operator.kind for operator in block.operators} & {OperatorKind.EMBEDDING, OperatorKind.LOSS}
        stays = 1.0 if ends else 1.0 - stage.offload.activations
        kept |= dict.fromkeys(range(span.first, span.first + span.count), stays * layer)
        # What a layer moved is back while its backward pass runs.
        remade = max(remade, whole - stays * layer)
    return kept, remade


def _transient_state(plan: Plan, request: PlanRequest, stage: Stage, share: Share, span: LayerSpan) -> float:
    """Bytes of a layer that ZeRO shards and that must be whole while it runs."""
    workload = request.workload
    assert plan.axes is not None and isinstance(workload, TrainingWorkload)
    if plan.axes.dp * plan.axes.cp == 1 or stage.zero_stage < 2:
        if stage.gradients is Gradients.KEPT or span.block in _blocks_with_ties(request):
            return 0.0
        return owned_parameters(request.model.block(span.block), share).total * workload.gradient_dtype.size_bytes
    whole = workload.gradient_dtype.size_bytes + (workload.precision.size_bytes if stage.zero_stage == 3 else 0.0)
    owned = owned_parameters(request.model.block(span.block), share)
    alone = plan.axes.dp * plan.axes.cp == plan.axes.ep
    return (owned.shared if alone else owned.total) * whole
