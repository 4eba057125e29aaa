"""Where the parts of the model lie under a schedule, and how many passes of each part a rank holds at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.pipeline.build import build, chunks_per_rank, require_valid
from meshwright.costmodels.pipeline.linear import interleaved_chunks
from meshwright.costmodels.pipeline.program import Kind, Program, Schedule

IntArray = npt.NDArray[np.int64]

_STEADY_ROUNDS = 4
"""Micro-batches a rank after which what a rank holds only repeats."""


def n_positions(schedule: Schedule, n_ranks: int, n_chunks: int = 1) -> int:
    """Parts that the model is cut in."""
    return n_ranks * chunks_per_rank(schedule, n_chunks)


def n_copies(schedule: Schedule) -> int:
    """Ranks that hold each part: two where micro-batches enter at both ends (DualPipe), else one."""
    return 2 if schedule is Schedule.DUALPIPE else 1


@lru_cache(maxsize=4096)
def positions_of_ranks(schedule: Schedule, n_ranks: int, n_chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """Positions of the parts that each rank holds, ascending; position 0 is the start of the model."""
    p = n_ranks
    match schedule:
        case Schedule.DUALPIPE:
            return tuple(tuple(sorted((rank, p - 1 - rank))) for rank in range(p))
        case Schedule.ZB_V | Schedule.V_HALF | Schedule.V_MIN | Schedule.DUALPIPE_V:
            return tuple((rank, 2 * p - 1 - rank) for rank in range(p))
        case _:
            chunks = chunks_per_rank(schedule, n_chunks)
            return tuple(tuple(chunk * p + rank for chunk in range(chunks)) for rank in range(p))


def held_passes(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> tuple[IntArray, ...]:
    """For each rank ``[moment, part]``: forward passes of each of its parts whose activations it holds.

    Of all moments of the step only those are kept in which no other moment holds at least as much of every part, so the
    most that a rank needs is the largest ``held @ bytes`` over rows. Counted as in `Program.peak_chunks`, from the order of
    the program alone; parts in the order of `positions_of_ranks`. Raises InvalidInputError as `build`.
    """
    if schedule is not Schedule.GPIPE:
        n_microbatches = min(n_microbatches, _STEADY_ROUNDS * n_ranks)
    return _held_passes(schedule, n_ranks, n_microbatches, n_chunks)


@lru_cache(maxsize=4096)
def _held_passes(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int) -> tuple[IntArray, ...]:
    if schedule is Schedule.INTERLEAVED:
        require_valid(schedule, n_ranks, n_microbatches, n_chunks)
        return tuple(_most_held_of_chunks(rank, n_ranks, n_microbatches, n_chunks) for rank in range(n_ranks))
    program = build(schedule, n_ranks, n_microbatches, n_chunks=max(2, n_chunks))
    positions = positions_of_ranks(schedule, n_ranks, n_chunks)
    return tuple(_most_held(program, rank, of_rank) for rank, of_rank in enumerate(positions))


def _most_held(program: Program, rank: int, positions: tuple[int, ...]) -> IntArray:
    column = {position: i for i, position in enumerate(positions)}
    taken = np.zeros((len(program.orders[rank]), len(positions)), np.int64)
    freed = np.zeros_like(taken)
    for moment, slot in enumerate(program.orders[rank]):
        for action in slot:
            if action.kind is Kind.FORWARD:
                taken[moment, column[action.position]] += 1
            elif action.kind in (Kind.BACKWARD, Kind.WEIGHT):
                freed[moment, column[action.position]] += 1
    held = np.unique(np.cumsum(taken, axis=0) - np.cumsum(freed, axis=0) + freed, axis=0)
    return held[~_dominated(held)]


def _most_held_of_chunks(rank: int, n_ranks: int, n_microbatches: int, n_chunks: int) -> IntArray:
    """As `_most_held` for interleaved 1F1B: chunk by chunk of its order, without a program of its actions.

    Held is most just before a backward: after the first forwards, and then after each forward.
    """
    chunks, warmup = interleaved_chunks(rank, n_ranks, n_microbatches, n_chunks)
    forwards = np.cumsum(chunks[:, None] == np.arange(n_chunks), axis=0)
    backwards = np.concatenate([np.zeros((1, n_chunks), np.int64), forwards[:, ::-1]])
    held = np.unique(forwards[warmup - 1 :] - backwards[: len(forwards) - warmup + 1], axis=0)
    return held[~_dominated(held)]


def _dominated(rows: IntArray) -> npt.NDArray[np.bool_]:
    """Return, for each row, True if another row is at least as large in every column; rows differ."""
    at_least = np.all(rows[None, :, :] >= rows[:, None, :], axis=2)
    np.fill_diagonal(at_least, False)
    return np.asarray(at_least.any(axis=1))
