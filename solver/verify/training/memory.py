"""Memory of each stage: what the plan claims against what the graph says.

Weights, gradients, optimizer state and kept activations are exact arithmetic, so they must agree but for rounding. Of layers
that no launcher runs, which a request may state, the checker knows the least that they keep.
Transient buffers and the framework's overhead depend on the implementation: transients must not be less than what any
implementation needs (re-made activations of one layer, its whole weights and gradients under ZeRO 2 and 3, the logits of
the loss); overhead may be anything, but for what a head keeps whose weight gradients wait for the pipeline to drain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.dims import BATCH, SEQ, VOCAB
from meshwright.costmodels.model.implementation import Implementation
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.model.operators import OperatorKind, Tensor
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import LayerSpan, Stage, StageMemory
from meshwright.solver.problem.choices import Gradients, Recompute, Space
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.launchers.trainers import TRAINERS
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.documents import adapted_state, adapted_transient_bytes
from meshwright.solver.verify.launchers import Layers
from meshwright.solver.verify.rules import ModelSplit, capacity_violations, owned_parameters, peak_violations, tied_copies
from meshwright.solver.verify.training.choice_rules import gathered_bytes, recomputed_of_part
from meshwright.solver.verify.training.layout import side_bytes
from meshwright.solver.verify.training.mixers import ranks_with_an_expert
from meshwright.solver.verify.training.schedule import chunks, held_at_most
from meshwright.solver.verify.training.stage_bytes import (
    CheckedStateBytes,
    entry_bytes,
    has_frozen_weights,
    kept_bytes,
    loss_bytes,
    state_bytes,
    training_share,
    updated_by,
)
from meshwright.solver.verify.training.token_slices import kept_keys_bytes, tokens_at_once
from meshwright.solver.verify.violation import RELATIVE, Rule, Violation, agrees, at_most


def memory_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """In-flight micro-batches, memory by kind, capacity, and the plan's peak."""
    assert plan.predicted is not None
    share = training_share(plan, request)
    for index, stage in enumerate(plan.stages):
        where = f"plan.stages[{index}]"
        yield from _state_violations(plan, request, stage, share, where)
        yield from _activation_violations(plan, request, index, share)
        yield from capacity_violations(request, stage, where)
        yield from quantile_violations(request, stage.memory, f"{where}.memory")
        yield from _waiting_head_violations(plan, request, stage, f"{where}.memory.overhead_bytes")
    yield from peak_violations(plan.predicted, plan.stages)


def _whole_optimizer_bytes(
    plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit
) -> tuple[float, float]:
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


def _optimizer(plan: PipelinePlan, request: TrainingRequest) -> str:
    return (plan.optimizer or request.workload.optimizer).value


def _states(
    plan: PipelinePlan, request: TrainingRequest, stage: Stage, optimizer: str
) -> tuple[CheckedStateBytes, CheckedStateBytes]:
    """Bytes a parameter takes: of those that dp x cp ranks share, and of experts, which fewer ranks share where they are spread
    (and then none within a part of the ranks)."""
    ranks, alike = plan.axes.dp * plan.axes.cp, stage.shard_ranks or ranks_with_an_expert(plan.axes)
    shared = state_bytes(request.workload, optimizer, zero_stage=stage.zero_stage, shards=stage.shard_ranks or ranks)
    return shared, state_bytes(request.workload, optimizer, zero_stage=stage.zero_stage, shards=alike)


