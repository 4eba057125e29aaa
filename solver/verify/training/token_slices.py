"""Sequences that pass a pipeline in token slices: where that can be, and what of their keys and values stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, forward_flops
from meshwright.costmodels.pipeline.program import Schedule
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import Gradients, Recompute, Space, TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.rules import ModelSplit
from meshwright.solver.verify.training.schedule import reading, schedule_reading
from meshwright.solver.verify.violation import Rule, Violation, agrees

_MIXING = (OperatorKind.SCAN, OperatorKind.CONVOLUTION, OperatorKind.PRODUCT)
"""Operators beside attention in which a token may read others of its sequence."""


def slice_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Slices that the request allows, under schedules of slices and those alone, of a model in which tokens read earlier ones
    of their sequence and no others; their tokens are the sequence, their shares of time are one whole."""
    where, search, workload, axes = "plan.token_slices", request.search, request.workload, plan.axes
    count = max(1, len(plan.token_slices))
    if (count > 1) != reading(plan).cuts_sequences:
        sliced = ", ".join(schedule for schedule in Schedule if schedule_reading(schedule).cuts_sequences)
        yield Violation(Rule.STAGES, where, f"{count} slices under {plan.schedule}; {sliced} have several")
        return
    if axes.pp > 1 and count not in (search.token_slices or (1,)):
        yield Violation(Rule.SEARCH, where, f"{count}, the request allows {', '.join(map(str, search.token_slices or (1,)))}")
    if count == 1:
        return
    tokens = [each.tokens for each in plan.token_slices]
    if sum(tokens) != workload.seq_len or min(tokens) < 1:
        yield Violation(Rule.SEQUENCE, where, f"slices of {tokens} tokens are not the {workload.seq_len} of a sequence")
    if plan.sequence_parallel and any(each % axes.tp for each in tokens):
        yield Violation(Rule.DIVISIBILITY, where, f"slices of {tokens} tokens, which tp {axes.tp} does not divide")
    shares = [share for each in plan.token_slices for share in (each.forward, each.backward)]
    if not agrees(sum(shares), 1.0):
        yield Violation(Rule.STEP_TIME, where, f"shares of a micro-batch's time add up to {sum(shares)}")
    if not _reads_earlier_tokens_alone(request):
        yield Violation(Rule.SEQUENCE, where, "the model's tokens read others than those before them")
    yield from _beside_slices(plan, request)


def _beside_slices(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Yield violations for what does not go with slices, in plans and in requests."""
    axes, search = plan.axes, request.search
    broken = [
        (search.space is not Space.FREE, Rule.LAUNCHER, "no launcher cuts sequences into slices"),
        (search.system is not None, Rule.SEARCH, f"{search.system} does not search token slices"),
        (axes.cp > 1, Rule.SEQUENCE, f"token slices beside cp {axes.cp}"),
        (plan.tp_overlap is not TpOverlap.EXPOSED, Rule.SEQUENCE, "token slices beside chunked products"),
    ]
    for stage in plan.stages:
        moved = stage.offload
        broken += [
            (stage.zero_stage > 1, Rule.ZERO, f"ZeRO-{stage.zero_stage} beside token slices, whose passes share no state"),
            (
                bool(moved.activations or moved.weights or moved.gradients),
                Rule.HOST_MEMORY,
                "activations, weights or gradients on the host beside token slices",
            ),
            (stage.gradients is Gradients.RELEASED, Rule.GRADIENTS, "released, and summed over token slices"),
            (stage.recompute is Recompute.FINE_GRAINED, Rule.SEARCH, "fine-grained recompute beside token slices"),
        ]
    for is_broken, rule, message in dict.fromkeys(broken):
        if is_broken:
            yield Violation(rule, "plan.token_slices", message)


def _reads_earlier_tokens_alone(request: TrainingRequest) -> bool:
    if not request.model.is_chain:
        return False
    for block in request.model.blocks:
        for operator in block.operators:
            attends = operator.kind is OperatorKind.ATTENTION
            if operator.kind in _MIXING or (attends and not _of_earlier_tokens(operator)):
                return False
    return True


def _of_earlier_tokens(attention: Operator) -> bool:
    own = all(SEQ in tensor.dims for tensor in attention.inputs)
    return own and attention.mask == "causal" and attention.window is None


def kept_keys_bytes(plan: PipelinePlan, request: TrainingRequest, stage: Stage, share: ModelSplit) -> dict[int, float]:
    """Bytes of each layer's keys and values of one micro-batch that later slices of their sequences read: those of all slices
    but the last. Their gradients take as much, until the slice's own backward pass."""
    if len(plan.token_slices) < 2:
        return {}
    seq_len = sum(each.tokens for each in plan.token_slices)
    read_later = 1.0 - plan.token_slices[-1].tokens / seq_len
    found: dict[int, float] = {}
    for span in stage.blocks:
        block = request.model.block(span.block)
        elements = sum(
            tensor.elements(share.local(block.name, operator))
            for operator in block.operators
            if operator.kind is OperatorKind.ATTENTION
            for tensor in operator.inputs[1:]
        )
        size = read_later * elements * request.workload.precision.size_bytes
        found |= dict.fromkeys(range(span.first, span.first + span.count), size)
    return found


def tokens_at_once(plan: PipelinePlan) -> float:
    """Share of a sequence that is at work in a layer at once, at most."""
    tokens = [each.tokens for each in plan.token_slices]
    return max(tokens) / sum(tokens) if tokens else 1.0


def slice_flops(plan: PipelinePlan, request: TrainingRequest) -> list[float]:
    """Forward FLOPs of each slice of a micro-batch in the whole model: what it adds to those of the tokens before it."""
    totals, end = [0.0], 0
    for each in plan.token_slices:
        end += each.tokens
        sizes = {**request.model.dims, BATCH: plan.microbatch.size, SEQ: end}
        totals.append(
            sum(
                run.repeat * forward_flops(op, sizes)
                for run in request.model.chain
                for op in request.model.block(run.block).operators
            )
        )
    return [after - before for before, after in itertools.pairwise(totals)]
