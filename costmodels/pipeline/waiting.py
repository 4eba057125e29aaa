"""The time that a step waits for its pipeline, as a multiple of the wait of 1F1B: the one figure that the search needs.

A step of m micro-batches on p equal ranks, each t a micro-batch, takes ``m t + ratio (p - 1) t`` from its first start to its
last end: 1F1B has the ratio 1, interleaving 1/v, zero-bubble schedules less, schedules that save memory more. Unlike the
bubble of the zero-bubble papers (`costmodels.pipeline.timeline.Timeline.bubble_s`) it counts the wait for the first
micro-batch, because a step ends when all ranks are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.build import build, chunks_per_rank, require_valid
from meshwright.costmodels.pipeline.program import Schedule
from meshwright.costmodels.pipeline.timeline import Durations, simulate

MAX_PROGRAM_RANKS = 32
"""Schedules without a closed form are run as programs up to this many ranks (0.2 s of CPU time at 32)."""

_STEADY_ROUNDS = (2, 4)
"""Micro-batches a rank from which on every further one adds the same time (compared with programs in the tests)."""


@dataclass(frozen=True, slots=True)
class PassShares:
    """Parts of a micro-batch's time on a rank: forward, backward to the input (with recomputation), to the weights."""

    forward: float
    input: float
    weight: float

    def __post_init__(self) -> None:
        if min(self.forward, self.input, self.weight) < 0 or abs(self.forward + self.input + self.weight - 1) > 1e-9:
            raise InvalidInputError("bad shares of a micro-batch", given=self, allowed="three parts of 1")


def fills(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> bool:
    """Return True if a schedule of whole sequences is defined here and has the micro-batches to reach its steady state. Ratios
    hold there."""
    p, m = n_ranks, n_microbatches
    match schedule:
        case Schedule.GPIPE | Schedule.ONE_F_ONE_B | Schedule.EAGER_ONE_F_ONE_B:
            return n_chunks == 1
        case Schedule.TERAPIPE | Schedule.SEQ_1F1B:
            return False  # `slices_waiting_ratio` speaks of these
        case Schedule.INTERLEAVED:
            return p > 1 and n_chunks > 1 and m % p == 0
        case Schedule.ZB_H1:
            return p > 1 and m >= p
        case Schedule.ZB_H2:
            return p > 1 and m >= 2 * p - 1
        case Schedule.DUALPIPE:
            return 1 < p <= MAX_PROGRAM_RANKS and p % 2 == 0 and m % 2 == 0 and m >= 2 * p
        case _:
            return 1 < p <= MAX_PROGRAM_RANKS and m >= 2 * p


def waiting_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares, *, n_chunks: int = 1) -> float:
    """Return the wait of ``n_ranks`` equal ranks in a step over the ``(p - 1) t`` of 1F1B.

    Closed forms: GPipe, 1F1B and eager-1F1B 1 (multi-GPU lecture), interleaved 1/v (Megatron-LM SC'21, section 2.2.2), ZB-H1
    ``f + i - w`` and ZB-H2 ``max(f, f + i - 2w)`` (Zero Bubble, ICLR'24, Table 1, with the wait for the first micro-batch).
    Others by their event program, extended over further micro-batches, which all take the same time. Raises
    InvalidInputError where `fills` says no.
    """
    if not fills(schedule, n_ranks, n_microbatches, n_chunks):
        given = f"{schedule.value}, {n_ranks} ranks, {n_chunks} chunks, {n_microbatches} micro-batches"
        raise InvalidInputError(
            "the schedule can't fill this pipeline", given=given, allowed="see meshwright.costmodels.pipeline.fills"
        )
    match schedule:
        case Schedule.GPIPE | Schedule.ONE_F_ONE_B | Schedule.EAGER_ONE_F_ONE_B:
            return 1.0
        case Schedule.INTERLEAVED:
            return 1.0 / n_chunks
        case Schedule.ZB_H1 if shares.weight <= shares.forward:
            return shares.forward + shares.input - shares.weight
        case Schedule.ZB_H2 if shares.weight <= shares.forward:
            return max(shares.forward, shares.forward + shares.input - 2 * shares.weight)
        case _:
            return _program_ratio(schedule, n_ranks, n_microbatches, shares)


def _program_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares) -> float:
    early, late = (rounds * n_ranks for rounds in _STEADY_ROUNDS)
    if n_microbatches <= late:
        return _program_wait(schedule, n_ranks, n_microbatches, shares) / (n_ranks - 1)
    at_early, at_late = (_program_wait(schedule, n_ranks, m, shares) for m in (early, late))
    each = (at_late - at_early) / (late - early)
    return (at_late + each * (n_microbatches - late)) / (n_ranks - 1)


@lru_cache(maxsize=4096)
def _program_wait(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares) -> float:
    """Makespan beyond ``m t`` of the event program, in units of t."""
    require_valid(schedule, n_ranks, n_microbatches)
    program = build(schedule, n_ranks, n_microbatches)
    # A rank of a schedule with two paths runs half of the micro-batches on each of its two parts.
    chunks = chunks_per_rank(schedule)
    durations = Durations.equal(
        program.n_positions,
        forward_s=shares.forward / chunks,
        input_s=shares.input / chunks,
        weight_s=shares.weight / chunks,
    )
    return max(0.0, simulate(program, durations).makespan_s - n_microbatches)
