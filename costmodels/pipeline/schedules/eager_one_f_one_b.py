"""Eager-1F1B (Zhuang et al., On Optimizing the Communication of Model Parallelism, MLSys'23).

1F1B with one more forward for each rank behind, so that what a rank waits for is on its way while it runs another micro-batch.
"""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Schedule, Slot
from meshwright.costmodels.pipeline.schedules.one_f_one_b import one_f_one_b_order
from meshwright.costmodels.pipeline.traits import (
    PipelineSize,
    ScheduleTraits,
    SendTiming,
    WholeSequences,
    along,
    fill_and_drain_s,
    fills_in_one_chunk,
    waits_as_1f1b,
)


def _warmup(rank: int, n_ranks: int) -> int:
    return 2 * (n_ranks - rank) - 1  # Zhuang et al., MLSys'23, section 4


def _orders(size: PipelineSize) -> list[list[Slot]]:
    ranks = range(size.n_ranks)
    return [one_f_one_b_order(rank, size.n_microbatches, warmup=_warmup(rank, size.n_ranks)) for rank in ranks]


def _peak_in_flight(rank: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, _warmup(rank, size.n_ranks))


TRAITS = ScheduleTraits(
    schedule=Schedule.EAGER_ONE_F_ONE_B,
    title="eager-1F1B",
    paths=along,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight, fills=fills_in_one_chunk, waiting_ratio=waits_as_1f1b),
    bubble_s=fill_and_drain_s,
    sends=SendTiming.UNDER_OTHER_MICROBATCHES,
)
