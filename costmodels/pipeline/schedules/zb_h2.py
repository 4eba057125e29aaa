"""ZB-H2 (Qi et al., Zero Bubble, ICLR'24): as ZB-H1 with more forwards in flight, so that hardly any bubble is left."""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Schedule, Slot
from meshwright.costmodels.pipeline.schedules.zb_h1 import zero_bubble_order
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassShares,
    PassTimes,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    along,
)


def _orders(size: PipelineSize) -> list[list[Slot]]:
    p, m = size.n_ranks, size.n_microbatches
    return [zero_bubble_order(rank, m, warmup=2 * (p - rank) - 1, most_held=2 * p - 1) for rank in range(p)]


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    if size.n_microbatches < 2 * size.n_ranks - 1 or times.weight_s > times.forward_s:
        return None
    # multi-GPU lecture; no bubble is left where weight halves are long
    return (size.n_ranks - 1) * max(0.0, times.forward_s + times.backward_s - 3 * times.weight_s)


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, 2 * size.n_ranks - 1)  # multi-GPU lecture


def _fills(size: PipelineSize) -> bool:
    return size.n_ranks > 1 and size.n_microbatches >= 2 * size.n_ranks - 1


def _waiting_ratio(_: PipelineSize, shares: PassShares) -> float | None:
    """Zero Bubble, ICLR'24, Table 1, with the wait for the first micro-batch."""
    if shares.weight > shares.forward:
        return None
    return max(shares.forward, shares.forward + shares.input - 2 * shares.weight)


TRAITS = ScheduleTraits(
    schedule=Schedule.ZB_H2,
    title="ZB-H2",
    paths=along,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight, fills=_fills, waiting_ratio=_waiting_ratio),
    bubble_s=_bubble_s,
    backward=Backward.SPLIT,
)
