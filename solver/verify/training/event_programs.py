"""The differences between schedules, read from the event program of a small pipeline, slot by slot."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from meshwright.costmodels.pipeline.build import build
from meshwright.costmodels.pipeline.program import PassKind, Program, Schedule
from meshwright.solver.answer.pipeline_plan import PipelinePlan

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
    """

    copies: int
    cuts_sequences: bool
    one_part_a_rank: bool
    splits_backward: bool
    holds_all: bool
    holds_less: bool
    takes_on_early: bool


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
    )


def _forwards_first(program: Program, rank: int) -> int:
    """Return the number of forwards of a rank before anything else."""
    slots = program.orders[rank]
    others = (index for index, slot in enumerate(slots) if any(action.kind is not PassKind.FORWARD for action in slot))
    return next(others, len(slots))
