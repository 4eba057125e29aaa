"""Strategies of operators on the tp axis: known, complete, dividing, and expressible."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    SEQ,
    SHARED_FFN,
    SSM_HEADS,
    VOCAB,
)
from meshwright.costmodels.model.implementation import TensorOverlap
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Space, TpOverlap
from meshwright.solver.problem.launchers.trainers import TRAINERS, CutProducts
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.launchers import BUFFERS, Of
from meshwright.solver.verify.rules import LEADERS, REPLICATE, ModelSplit, devices_by_group, picked_dims
from meshwright.solver.verify.training.choice_rules import expert_overlap_violations
from meshwright.solver.verify.training.constraints import constraint_violations
from meshwright.solver.verify.violation import Rule, Violation, at_most

_COLUMN_AND_ROW_DIMS = (HEADS, FFN, EXPERT_FFN, SHARED_FFN, SSM_HEADS, VOCAB)
_NEVER_SPLIT = (BATCH, HEAD_DIM)
"""The batch is the dp axis's; a head is never cut."""


def strategies_by_operator(plan: PipelinePlan) -> dict[tuple[str, str], str]:
    """The dim that each (block, operator) which the plan lists splits, or "replicate"."""
    return {(entry.block, entry.operator): entry.strategy.removesuffix(_SPLIT) for entry in plan.shardings}


def stored_split(plan: PipelinePlan) -> frozenset[tuple[str, str]]:
    """Each (block, operator) whose weights, where ranks use them whole, lie split over the tp ranks."""
    return frozenset((entry.block, entry.operator) for entry in plan.shardings if entry.strategy.endswith(_SPLIT))


_SPLIT = "+weights"


def sharding_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """One strategy for every operator of every block in use, legal for the operator and the space, dividing its dim."""
    blocks = [request.model.block(name) for name in dict.fromkeys(request.model.layers)]
    used = [(block.name, operator) for block in blocks for operator in block.operators]
    wanted = [(name, operator.name) for name, operator in used]
    given = [(entry.block, entry.operator) for entry in plan.shardings]
    for key in sorted(set(given) - set(wanted)):
        yield Violation(Rule.SHARDING, "/".join(key), "the model has no such operator")
    for key in sorted({key for key in given if given.count(key) > 1}):
        yield Violation(Rule.SHARDING, "/".join(key), "listed twice")
    missing = sorted(set(wanted) - set(given))
    for key in missing:
        yield Violation(Rule.SHARDING, "/".join(key), "no strategy is given")
    if missing:
        return
    named = strategies_by_operator(plan)
    for name, operator in used:
        yield from _operator_violations(plan, request, name, operator, named[name, operator.name])
    yield from constraint_violations(plan, request)
    yield from _storage_violations(plan, request)
    yield from _tied_violations(plan, request, named)
    if plan.sequence_parallel:
        yield from _sequence_parallel_violations(plan, request)


def _operator_violations(
    plan: PipelinePlan, request: TrainingRequest, block: str, operator: Operator, strategy: str
) -> Iterator[Violation]:
    where, tp = f"{block}/{operator.name}", plan.axes.tp
    if _is_whole_expert(plan, operator) and strategy != SEQ:
        yield Violation(Rule.SHARDING, where, f"{strategy!r}; ranks with whole experts have tokens of their own: {SEQ!r}")
    if strategy == REPLICATE:
        if tp > 1 and request.search.space is Space.LAUNCHABLE:
            yield from _launchable_violations(plan, request, where, operator, strategy)
        return
    if tp == 1:
        yield Violation(Rule.SHARDING, where, f"shards {strategy!r} over a tp axis of one rank")
        return
    if strategy == BATCH and "batch" in request.search.operator_splits:
        if plan.microbatch.size % tp:
            given = f"{plan.microbatch.size} sequences of a micro-batch do not divide by tp {tp}"
            yield Violation(Rule.DIVISIBILITY, where, given)
        return
    if strategy not in operator.dims or strategy in _forbidden_dims(operator):
        given = f"{strategy!r} is not a dim that a {operator.kind.value} operator may split"
        yield Violation(Rule.SHARDING, where, given)
        return
    if request.search.space is Space.LAUNCHABLE:
        yield from _launchable_violations(plan, request, where, operator, strategy)
    yield from _division_violations(plan, request, where, operator, strategy)


def _is_whole_expert(plan: PipelinePlan, operator: Operator) -> bool:
    """Return True if an operator is part of experts of which ranks hold whole ones beside tp."""
    return plan.axes.etp is not None and (bool(picked_dims(operator)) or EXPERT_FFN in operator.dims)


