"""ZB-H1 (Qi et al., Zero Bubble, ICLR'24): 1F1B with the backward split, in 1F1B's memory."""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Chunk, RankSlots, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassShares,
    PassTimes,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    along,
)


def zero_bubble_order(rank: int, n_microbatches: int, *, warmup: int, most_held: int) -> list[Slot]:
    """1F1B with the backward split: gradients of weights wait until memory needs them done (Zero Bubble, section 2).

    ``warmup`` forwards come first; as many weight halves wait as ``most_held`` forwards in flight allow. When the forwards
    are over, weight halves fill the time in which the next backward is on its way.
    """
    order = RankSlots((Chunk(rank),))
    warmup = min(warmup, n_microbatches)
    order.forward(0, warmup)
    for _ in range(n_microbatches - warmup):
        order.input(0)
        if order.held() >= most_held:
            order.weight()
        order.forward(0)
    for _ in range(warmup):
        order.input(0)
        order.weight()
    order.remaining_weights()
    return order.slots


def _orders(size: PipelineSize) -> list[list[Slot]]:
    p, m = size.n_ranks, size.n_microbatches
    return [zero_bubble_order(rank, m, warmup=p - rank, most_held=p) for rank in range(p)]


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    if size.n_microbatches < size.n_ranks or times.weight_s > times.forward_s:
        return None
    return (size.n_ranks - 1) * (times.forward_s + times.backward_s - 2 * times.weight_s)  # DualPipe README, ZB1P


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, size.n_ranks)  # DualPipe README


def _fills(size: PipelineSize) -> bool:
    return size.n_ranks > 1 and size.n_microbatches >= size.n_ranks


def _waiting_ratio(_: PipelineSize, shares: PassShares) -> float | None:
    """Zero Bubble, ICLR'24, Table 1, with the wait for the first micro-batch."""
    return shares.forward + shares.input - shares.weight if shares.weight <= shares.forward else None


TRAITS = ScheduleTraits(
    schedule=Schedule.ZB_H1,
    title="ZB-H1",
    paths=along,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight, fills=_fills, waiting_ratio=_waiting_ratio),
    bubble_s=_bubble_s,
    backward=Backward.SPLIT,
)