def whole_state(
    plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit
) -> dict[Rule, tuple[float, float]]:
    """Least and most bytes (`tied_copies`) of a stage's weights, gradients and optimizer states, wherever they lie."""
    shared, experts = _states(plan, request, stage, _optimizer(plan, request))
    owned = [(span.count, owned_parameters(request.model.block(span.block), share)) for span in stage.blocks]
    of_experts = sum(count * block.experts for count, block in owned)
    least, most = (sum(count * block.shared for count, block in owned) + n for n in tied_copies(request, stage, share))
    found = {
        rule: (least * each + of_experts * each_of_experts, most * each + of_experts * each_of_experts)
        for rule, each, each_of_experts in (
            (Rule.WEIGHTS, shared.weights, experts.weights),
            (Rule.GRADIENTS, shared.gradients, experts.gradients),
        )
    }
    saved = sum(
        span.count * (1.0 - _in_fp8(request, span.block)) * (block.shared * shared.weights + block.experts * experts.weights)
        for span, (_, block) in zip(stage.blocks, owned, strict=True)
    )
    found[Rule.WEIGHTS] = found[Rule.WEIGHTS][0] - saved, found[Rule.WEIGHTS][1] - saved
    if stage.gradients is Gradients.RELEASED:
        found[Rule.GRADIENTS] = _waiting_gradients(plan, request, stage, share)
    found[Rule.OPTIMIZER] = _whole_optimizer_bytes(plan, request, stage, share)
    if request.workload.adapter is None:
        return found
    more = adapted_state(plan, request, stage)
    return {rule: (least + more[rule], most + more[rule]) for rule, (least, most) in found.items()}


def _in_fp8(request: TrainingRequest, block: str) -> float:
    """The share of 16 bits that a block's weights take: half for layers of frozen weights that lie once in fp8."""
    workload = request.workload
    stated = workload.implementation
    if stated is None or stated.frozen_weights != "fp8" or not has_frozen_weights(workload) or workload.matmul.dtype is None:
        return 1.0
    return 1.0 if _is_end(request, block) else 1.0 / workload.precision.size_bytes


def _state_violations(
    plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit, where: str
) -> Iterator[Violation]:
    whole, memory, moved = whole_state(plan, request, stage, share), stage.memory, stage.offload
    for rule, claimed, gone in (
        (Rule.WEIGHTS, memory.weights_bytes, moved.weights),
        (Rule.GRADIENTS, memory.gradients_bytes, moved.gradients),
        (Rule.OPTIMIZER, memory.optimizer_bytes, moved.optimizer),
    ):
        least, most = ((1.0 - gone) * bytes_ for bytes_ in whole[rule])
        if not (at_most(least, claimed) and at_most(claimed, most)):
            given = f"{claimed} bytes claimed, what the graph leaves on the device is {least}"
            yield Violation(rule, f"{where}.memory", given)


def _waiting_gradients(plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit) -> tuple[float, float]:
    """Least and most bytes of gradients that can't be released: those of weights with several uses, with what lies beside them
    in the block that owns them; and those of copies."""
    shared, experts = _states(plan, request, stage, _optimizer(plan, request))
    blocks = _blocks_with_ties(request)
    held = 0.0
    for span in stage.blocks:
        if span.block in blocks:
            owned = owned_parameters(request.model.block(span.block), share)
            held += span.count * (owned.shared * shared.gradients + owned.experts * experts.gradients)
    least, most = (held + copies * shared.gradients for copies in tied_copies(request, stage, share))
    return least, most


def _blocks_with_ties(request: TrainingRequest) -> set[str]:
    ties = [(block, weight.tied_to) for block, _, weight in request.model.tied_weights() if weight.tied_to is not None]
    return {name for block, owner in ties for name in (block, request.model.owner(owner).block)}