def _forbidden_dims(operator: Operator) -> set[str]:
    """Dims whose split would change what the operator computes."""
    # Key/value heads and groups go with the heads that use them, where an operator has both.
    forbidden = {*_NEVER_SPLIT, *(follower for follower, leader in LEADERS.items() if leader in operator.dims)}
    match operator.kind:
        case OperatorKind.ATTENTION:
            forbidden |= operator.dims - {HEADS}
        case OperatorKind.NORM:
            # A norm averages over the dims of its weight; without one, over its last dim.
            # The gated norm of a state-space mixer works by group, so its heads may be split.
            forbidden |= {dim for weight in operator.weights for dim in weight.dims} or {operator.inputs[0].dims[-1]}
            forbidden -= {SSM_HEADS}
        case OperatorKind.ELEMENTWISE:
            for tensor in (*operator.inputs, *operator.outputs):
                follows = {leader for follower, leader in LEADERS.items() if follower in tensor.dims}
                forbidden |= operator.dims - set(tensor.dims) - follows
        case OperatorKind.SCAN | OperatorKind.CONVOLUTION:
            forbidden |= operator.dims - {SSM_HEADS}
        case OperatorKind.MATMUL | OperatorKind.PRODUCT | OperatorKind.EMBEDDING | OperatorKind.LOSS:
            pass
    return forbidden


def _launchable_violations(
    plan: PipelinePlan, request: TrainingRequest, where: str, operator: Operator, strategy: str
) -> Iterator[Violation]:
    """Launchers split heads, ffn or vocab wherever there is one, and whatever else works on the residual stream over the
    sequence or not at all, the whole model alike. A loss that reads gathered logits has all of them on every rank."""
    stated = request.workload.implementation
    gathers = stated is not None and stated.logits == "gathered"
    parallel = [dim for dim in _COLUMN_AND_ROW_DIMS if dim in operator.dims]
    following = [dim for dim in LEADERS if dim in operator.dims - _forbidden_dims(operator) and request.model.dims[dim] > 1]
    if _is_whole_expert(plan, operator):
        expected = {SEQ}
    elif gathers and operator.kind is OperatorKind.LOSS:
        expected = {REPLICATE}
    elif parallel:
        expected = {parallel[0]}
    elif following and plan.axes.tp > 1:
        expected = {following[0]}
    elif plan.sequence_parallel:
        expected = {SEQ}
    else:
        expected = {REPLICATE}
    if strategy not in expected:
        yield Violation(Rule.SHARDING, where, f"{strategy!r}, launchers can only have {expected.pop()!r} here")


