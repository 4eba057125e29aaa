"""Where the parts of the model lie under a schedule, and how many passes of each part a rank holds at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.program import PassKind, Program, Schedule
from meshwright.costmodels.pipeline.schedules.table import TOKEN_SLICED, TRAITS
from meshwright.costmodels.pipeline.traits import (
    HeldMicrobatches,
    IntArray,
    PipelineSize,
    TokenSlices,
    WholeSequences,
    undominated,
)

# Builds the program of a schedule.


def build(schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2) -> Program:
    """The program of a schedule on ``n_ranks`` ranks.

    ``n_chunks`` counts for schedules of any number of chunks only, ``n_slices`` for those of token slices. Raises
    InvalidInputError where a schedule is not defined, as its traits say: interleaved 1F1B needs two chunks or more and
    micro-batches in multiples of ranks; DualPipe an even number of ranks and of micro-batches, and twice as many micro-batches
    as ranks; DualPipeV as many micro-batches as DualPipe on twice the ranks has in one direction.
    """
    slices = n_slices if schedule in TOKEN_SLICED else 1
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks, n_slices=slices)
    if slices < 1:
        raise InvalidInputError("bad number of token slices", given=slices, allowed="1 or more")
    traits = TRAITS[schedule]
    paths = traits.paths(n_ranks, n_chunks)
    per_path = n_microbatches // len(paths)
    path_of = tuple(microbatch // per_path for microbatch in range(n_microbatches) for _ in range(slices))
    return Program(schedule, paths, path_of, tuple(tuple(order) for order in traits.orders(size)), slices)


def valid_size(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 2, *, n_slices: int = 1) -> PipelineSize:
    """A pipeline's size; raises InvalidInputError where the schedule is not defined on it, see `build`."""
    if n_ranks < 1 or n_microbatches < 1:
        raise InvalidInputError("bad pipeline", given=(n_ranks, n_microbatches), allowed="1 or more ranks and micro-batches")
    size = PipelineSize(n_ranks, n_microbatches, n_chunks, n_slices)
    TRAITS[schedule].require(size)
    return size


_STEADY_ROUNDS = 4
"""Micro-batches a rank after which what a rank holds only repeats."""


@lru_cache(maxsize=4096)
def chunks_per_rank(schedule: Schedule, n_chunks: int = 2) -> int:
    """Parts of the model that a micro-batch passes on each rank; ``n_chunks`` counts for schedules of any number only."""
    return len(TRAITS[schedule].paths(1, n_chunks)[0])


def n_positions(schedule: Schedule, n_ranks: int, n_chunks: int = 1) -> int:
    """Parts that the model is cut in."""
    return n_ranks * chunks_per_rank(schedule, n_chunks)


@lru_cache(maxsize=4096)
def n_copies(schedule: Schedule) -> int:
    """Ranks that hold each part: two where micro-batches enter at both ends (DualPipe), else one."""
    return len(TRAITS[schedule].paths(1, 1))


@lru_cache(maxsize=4096)
def positions_of_ranks(schedule: Schedule, n_ranks: int, n_chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """Positions of the parts that each rank holds, ascending; position 0 is the start of the model."""
    held: list[set[int]] = [set() for _ in range(n_ranks)]
    for path in TRAITS[schedule].paths(n_ranks, n_chunks):
        for position, rank in enumerate(path):
            held[rank].add(position)
    return tuple(tuple(sorted(positions)) for positions in held)


def held_passes(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> tuple[IntArray, ...]:
    """For each rank ``[moment, part]``: forward passes of each of its parts whose activations it holds.

    Of all moments of the step only those are kept in which no other moment holds at least as much of every part, so the
    most that a rank needs is the largest ``held @ bytes`` over rows. Counted as in `Program.peak_chunks`, from the order of
    the program alone; parts in the order of `positions_of_ranks`. Raises InvalidInputError as `build`.
    """
    sequences = TRAITS[schedule].sequences
    if not isinstance(sequences, WholeSequences) or sequences.held is HeldMicrobatches.STEADY:
        n_microbatches = min(n_microbatches, _STEADY_ROUNDS * n_ranks)
    return _held_passes(schedule, n_ranks, n_microbatches, n_chunks)


@lru_cache(maxsize=4096)
def _held_passes(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int) -> tuple[IntArray, ...]:
    sequences = TRAITS[schedule].sequences
    if isinstance(sequences, WholeSequences) and sequences.held_passes is not None:
        size = valid_size(schedule, n_ranks, n_microbatches, n_chunks)
        return tuple(sequences.held_passes(rank, size) for rank in range(n_ranks))
    program = build(schedule, n_ranks, n_microbatches, n_chunks=max(2, n_chunks))
    positions = positions_of_ranks(schedule, n_ranks, n_chunks)
    return tuple(_most_held(program, rank, of_rank) for rank, of_rank in enumerate(positions))


def _most_held(program: Program, rank: int, positions: tuple[int, ...]) -> IntArray:
    column = {position: i for i, position in enumerate(positions)}
    taken = np.zeros((len(program.orders[rank]), len(positions)), np.int64)
    freed = np.zeros_like(taken)
    for moment, slot in enumerate(program.orders[rank]):
        for action in slot:
            if action.kind is PassKind.FORWARD:
                taken[moment, column[action.position]] += 1
            elif action.kind in (PassKind.BACKWARD, PassKind.WEIGHT):
                freed[moment, column[action.position]] += 1
    return undominated(np.cumsum(taken, axis=0) - np.cumsum(freed, axis=0) + freed)


def held_tokens(schedule: Schedule, n_ranks: int, n_microbatches: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Most tokens of a sequence whose activations each rank holds at once, under slices of so many tokens."""
    sequences = TRAITS[schedule].sequences
    assert isinstance(sequences, TokenSlices)
    return sequences.held_tokens(n_ranks, n_microbatches, lengths)