def _activation_violations(plan: PipelinePlan, request: TrainingRequest, index: int, share: ModelSplit) -> Iterator[Violation]:
    stage, where = plan.stages[index], f"plan.stages[{index}]"
    memory = stage.memory
    splits = residual_splits(plan, request)
    of_layers = [layer_activations(request, stage, share, split) for split in splits]
    keys = kept_keys_bytes(plan, request, stage, share)
    if stage.recompute is Recompute.FULL:
        # What later token slices read stays, and is not made again.
        most = max(keys.values(), default=0.0)
        of_layers = [({n: size + keys.get(n, 0.0) for n, size in kept.items()}, again - most) for kept, again in of_layers]
    if request.model.is_chain:
        parts = [[sum(kept[layer] for layer in chunk) for chunk in chunks(stage)] for kept, _ in of_layers]
    else:
        parts = [
            [sum(kept.values()) + side_bytes(stage, request, share, split=split)]
            for (kept, _), split in zip(of_layers, splits, strict=True)
        ]
    held = [held_at_most(plan, index, of_parts) for of_parts in parts]
    # Gradients of keys and values wait for the token slices that they belong to, of one micro-batch at a time.
    waiting = sum(keys.values())
    in_flight = held[0][0]
    if not agrees(stage.in_flight, in_flight):
        given = f"{stage.in_flight} micro-batches in flight, {plan.schedule} holds {in_flight}"
        yield Violation(Rule.IN_FLIGHT, where, given)
    if share.layers is Layers.OTHER:
        least = 0.0 if stage.recompute is Recompute.SELECTIVE else min(value + waiting for _, value in held)
        right = at_most(least, memory.activations_bytes)
    else:
        right = any(agrees(memory.activations_bytes, value + waiting) for _, value in held)
    if not right:
        given = f"{memory.activations_bytes} bytes claimed, what {in_flight} micro-batches save is {held[0][1] + waiting}"
        yield Violation(Rule.ACTIVATIONS, f"{where}.memory", given)
    needed = max(
        tokens_at_once(plan) * min(remade for _, remade in of_layers),
        *(_transient_state(plan, request, stage, share, span) for span in stage.blocks),
        *(_gathered_weights(request, span.block, share) for span in stage.blocks),
        # Gathered keys and values lie beside their gradients.
        *(2.0 * whole for span in stage.blocks for whole in gathered_bytes(plan, request, span.block)),
        *(
            tokens_at_once(plan) * loss_bytes(request.model.block(span.block), share, request.workload.precision)
            for span in stage.blocks
        ),
    )
    if not at_most(needed, memory.transient_bytes):
        given = f"{memory.transient_bytes} bytes claimed, one layer at work needs {needed}"
        yield Violation(Rule.TRANSIENT, f"{where}.memory", given)


