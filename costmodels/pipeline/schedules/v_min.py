"""V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS'24): a third of the memory of 1F1B."""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Schedule, Slot, repeated_block_orders
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassTimes,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    out_and_back,
)


def _orders(size: PipelineSize) -> list[list[Slot]]:
    n_ranks = size.n_ranks
    shift = 2 if n_ranks % 3 == 0 else 0
    # offsets: Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS'24), V-Min building block
    blocks = [(i, 2 * n_ranks - i - 1, 2 * n_ranks + shift + i, 4 * n_ranks + shift - i - 1) for i in range(n_ranks)]
    return repeated_block_orders(blocks, size.n_microbatches, most_held=2 * _most_held(n_ranks))


def _most_held(n_ranks: int) -> int:
    """Micro-batches (Qi et al., playground page of Controllable Memory)."""
    return (n_ranks + 4) // 3


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    p = size.n_ranks
    if size.n_microbatches < p or not times.all_equal:
        return None
    # of our program; the authors' playground page says about 2p/3m of a step, which is 4p
    return times.forward_s * max(0, 4 * p - (3 if p % 3 == 0 else 5))


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, _most_held(size.n_ranks))


TRAITS = ScheduleTraits(
    schedule=Schedule.V_MIN,
    title="V-Min",
    paths=out_and_back,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight),
    bubble_s=_bubble_s,
    backward=Backward.SPLIT,
)
