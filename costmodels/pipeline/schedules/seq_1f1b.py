"""Seq1F1B (Sun et al. 2024): token slices in the order of 1F1B."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline.program import Schedule, Slot, slice_passes
from meshwright.costmodels.pipeline.traits import PipelineSize, ScheduleTraits, TokenSlices, along, fill_and_drain_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEADY_SLICES = 2
"""Slices a rank from which on every further micro-batch adds the same time (compared with programs in the tests)."""


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size.n_ranks, size.n_microbatches, size.n_slices) for rank in range(size.n_ranks)]


def _order(rank: int, n_ranks: int, n_microbatches: int, n_slices: int) -> list[Slot]:
    """1F1B over slices (Seq1F1B, Sun et al. 2024, section 3.2): a whole micro-batch goes forward before its first backward, so
    a rank begins with ``n_slices - 1`` more forwards than that of 1F1B."""
    forwards, backwards = slice_passes(rank, n_microbatches, n_slices)
    warmup = _warmup(rank, n_ranks, n_microbatches, n_slices)
    order = forwards[:warmup]
    for backward, forward in zip(backwards, forwards[warmup:], strict=False):
        order += [backward, forward]
    return order + backwards[len(forwards) - warmup :]


def _warmup(rank: int, n_ranks: int, n_microbatches: int, n_slices: int) -> int:
    """Forwards of slices that a rank runs before its first backward."""
    return min(n_ranks - 1 - rank + n_slices, n_microbatches * n_slices)


def _waiting_ratio(n_ranks: int, n_microbatches: int, shares: SliceShares) -> float:
    """Also what slices of unequal times make ranks wait for one another: by the program, extended over further micro-batches,
    which all take the same time."""
    early = -(-_STEADY_SLICES * n_ranks // len(shares.forward)) + 1
    if n_microbatches <= 2 * early:
        return _program_ratio(n_ranks, n_microbatches, shares)
    at_early, at_late = (_program_ratio(n_ranks, count, shares) for count in (early, 2 * early))
    return at_late + (at_late - at_early) / early * (n_microbatches - 2 * early)


@lru_cache(maxsize=4096)
def _program_ratio(n_ranks: int, n_microbatches: int, shares: SliceShares) -> float:
    forward_s, backward_s = np.array(shares.forward), np.array(shares.backward)
    warmups = np.array([_warmup(rank, n_ranks, n_microbatches, len(forward_s)) for rank in range(n_ranks)], np.int64)
    makespan_s = float(_makespan_s(forward_s, backward_s, warmups, n_microbatches))
    return max(shares.longest, (makespan_s - n_microbatches) / (n_ranks - 1))


@kept_compiled
def _makespan_s(forward_s: Floats, backward_s: Floats, warmups: Ints, n_microbatches: int) -> float:
    """Makespan of `_order` on equal ranks: each runs what is next as soon as its neighbour has sent it."""
    n_slices, n_ranks = forward_s.shape[0], warmups.shape[0]
    n = n_microbatches * n_slices
    forward_end_s = np.full((n_ranks + 1, n), -1.0)
    backward_end_s = np.full((n_ranks + 1, n), -1.0)
    # What enters the first rank and, of gradients, the last is there from the start.
    forward_end_s[0] = 0.0
    backward_end_s[n_ranks] = 0.0
    done = np.zeros(n_ranks, np.int64)
    free_s = np.zeros(n_ranks)
    left = 2 * n * n_ranks
    while left:
        for rank in range(n_ranks):
            while done[rank] < 2 * n:
                slot, warmup = done[rank], warmups[rank]
                since = slot - warmup
                is_forward = since < 0 or (since % 2 == 1 and slot < 2 * n - warmup)
                if is_forward:
                    number = slot if since < 0 else warmup + since // 2
                    arrived_s = forward_end_s[rank, number]
                else:
                    place = since // 2 if slot < 2 * n - warmup else slot - n
                    number = place - place % n_slices + n_slices - 1 - place % n_slices
                    arrived_s = backward_end_s[rank + 1, number]
                if arrived_s < 0.0:
                    break
                start_s = max(free_s[rank], arrived_s)
                if is_forward:
                    free_s[rank] = start_s + forward_s[number % n_slices]
                    forward_end_s[rank + 1, number] = free_s[rank]
                else:
                    free_s[rank] = start_s + backward_s[number % n_slices]
                    backward_end_s[rank, number] = free_s[rank]
                done[rank] += 1
                left -= 1
    return float(free_s.max())


def _held_tokens(n_ranks: int, n_microbatches: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    n = len(lengths)
    # Longer steps repeat their first rounds.
    count = min(n_microbatches, -(-n_ranks // n) + 2)
    arriving = np.tile(np.array(lengths, np.int64), count)
    taken = np.concatenate([[0], np.cumsum(arriving)])
    freed = np.concatenate([[0], np.cumsum(np.tile(np.array(lengths[::-1], np.int64), count))])
    warmups = (_warmup(rank, n_ranks, count, n) for rank in range(n_ranks))
    return tuple(int((taken[warmup:] - freed[: len(taken) - warmup]).max()) for warmup in warmups)


def _length_weights(_: int, __: int) -> tuple[int, int]:
    """Slices of unequal times delay one another at every step: the longest alone counts."""
    return 0, 1


TRAITS = ScheduleTraits(
    schedule=Schedule.SEQ_1F1B,
    title="Seq1F1B",
    paths=along,
    orders=_orders,
    sequences=TokenSlices(waiting_ratio=_waiting_ratio, held_tokens=_held_tokens, length_weights=_length_weights),
    bubble_s=fill_and_drain_s,
)