def _division_violations(
    plan: PipelinePlan, request: TrainingRequest, where: str, operator: Operator, strategy: str
) -> Iterator[Violation]:
    tp = plan.axes.tp
    sizes = {**request.model.dims, SEQ: request.workload.seq_len // plan.axes.cp}
    if strategy not in LEADERS and sizes[strategy] % tp and not (strategy == VOCAB and _pads_vocabulary(request)):
        yield Violation(Rule.DIVISIBILITY, where, f"{strategy} {sizes[strategy]} does not divide by tp {tp}")
    if strategy in LEADERS and sizes[strategy] == 1:
        yield Violation(Rule.DIVISIBILITY, where, f"{strategy} is 1: there is nothing to split")
    for follower, leader in LEADERS.items():
        count = sizes[follower] if follower in operator.dims and strategy in (follower, leader) else tp
        if count % tp and tp % count:
            given = f"{count} {follower} neither divide by tp {tp} nor can be copied evenly to its ranks"
            yield Violation(Rule.DIVISIBILITY, where, given)


def _pads_vocabulary(request: TrainingRequest) -> bool:
    """Return True if the launcher pads the vocabulary where it does not divide by tp."""
    limits = TRAINERS.get(request.search.launcher)
    return request.search.space is Space.LAUNCHABLE and limits is not None and VOCAB in limits.padded_dims


def _tied_violations(plan: PipelinePlan, request: TrainingRequest, named: dict[tuple[str, str], str]) -> Iterator[Violation]:
    """A tied weight has one storage, or copies that are kept equal: both operators must split it alike."""
    for block, operator, weight in request.model.tied_weights():
        assert weight.tied_to is not None, "tied_weights() lists tied weights"
        owner_block, owner_operator, owner_weight = request.model.owner(weight.tied_to)
        owner = named.get((owner_block, owner_operator))
        here = named.get((block, operator))
        if owner is None or here is None:
            continue
        split_here = here if here in weight.dims else REPLICATE
        owner_dims = next(
            w.dims for w in request.model.block(owner_block).operator(owner_operator).weights if w.name == owner_weight
        )
        split_owner = owner if owner in owner_dims else REPLICATE
        if split_here != split_owner:
            given = f"splits the tied weight by {split_here!r}, its owner {weight.tied_to} by {split_owner!r}"
            yield Violation(Rule.TIED, f"{block}/{operator}", given)


def _storage_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Weights of products lie split over tp where the request opens it, every rank uses them whole, and no other operator has
    them too."""
    sizes = {**request.model.dims, BATCH: plan.microbatch.size, SEQ: request.workload.seq_len // plan.axes.cp}
    share = ModelSplit(plan.axes.tp, strategies_by_operator(plan), sizes, stored_split=stored_split(plan))
    tied = {
        each for name, op, weight in request.model.tied_weights() for each in ((name, op), _owner_of(request, weight.tied_to))
    }
    for name, named in sorted(share.stored_split):
        where, operator = f"{name}/{named}", request.model.block(name).operator(named)
        whole = share.whole_elements(name, operator)
        if "weights" not in request.search.operator_splits:
            yield Violation(Rule.SEARCH, where, "stores its weights split over tp, which the request does not ask for")
        elif operator.kind is not OperatorKind.MATMUL or picked_dims(operator) or (name, named) in tied or plan.axes.tp == 1:
            yield Violation(Rule.SHARDING, where, "stores weights split over tp that are no product's of its own")
        elif not whole or whole % plan.axes.tp:
            given = f"{whole} elements that every rank uses whole do not make {plan.axes.tp} shares"
            yield Violation(Rule.DIVISIBILITY, where, given)


def _owner_of(request: TrainingRequest, tied_to: str | None) -> tuple[str, str]:
    assert tied_to is not None, "tied_weights() lists tied weights"
    owner = request.model.owner(tied_to)
    return owner.block, owner.operator


def _sequence_parallel_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    local = request.workload.seq_len // plan.axes.cp
    if plan.axes.tp == 1:
        yield Violation(Rule.SEQUENCE, "plan.sequence_parallel", "there is no tp axis to split the sequence over")
    elif local % plan.axes.tp:
        given = f"{local} tokens of a rank do not divide by tp {plan.axes.tp}"
        yield Violation(Rule.SEQUENCE, "plan.sequence_parallel", given)


# The rules on products over tp that are cut into chunks, whose gathers and scatters run beside them.


def overlap_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """A way that the request allows; chunks only of what is gathered and scattered, by launchers that can, with buffers."""
    yield from expert_overlap_violations(plan)
    allowed = (request.search.tp_overlap or tuple(TpOverlap)) if plan.axes.tp > 1 else (TpOverlap.EXPOSED,)
    if plan.tp_overlap not in allowed:
        given = f"{plan.tp_overlap}, with tp {plan.axes.tp} the request allows {', '.join(allowed)}"
        yield Violation(Rule.SEARCH, "plan.tp_overlap", given)
    if plan.tp_overlap is TpOverlap.EXPOSED:
        return
    if not plan.sequence_parallel or plan.axes.tp == 1:
        given = "chunked, but without sequence parallelism over tp nothing is gathered or scattered"
        yield Violation(Rule.SEQUENCE, "plan.tp_overlap", given)
    if request.search.system is not None:
        given = f"{request.search.system} does not search chunked products"
        yield Violation(Rule.SEARCH, "plan.tp_overlap", given)
    if request.search.space is Space.LAUNCHABLE:
        yield from _launcher_violations(plan, request)
    yield from _buffer_violations(plan, request)


def _launcher_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    launcher, axes, workload = request.search.launcher, plan.axes, request.workload
    cuts = _cuts(request)
    if cuts is None:
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", f"{launcher}: it cuts no products into chunks")
    links = {group.node.intra.name for stage in plan.stages for group, _ in devices_by_group(request.cluster, stage.devices)}
    for link in sorted(name for name in links if "nvlink" not in name.lower()):
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", f"{launcher}: chunks travel over NVLink, the nodes have {link}")
    if cuts is None:
        return
    if any(stage.zero_stage > cuts.max_zero for stage in plan.stages):
        given = f"{launcher}: chunks beside its FSDP (ZeRO-2 and 3), which refuses the order of launches that they need"
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", given)
    rows = workload.seq_len // axes.cp
    if rows % (axes.tp * cuts.rows_a_rank):
        given = f"{launcher}: {rows} rows do not make {cuts.rows_a_rank} parts for each of {axes.tp} ranks"
        yield Violation(Rule.LAUNCHER, "plan.tp_overlap", given)


def _cuts(request: TrainingRequest) -> CutProducts | None:
    limits = None if request.search.space is Space.FREE else TRAINERS.get(request.search.launcher)
    return None if limits is None else limits.cut_products


def _buffer_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Buffers of the residual stream's size stay allocated beside what the framework takes."""
    axes, workload = plan.axes, request.workload
    tokens = plan.microbatch.size * workload.seq_len // axes.cp
    stream = tokens * request.model.dims[HIDDEN] * workload.precision.size_bytes
    cuts = _cuts(request)
    buffers = BUFFERS[TensorOverlap.USERBUFFERS if cuts is None else cuts.tensor_overlap]
    held = stream * buffers.count / (axes.tp if buffers.of is Of.RANK else 1)
    for index, stage in enumerate(plan.stages):
        if not at_most(held, stage.memory.overhead_bytes):
            given = f"{stage.memory.overhead_bytes} bytes claimed, buffers of chunked products alone take {held}"
            yield Violation(Rule.OVERHEAD, f"plan.stages[{index}].memory.overhead_bytes", given)