def _waiting_head_violations(plan: PipelinePlan, request: TrainingRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """Yield a violation if the overhead is less than what a head keeps for its weight gradients.

    Where these wait for the pipeline to drain, the head's input and the gradient of its logits stay of every micro-batch
    but the last (Megatron-LM's --defer-embedding-wgrad-compute). The logits lie split over the tp ranks, at the least.
    """
    if stated_or_launchers(request).head_gradients != "deferred":
        return
    tokens = plan.microbatch.size * request.workload.seq_len / plan.axes.cp
    widths = max(_head_width(request, request.model.block(span.block), plan.axes.tp) for span in stage.blocks)
    least = (plan.microbatch.count - 1) * tokens * widths * request.workload.precision.size_bytes
    if not at_most(least, stage.memory.overhead_bytes):
        given = f"{stage.memory.overhead_bytes} bytes claimed, gradients of the head that wait need {least}"
        yield Violation(Rule.OVERHEAD, where, given)


def _head_width(request: TrainingRequest, block: Block, tp: int) -> float:
    """Return the values that a head of the vocabulary reads and writes for a token, its logits split over tp; 0 without one."""
    sizes = request.model.dims
    logits = {op.inputs[0].name for op in block.operators if op.kind is OperatorKind.LOSS and VOCAB in op.inputs[0].dims}
    heads = ((op.inputs[0], written) for op in block.operators for written in op.outputs if written.name in logits)
    return max((_width(read, sizes) + _width(written, sizes) / tp for read, written in heads), default=0.0)


def _width(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[dim] for dim in tensor.dims if dim not in (BATCH, SEQ))


def residual_splits(plan: PipelinePlan, request: TrainingRequest) -> tuple[int, ...]:
    """Over how many tp ranks the residual stream between blocks may lie split. The free space may split its hidden dim,
    which a plan does not say, so there both are possible."""
    if plan.sequence_parallel:
        return (plan.axes.tp,)
    return (1, plan.axes.tp) if request.search.space is Space.FREE else (1,)


def layer_activations(request: TrainingRequest, stage: Stage, share: ModelSplit, split: int) -> tuple[dict[int, float], float]:
    """Bytes that each layer of a stage keeps for one micro-batch, and the most that one makes again in its backward pass."""
    dtype = request.workload.precision
    kept: dict[int, float] = {}
    remade, chosen = 0.0, _recomputed_whole(request, stage)
    for span in stage.blocks:
        block = request.model.block(span.block)
        entry = entry_bytes(block, share, dtype, split=split)
        layer = kept_bytes(block, share, request, stage.recompute, entry=entry, modules=stage.recompute_modules)
        whole = kept_bytes(block, share, request, Recompute.NONE, entry=entry)
        ends = _is_end(request, span.block)
        stays = 1.0 if ends else 1.0 - stage.offload.activations
        again = {layer for layer in range(span.first, span.first + span.count) if chosen is None or layer in chosen}
        for number in range(span.first, span.first + span.count):
            kept[number] = stays * (layer if number in again else whole)
        # What a layer moved is back while its backward pass runs.
        if again:
            remade = max(remade, whole - stays * layer)
    return kept, remade


def _recomputed_whole(request: TrainingRequest, stage: Stage) -> set[int] | None:
    """Layers under the stage's recompute mode where only the first of each part are, None where all are."""
    if not stage.recomputes_some:
        return None
    found: set[int] = set()
    for part in chunks(stage):
        inside = [layer for layer in part if not _is_end(request, request.model.layers[layer])]
        found |= {*recomputed_of_part(stage, inside)}
    return found


def _is_end(request: TrainingRequest, block: str) -> bool:
    kinds = {operator.kind for operator in request.model.block(block).operators}
    return bool(kinds & {OperatorKind.EMBEDDING, OperatorKind.LOSS})


def _transient_state(plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit, span: LayerSpan) -> float:
    """Bytes of a layer's state that are whole on the device while it runs, and lie split, on the host or nowhere else."""
    workload, moved = request.workload, stage.offload
    block = request.model.block(span.block)
    owned = owned_parameters(block, share)
    shared, experts = _states(plan, request, stage, _optimizer(plan, request))
    of_weights = moved.weights * _in_fp8(request, span.block)
    from_host = owned.shared * (of_weights * shared.weights + moved.gradients * shared.gradients)
    from_host += owned.experts * (of_weights * experts.weights + moved.gradients * experts.gradients)
    if workload.adapter is not None:
        return from_host + adapted_transient_bytes(request, block, stage, shared=owned.shared)
    ranks, with_an_expert = plan.axes.dp * plan.axes.cp, ranks_with_an_expert(plan.axes)
    if (ranks == 1 and with_an_expert == 1) or stage.zero_stage < 2:
        if stage.gradients is Gradients.KEPT or span.block in _blocks_with_ties(request):
            return from_host
        return from_host + owned.total * workload.gradient_dtype.size_bytes
    whole = workload.gradient_dtype.size_bytes + (workload.precision.size_bytes if stage.zero_stage == 3 else 0.0)
    split = (owned.shared if ranks > 1 else 0) + (owned.experts if with_an_expert > 1 else 0)
    return from_host + split * whole


def _gathered_weights(request: TrainingRequest, block: str, share: ModelSplit) -> float:
    """Bytes of the largest weight that lies split over tp, whole while its operator runs, and of its gradient."""
    workload = request.workload
    whole = max(share.whole_elements(block, operator) for operator in request.model.block(block).operators)
    return whole * (workload.precision.size_bytes + workload.gradient_dtype.size_bytes)


# Quantiles of a stage's memory: what runs take over what is counted of it, and the chance that a device has too little.

BEST_BY_HAND = "hand-fused"
"""The implementation where the launcher trains nothing."""


def quantile_violations(request: TrainingRequest, memory: StageMemory, where: str) -> Iterator[Violation]:
    """Yield violations of a stage: its median over what is counted, the quantile that the request asks for, and whether that
    fits."""
    law = _law(request)
    counted = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    tensors = counted + law.activations * memory.activations_bytes + law.transients * memory.transient_bytes
    counted += memory.activations_bytes + memory.transient_bytes
    buffers = memory.overhead_bytes if _keeps_buffers(request) else 0.0
    least, most = law.allocator * tensors, law.allocator * tensors + (law.allocator - 1.0) * buffers
    told = counted + memory.fragmentation_bytes
    if not (at_most(min(least, most), told) and at_most(told, max(least, most))):
        given = f"{memory.fragmentation_bytes} bytes beside {counted} counted ones, the implementation takes {least - counted}"
        yield Violation(Rule.OVERHEAD, f"{where}.fragmentation_bytes", given)
    unlearned = told + memory.overhead_bytes
    if not agrees(unlearned + memory.learned_bytes, law.scale * unlearned):
        given = f"{memory.learned_bytes} bytes, runs took {law.scale} times {unlearned}"
        yield Violation(Rule.OVERHEAD, f"{where}.learned_bytes", given)
    if memory.total_bytes <= memory.capacity_bytes:
        chance = _chance(law, memory.total_bytes, limit=memory.capacity_bytes)
        if not at_most(chance, request.search.risk):
            given = f"out of memory with a chance of {chance}, at most {request.search.risk} is allowed"
            yield Violation(Rule.RISK, where, given, limit="device_memory")


def risk_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Yield violations of what a plan says of its fullest device: in one run of twenty, and when it runs out of memory."""
    law, where, predicted = _law(request), "plan.predicted", plan.predicted
    assert predicted is not None, "answer_violations asks for it"
    p95 = predicted.peak_memory_p95_bytes
    # Plans of earlier versions say neither.
    if p95 is not None and not _is_quantile(law, p95, median=predicted.peak_memory_bytes, chance=0.05):
        given = f"{p95} bytes, the median is {predicted.peak_memory_bytes}, its spread {law.log_sigma}"
        yield Violation(Rule.PEAK_MEMORY, f"{where}.peak_memory_p95_bytes", given)
    memories = [stage.memory for stage in plan.stages]
    chance = max(_chance(law, memory.total_bytes, limit=memory.capacity_bytes) for memory in memories)
    told = predicted.chance_out_of_memory
    if told is not None and abs(told - chance) > RELATIVE:
        yield Violation(Rule.PEAK_MEMORY, f"{where}.chance_out_of_memory", f"{told}, the fullest stage has {chance}")


def stated_or_launchers(request: TrainingRequest) -> Implementation:
    """Return the implementation that the request states, else its launcher's, in any space."""
    stated, search = request.workload.implementation, request.search
    trainer = TRAINERS.get(search.launcher)
    launchers = implementation_profile(BEST_BY_HAND).implementation if trainer is None else trainer.implementation
    return launchers if stated is None else stated.over(launchers)


def _law(request: TrainingRequest) -> MemoryLaw:
    return stated_or_launchers(request).memory


def _keeps_buffers(request: TrainingRequest) -> bool:
    """Return True if tensors lie beside the state, which count as overhead."""
    implementation = stated_or_launchers(request)
    return implementation.state_buffers != "none" or implementation.head_gradients != "in-backward"


def _is_quantile(law: MemoryLaw, quantile: float, *, median: float, chance: float) -> bool:
    """Return True if a run of this median exceeds the quantile with that chance."""
    if law.log_sigma == 0.0:
        return agrees(quantile, median)
    return agrees(_chance(law, median, limit=quantile), chance)


def _chance(law: MemoryLaw, median: float, *, limit: float) -> float:
    if law.log_sigma == 0.0:
        return float(median > limit)
    return 0.5 * math.erfc(math.log(limit / median) / law.log_sigma / math.sqrt(2.0))
