"""The time that a step waits for its pipeline, as a multiple of the wait of 1F1B: the one figure that the search needs.

A step of m micro-batches on p equal ranks, each t a micro-batch, takes ``m t + ratio (p - 1) t`` from its first start to its
last end: 1F1B has the ratio 1, interleaving 1/v, zero-bubble schedules less, schedules that save memory more. Unlike the
bubble of the zero-bubble papers (`costmodels.pipeline.timeline.Timeline.bubble_s`) it counts the wait for the first
micro-batch, because a step ends when all ranks are done.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.token_slice import SliceShares
from meshwright.costmodels.pipeline.build import valid_size
from meshwright.costmodels.pipeline.makespan import makespan_s
from meshwright.costmodels.pipeline.placement import chunks_per_rank
from meshwright.costmodels.pipeline.program import Schedule
from meshwright.costmodels.pipeline.schedules.table import TRAITS
from meshwright.costmodels.pipeline.traits import PassShares, PipelineSize, TokenSlices, WholeSequences

_STEADY_ROUNDS = (2, 4)
"""Micro-batches a rank from which on every further one adds the same time (compared with programs in the tests)."""


def fills(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> bool:
    """Return True if a schedule of whole sequences is defined here and has the micro-batches to reach its steady state. Ratios
    hold there."""
    sequences = TRAITS[schedule].sequences
    return isinstance(sequences, WholeSequences) and sequences.fills(PipelineSize(n_ranks, n_microbatches, n_chunks))


def waiting_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares, *, n_chunks: int = 1) -> float:
    """Return the wait of ``n_ranks`` equal ranks in a step over the ``(p - 1) t`` of 1F1B.

    By the closed form of the schedule's traits, else by its event program, extended over further micro-batches, which all
    take the same time. Raises InvalidInputError where `fills` says no.
    """
    sequences = TRAITS[schedule].sequences
    if not isinstance(sequences, WholeSequences) or not fills(schedule, n_ranks, n_microbatches, n_chunks):
        given = f"{schedule.value}, {n_ranks} ranks, {n_chunks} chunks, {n_microbatches} micro-batches"
        raise InvalidInputError(
            "the schedule can't fill this pipeline", given=given, allowed="see meshwright.costmodels.pipeline.fills"
        )
    closed = sequences.waiting_ratio(PipelineSize(n_ranks, n_microbatches, n_chunks), shares)
    return _program_ratio(schedule, n_ranks, n_microbatches, shares) if closed is None else closed


def slices_waiting_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: SliceShares) -> float:
    """`waiting_ratio` of a schedule of token slices; at least `SliceShares.longest`."""
    sequences = TRAITS[schedule].sequences
    assert isinstance(sequences, TokenSlices)
    return sequences.waiting_ratio(n_ranks, n_microbatches, shares)


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
    valid_size(schedule, n_ranks, n_microbatches)
    # A rank of a schedule with two paths runs half of the micro-batches on each of its two parts.
    chunks = chunks_per_rank(schedule)
    takes = makespan_s(
        schedule,
        n_ranks,
        n_microbatches,
        forward_s=shares.forward / chunks,
        input_s=shares.input / chunks,
        weight_s=shares.weight / chunks,
    )
    return max(0.0, takes - n_microbatches)
