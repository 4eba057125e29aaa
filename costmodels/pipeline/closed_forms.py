"""Closed forms of bubble, step time and memory of schedules: what the search asks thousands of times.

They hold for ranks of equal speed; tests compare each with the program of its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.build import build, require_valid
from meshwright.costmodels.pipeline.program import TOKEN_SLICED, Schedule
from meshwright.costmodels.pipeline.timeline import Durations, simulate
from meshwright.costmodels.pipeline.token_slices import held_tokens


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
    require_valid(schedule, n_ranks, n_microbatches, n_chunks)
    closed_s = _closed_bubble_s(schedule, n_ranks, n_microbatches, forward_s, input_s, weight_s, overlapped)
    if closed_s is not None:
        return closed_s
    return _program_bubble_s(schedule, n_ranks, n_microbatches, n_chunks, forward_s, input_s, weight_s, overlapped)


def _closed_bubble_s(
    schedule: Schedule, p: int, m: int, forward_s: float, input_s: float, weight_s: float, overlapped: float
) -> float | None:
    """The closed form, None where none is exact."""
    backward_s = input_s + weight_s
    all_equal = forward_s == input_s == weight_s
    match schedule:
        case (
            Schedule.GPIPE
            | Schedule.ONE_F_ONE_B
            | Schedule.EAGER_ONE_F_ONE_B
            | Schedule.INTERLEAVED
            | Schedule.TERAPIPE
            | Schedule.SEQ_1F1B
        ):
            # multi-GPU lecture; Megatron-LM SC'21 section 2.2.2: its (p-1)(F+B)/v, F and B there being v chunks'
            return (p - 1) * (forward_s + backward_s)
        case Schedule.ZB_H1 if m >= p and weight_s <= forward_s:
            return (p - 1) * (forward_s + backward_s - 2 * weight_s)  # DualPipe README, ZB1P
        case Schedule.ZB_H2 if m >= 2 * p - 1 and weight_s <= forward_s:
            # multi-GPU lecture; no bubble is left where weight halves are long
            return (p - 1) * max(0.0, forward_s + backward_s - 3 * weight_s)
        case Schedule.ZB_V if m >= 2 * p - 1 and all_equal:
            return 0.0  # zero-bubble README
        case Schedule.V_HALF if m >= p and all_equal:
            # of our program; the authors' playground page says about p/2m of a step, which is 3p
            return forward_s * max(0, 3 * (p - 1) - p % 2)
        case Schedule.V_MIN if m >= p and all_equal:
            # of our program; the authors' playground page says about 2p/3m of a step, which is 4p
            return forward_s * max(0, 4 * p - (3 if p % 3 == 0 else 5))
        case Schedule.DUALPIPE if all_equal and overlapped == 1:
            return (p // 2 - 1) * (forward_s + backward_s + backward_s - 3 * weight_s)  # DualPipe README
        case Schedule.DUALPIPE_V if all_equal and overlapped == 1:
            return (p - 1) * (forward_s + backward_s + backward_s - 3 * weight_s)  # DualPipe README, PP = 2p stages
        case _:
            return None


@lru_cache(maxsize=4096)
def _program_bubble_s(
    schedule: Schedule,
    n_ranks: int,
    n_microbatches: int,
    n_chunks: int,
    forward_s: float,
    input_s: float,
    weight_s: float,
    overlapped: float,
) -> float:
    program = build(schedule, n_ranks, n_microbatches, n_chunks=n_chunks)
    durations = Durations.equal(
        program.n_positions, forward_s=forward_s, input_s=input_s, weight_s=weight_s, overlapped=overlapped
    )
    return simulate(program, durations).bubble_s


def peak_in_flight(
    schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2
) -> tuple[float, ...]:
    """Most micro-batches whose activations each rank holds; `costmodels.pipeline.program.Program.peak_in_flight`.

    The greatest of them is exact; other ranks of the V schedules may hold less when micro-batches are few. Token slices are
    equal (`costmodels.pipeline.held_tokens` takes any). Raises InvalidInputError as `build`.
    """
    require_valid(schedule, n_ranks, n_microbatches, n_chunks)
    if schedule in TOKEN_SLICED:
        return tuple(held / n_slices for held in held_tokens(schedule, n_ranks, n_microbatches, (1,) * n_slices))
    return tuple(_peak(schedule, rank, n_ranks, n_microbatches, n_chunks) for rank in range(n_ranks))


def _peak(schedule: Schedule, rank: int, p: int, m: int, v: int) -> float:
    match schedule:
        case Schedule.GPIPE:
            return m
        case Schedule.ONE_F_ONE_B:
            return min(m, p - rank)
        case Schedule.EAGER_ONE_F_ONE_B:
            return min(m, 2 * (p - rank) - 1)  # Zhuang et al., MLSys'23, section 4
        case Schedule.INTERLEAVED:
            # Megatron-LM SC'21: p (1 + (p - 1) / (p v)) on the first rank
            return min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1) / v
        case Schedule.ZB_H1 | Schedule.ZB_V:
            return min(m, p)  # DualPipe README; zero-bubble README
        case Schedule.ZB_H2:
            return min(m, 2 * p - 1)  # multi-GPU lecture
        case Schedule.V_HALF:
            return min(m, (p + 2) // 2)  # Qi et al., playground page of Controllable Memory
        case Schedule.V_MIN:
            return min(m, (p + 4) // 3)  # the same
        case Schedule.DUALPIPE:
            return p + 1  # DualPipe README
        case Schedule.DUALPIPE_V:
            return (2 * p + 1) / 2  # DualPipe README: PP + 1 chunks, PP = 2p, two a rank
        case Schedule.TERAPIPE | Schedule.SEQ_1F1B:
            raise AssertionError(schedule)
