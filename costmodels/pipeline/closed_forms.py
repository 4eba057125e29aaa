"""Closed forms of bubble, step time and memory of schedules: what the search asks thousands of times.

They hold for ranks of equal speed; each is in the file of its schedule, and tests compare it with the schedule's program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.build import build, valid_size
from meshwright.costmodels.pipeline.program import Schedule
from meshwright.costmodels.pipeline.schedules.table import TRAITS
from meshwright.costmodels.pipeline.timeline import Durations, simulate
from meshwright.costmodels.pipeline.traits import PassTimes, PipelineSize, TokenSlices, WholeSequences


def one_f_one_b_step_s(stage_s: Sequence[float], n_microbatches: int) -> float:
    """Time of 1F1B on stages that take ``stage_s`` a micro-batch, forward and backward, without sending.

    ``sum t + (m - 1) max t`` (Alpa, OSDI'22, equation 2; design section 2, level 3). Exact for equal stages, and an upper
    bound for stages whose backward is the same multiple of their forward. Where that ratio differs, as between stages that
    recompute and stages that don't, the program can be slower, since the longest forward and the longest backward are then
    on different stages; it never exceeds ``sum t + (m - 1) (max forward + max backward)``.
    """
    if not stage_s or n_microbatches < 1:
        raise InvalidInputError("bad pipeline", given=(len(stage_s), n_microbatches), allowed="1 or more stages, micro-batches")
    return sum(stage_s) + (n_microbatches - 1) * max(stage_s)


def bubble_s(
    schedule: Schedule,
    n_ranks: int,
    n_microbatches: int,
    *,
    forward_s: float,
    input_s: float,
    weight_s: float,
    overlapped: float = 1.0,
    n_chunks: int = 2,
) -> float:
    """Idle time of the rank that waits most, within a step, in seconds; `costmodels.pipeline.timeline.Timeline.bubble_s`.

    Durations are those of one micro-batch on one part of the model, as in `Durations`: with two chunks a rank, half of the
    rank's; under schedules of token slices those of one slice, all being equal. By closed form where one is exact, else by
    running the program. Raises InvalidInputError as `build`.
    """
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks)
    times = PassTimes(forward_s, input_s, weight_s, overlapped)
    closed_s = TRAITS[schedule].bubble_s(size, times)
    return _program_bubble_s(schedule, size, times) if closed_s is None else closed_s


@lru_cache(maxsize=4096)
def _program_bubble_s(schedule: Schedule, size: PipelineSize, times: PassTimes) -> float:
    program = build(schedule, size.n_ranks, size.n_microbatches, n_chunks=size.n_chunks)
    durations = Durations.equal(
        program.n_positions,
        forward_s=times.forward_s,
        input_s=times.input_s,
        weight_s=times.weight_s,
        overlapped=times.overlapped,
    )
    return simulate(program, durations).bubble_s


def peak_in_flight(
    schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2
) -> tuple[float, ...]:
    """Most micro-batches whose activations each rank holds; `costmodels.pipeline.program.Program.peak_in_flight`.

    The greatest of them is exact; other ranks of the V schedules may hold less when micro-batches are few. Token slices are
    equal (`costmodels.pipeline.held_tokens` takes any). Raises InvalidInputError as `build`.
    """
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks)
    match TRAITS[schedule].sequences:
        case TokenSlices(held_tokens=held_tokens):
            return tuple(held / n_slices for held in held_tokens(n_ranks, n_microbatches, (1,) * n_slices))
        case WholeSequences(peak_in_flight=of_rank):
            return tuple(of_rank(rank, size) for rank in range(n_ranks))
