"""The plan's pipeline schedule: which parts of the model lie on which rank, what a rank holds, how long a step waits.

All of it is read from the event program of the schedule, slot by slot; no closed form is used.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.dims import BATCH, SEQ, SliceShares
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline.placement import build
from meshwright.costmodels.pipeline.program import PassKind, Program, Schedule
from meshwright.costmodels.pipeline.timeline import Durations, simulate
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.documents import counted_flops
from meshwright.solver.verify.training.choice_rules import exchanges_again, hides_exchanges
from meshwright.solver.verify.training.stage_bytes import run_again_fine_grained
from meshwright.solver.verify.violation import Rule, Violation

BACKWARD_OVER_FORWARD = 2
"""The backward pass of a matrix multiplication is two of its size (Korthikanti et al. 2022, appendix A)."""

_NAMES = tuple(schedule.value for schedule in Schedule)
_PROVEN_ROUNDS = 4
"""Micro-batches a rank from which on programs only repeat what they do; longer steps are extended by what one more takes."""


def schedule_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """A known schedule that can run on the plan's ranks; every rank holds the parts of the model that it says."""
    where = "plan.schedule"
    if plan.schedule not in _NAMES:
        yield Violation(Rule.STAGES, where, f"{plan.schedule!r}, known: {', '.join(_NAMES)}")
        return
    if len(plan.stages) != plan.axes.pp:
        return
    counts = {max(1, len(stage.chunk_layers)) for stage in plan.stages}
    if len(counts) > 1:
        yield Violation(Rule.STAGES, "plan.stages", f"stages of {sorted(counts)} model chunks, all should have the same")
        return
    if plan.axes.pp == 1:
        if counts != {1} or plan.schedule != Schedule.ONE_F_ONE_B:
            yield Violation(Rule.STAGES, where, f"{plan.schedule!r} on one stage, which has no pipeline: should be 1f1b")
        return
    try:
        program = _program(plan)
    except InvalidInputError as error:
        yield Violation(Rule.STAGES, where, f"{plan.schedule!r} can't run here: {error}")
        return
    if counts != {len(_parts_of(program, 0))}:
        given = f"{counts.pop()} model chunks on a rank, {plan.schedule} has {len(_parts_of(program, 0))}"
        yield Violation(Rule.STAGES, "plan.stages", given)
        return
    recompute = {stage.recompute for stage in plan.stages}
    if len(recompute) > 1 and not _modes_by_stage(plan):
        given = f"{len(recompute)} recompute modes; stages of {plan.schedule} share one"
        yield Violation(Rule.STAGES, "plan.stages", given)
    if request.model.is_chain:
        yield from _order_violations(plan, request, program)
    elif len(_parts_of(program, 0)) > 1:
        yield Violation(Rule.STAGES, "plan.stages", f"{plan.schedule} cuts a model that branches into several parts a rank")


def _order_violations(plan: PipelinePlan, request: TrainingRequest, program: Program) -> Iterator[Violation]:
    """Parts follow one another as the schedule's path visits the ranks, and ranks that hold the same part agree."""
    parts: dict[int, list[int]] = {}
    for rank, stage in enumerate(plan.stages):
        for part, layers in zip(_parts_of(program, rank), chunks(stage), strict=True):
            if parts.setdefault(part, layers) != layers:
                yield Violation(Rule.LAYERS, f"plan.stages[{rank}]", f"holds other layers of part {part} than its twin")
    in_order = [layer for part in sorted(parts) for layer in parts[part]]
    if in_order != list(range(len(request.model.layers))) or not all(parts.values()):
        yield Violation(Rule.LAYERS, "plan.stages", "its parts in the schedule's order are not the model's layers in order")


