"""TeraPipe (Li et al., ICML'21): token slices in the order of GPipe."""

from __future__ import annotations

from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline.program import Schedule, Slot, slice_passes
from meshwright.costmodels.pipeline.traits import PipelineSize, ScheduleTraits, TokenSlices, along, fill_and_drain_s


def _orders(size: PipelineSize) -> list[list[Slot]]:
    """All forwards, then all backwards (section 3.2)."""
    passes = (slice_passes(rank, size.n_microbatches, size.n_slices) for rank in range(size.n_ranks))
    return [[*forwards, *backwards] for forwards, backwards in passes]


def _waiting_ratio(_: int, __: int, shares: SliceShares) -> float:
    """All forwards of equal ranks take ``sum f + (p - 1) max f`` (equation 3, here of each pass)."""
    return shares.longest


def _held_tokens(n_ranks: int, n_microbatches: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    return (n_microbatches * sum(lengths),) * n_ranks


def _length_weights(n_ranks: int, n_microbatches: int) -> tuple[int, int]:
    """``m sum t + (p - 1) max t`` (equation 3 and algorithm 1)."""
    return n_microbatches, n_ranks - 1


TRAITS = ScheduleTraits(
    schedule=Schedule.TERAPIPE,
    title="TeraPipe",
    paths=along,
    orders=_orders,
    sequences=TokenSlices(waiting_ratio=_waiting_ratio, held_tokens=_held_tokens, length_weights=_length_weights),
    bubble_s=fill_and_drain_s,
)