def chunks(stage: Stage) -> list[list[int]]:
    """Layers of each model chunk of a stage, as it lists them."""
    layers = [layer for span in stage.blocks for layer in range(span.first, span.first + span.count)]
    sizes = stage.chunk_layers or (len(layers),)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    cut = [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return [*cut[:-1], layers[starts[-1] :]]


def copies(plan: PipelinePlan) -> int:
    """Ranks that hold each layer: two under DualPipe, whose micro-batches come from both ends."""
    return reading(plan).copies


def _modes_by_stage(plan: PipelinePlan) -> bool:
    """Return True if what a step waits is the same whatever parts of a micro-batch's time its passes take."""
    how = reading(plan)
    return how.one_part_a_rank and not how.splits_backward and not how.cuts_sequences


def held_at_most(plan: PipelinePlan, rank: int, chunk_bytes: list[float]) -> tuple[float, float]:
    """Most micro-batches, and most bytes, that a rank holds at once; ``chunk_bytes`` are those of one pass of each chunk."""
    # A forward that runs beside a backward takes memory before that frees its own.
    beside = int(hides_exchanges(plan))
    if plan.axes.pp == 1:
        return 1.0 + beside, (1 + beside) * chunk_bytes[0]
    program = _program(plan)
    tokens = [each.tokens for each in plan.token_slices] or [1]
    size = dict(zip(_parts_of(program, rank), chunk_bytes, strict=True))
    passes = 0
    held = peak = 0.0
    peak_passes = 0
    for slot in program.orders[rank]:
        # A token slice is as many passes of tokens as it has.
        weights = [tokens[action.microbatch % len(tokens)] for action in slot]
        for action, weight in zip(slot, weights, strict=True):
            if action.kind is PassKind.FORWARD:
                passes, held = passes + weight, held + weight * size[action.position]
        peak, peak_passes = max(peak, held), max(peak_passes, passes)
        for action, weight in zip(slot, weights, strict=True):
            if action.kind in (PassKind.BACKWARD, PassKind.WEIGHT):
                passes, held = passes - weight, held - weight * size[action.position]
    peak, peak_passes = peak + beside * max(chunk_bytes), peak_passes + beside
    return peak_passes / (program.chunks_per_microbatch * sum(tokens)), peak / sum(tokens)


def waiting(plan: PipelinePlan, request: TrainingRequest) -> float:
    """Return the wait of equal ranks in a step, over (p - 1) times a micro-batch's time on a rank."""
    pp, m = plan.axes.pp, plan.microbatch.count
    if pp == 1:
        return 1.0
    if plan.token_slices:
        return _waiting_of_slices(plan)
    forward, inputs, weights = _pass_shares(request, plan.stages[0].recompute, plan.stages[0].recompute_modules)
    most = _PROVEN_ROUNDS * pp
    wait = _wait(plan, min(m, most), forward, inputs, weights)
    if m > most:
        wait += (wait - _wait(plan, most - pp, forward, inputs, weights)) / pp * (m - most)
    return wait / (pp - 1)


def _waiting_of_slices(plan: PipelinePlan) -> float:
    pp, m, most = plan.axes.pp, plan.microbatch.count, _most_rounds(plan)
    shares = SliceShares(tuple(s.forward for s in plan.token_slices), tuple(s.backward for s in plan.token_slices))
    wait = _wait_of_slices(plan, min(m, most), shares)
    if m > most:
        wait += (wait - _wait_of_slices(plan, most - 1, shares)) * (m - most)
    return wait / (pp - 1)


def _wait_of_slices(plan: PipelinePlan, n_microbatches: int, shares: SliceShares) -> float:
    program = _program(plan, n_microbatches)
    n = program.n_positions
    passes = ((sum(shares.forward),) * n, (sum(shares.backward),) * n, (0.0,) * n, (0.0,) * (n - 1))
    return simulate(program, Durations(*passes, slices=shares)).makespan_s - n_microbatches


def is_extended(plan: PipelinePlan) -> bool:
    """Return True if `waiting` goes beyond the step that its program is run for, under a schedule whose wait is not quite
    linear."""
    return reading(plan).holds_less and plan.microbatch.count > _PROVEN_ROUNDS * plan.axes.pp


def _wait(plan: PipelinePlan, n_microbatches: int, forward: float, inputs: float, weights: float) -> float:
    program = _program(plan, n_microbatches)
    parts = program.chunks_per_microbatch
    durations = Durations.equal(
        program.n_positions, forward_s=forward / parts, input_s=inputs / parts, weight_s=weights / parts
    )
    return simulate(program, durations).makespan_s - n_microbatches


def _pass_shares(request: TrainingRequest, recompute: Recompute, modules: str | None) -> tuple[float, float, float]:
    """Shares of forward, input and weight passes: FLOPs of forward, of backward less the weights' gradients, and those."""
    sizes = {**request.model.dims, BATCH: 1, SEQ: request.workload.seq_len}
    by_kind: dict[OperatorKind, float] = defaultdict(float)
    light = 0.0
    for name, count in Counter(request.model.layers).items():
        block = request.model.block(name)
        light_again, whole_again = run_again_fine_grained(block, modules)
        run_again = light_again | whole_again
        for operator in block.operators:
            flops = count * counted_flops(operator, sizes, request.workload)
            by_kind[operator.kind] += flops
            multiplies = operator.kind in (OperatorKind.MATMUL, OperatorKind.ATTENTION)
            light += flops if operator.name in run_again and multiplies else 0.0
    forward = sum(by_kind.values())
    again = {
        Recompute.NONE: 0.0,
        Recompute.FINE_GRAINED: light,
        Recompute.SELECTIVE: by_kind[OperatorKind.ATTENTION],
        Recompute.FULL: forward,
    }[recompute]
    weights = by_kind[OperatorKind.MATMUL]
    total = (1 + BACKWARD_OVER_FORWARD) * forward + again
    return forward / total, (BACKWARD_OVER_FORWARD * forward - weights + again) / total, weights / total


def alone_share(plan: PipelinePlan) -> float:
    """Return the part of forwards that run beside no backward, on the rank that has most of them: no exchange of theirs is
    hidden. Nor is any while whole layers run again."""
    if Recompute.FULL in {stage.recompute for stage in plan.stages} or any(exchanges_again(stage) for stage in plan.stages):
        return 1.0
    if plan.axes.pp == 1:
        return 1 / plan.microbatch.count if hides_exchanges(plan) else 1.0
    program = _program(plan)
    if hides_exchanges(plan):
        # All forwards but those before the first backward run beside one.
        first = max(_forwards_first(program, rank) for rank in range(plan.axes.pp))
        return first / (program.chunks_per_microbatch * plan.microbatch.count)
    if not reading(plan).pairs_passes:
        return 1.0
    alone = max(sum(slot[0].kind is PassKind.FORWARD for slot in order if len(slot) == 1) for order in program.orders)
    each = program.chunks_per_microbatch * plan.microbatch.count
    return alone / each


def _program(plan: PipelinePlan, n_microbatches: int | None = None) -> Program:
    # Longer steps repeat the steady state of this one; only those that begin all forwards first, as GPipe, hold more.
    most = plan.microbatch.count if reading(plan).holds_all else _most_rounds(plan)
    count = min(plan.microbatch.count, most) if n_microbatches is None else n_microbatches
    chunks = max(2, len(plan.stages[0].chunk_layers))
    return _built(Schedule(plan.schedule or ""), plan.axes.pp, count, chunks, len(plan.token_slices))


def _most_rounds(plan: PipelinePlan) -> int:
    """Micro-batches beyond which a step only repeats what it does; token slices fill a pipeline with fewer."""
    passes = _PROVEN_ROUNDS * plan.axes.pp
    return -(-passes // len(plan.token_slices)) + 2 if plan.token_slices else passes


@lru_cache(maxsize=16)
def _built(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int, n_slices: int) -> Program:
    return build(schedule, n_ranks, n_microbatches, n_chunks=n_chunks, n_slices=n_slices)


def _parts_of(program: Program, rank: int) -> list[int]:
    """Parts of the model that a rank runs passes of, in order of the model."""
    return sorted({action.position for slot in program.orders[rank] for action in slot})


# The differences between schedules, read from the event program of a small pipeline, slot by slot.

_RANKS, _MICROBATCHES = 4, 16
"""A pipeline on which every schedule is defined and reaches its steady state."""


@dataclass(frozen=True, slots=True)
class ScheduleReading:
    """The way in which a schedule runs.

    copies             ranks that hold each layer: two where micro-batches come from both ends
    cuts_sequences     whether micro-batches pass in token slices
    one_part_a_rank    whether each rank holds one part of the model, and no other rank holds it
    splits_backward    whether gradients of inputs and of weights are apart in some backward passes
    holds_all          whether a rank begins all forwards of a step before its first backward, however many there are
    holds_less         whether ranks hold fewer whole micro-batches than the first of 1F1B does
    takes_on_early     whether a rank begins with two forwards more than the next: one for the way there, one for the way back,
                       on which sends go while it computes; counted where each rank holds one part and backwards are whole
    pairs_passes       whether forwards run beside backwards of other micro-batches
    """

    copies: int
    cuts_sequences: bool
    one_part_a_rank: bool
    splits_backward: bool
    holds_all: bool
    holds_less: bool
    takes_on_early: bool
    pairs_passes: bool = False


_OF_NO_SCHEDULE = ScheduleReading(1, False, True, False, False, False, False)


def reading(plan: PipelinePlan) -> ScheduleReading:
    """Return the reading of the plan's schedule; of a plan without a known one, that of one stage."""
    return schedule_reading(Schedule(plan.schedule)) if plan.schedule in tuple(Schedule) else _OF_NO_SCHEDULE


@cache
def schedule_reading(schedule: Schedule) -> ScheduleReading:
    """Return the reading of a schedule, from its program on four ranks."""
    program = build(schedule, _RANKS, _MICROBATCHES)
    kinds = {action.kind for order in program.orders for slot in order for action in slot}
    copies, cuts = len(program.paths), program.n_slices > 1
    one_part = copies == program.chunks_per_microbatch == 1
    whole_backward = PassKind.INPUT not in kinds
    passes = _MICROBATCHES * program.n_slices * program.chunks_per_microbatch
    first = [_forwards_first(program, rank) for rank in range(_RANKS)]
    most = max(program.peak_in_flight(rank) for rank in range(_RANKS))
    return ScheduleReading(
        copies=copies,
        cuts_sequences=cuts,
        one_part_a_rank=one_part,
        splits_backward=not whole_backward,
        holds_all=min(first) == passes,
        holds_less=most < _RANKS and not cuts,
        takes_on_early=one_part and whole_backward and all(a == b + 2 for a, b in itertools.pairwise(first)),
        pairs_passes=any(len(slot) > 1 for order in program.orders for slot in order),
    )


def _forwards_first(program: Program, rank: int) -> int:
    """Return the number of forwards of a rank before anything else."""
    slots = program.orders[rank]
    others = (index for index, slot in enumerate(slots) if any(action.kind is not PassKind.FORWARD for action in slot))
    return next(others, len(slots))
