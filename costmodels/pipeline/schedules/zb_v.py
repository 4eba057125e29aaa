"""ZB-V (Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS'24): along the ranks and back, two chunks a rank.

A rank is nearest to the turn when its number is greatest. Chunk 0 is the one on the way out, chunk 1 the one on the way
back, which holds the later part of the model.
"""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Chunk, RankSlots, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassTimes,
    PipelineRuntime,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    out_and_back,
)


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size.n_ranks, size.n_microbatches) for rank in range(size.n_ranks)]


def _order(rank: int, n_ranks: int, n_microbatches: int) -> list[Slot]:
    """Order of ZB-V (Zero Bubble, section on V schedules): never more than 1F1B in memory.

    Fewer micro-batches than fill the pipeline run as the first of so many that do.
    """
    n = max(n_microbatches, 2 * n_ranks - 1)
    to_turn = n_ranks - rank
    order = RankSlots((Chunk(rank), Chunk(2 * n_ranks - 1 - rank)))
    order.forward(0, 2 * to_turn - 1)
    for _ in range(rank):
        order.forward(1)
        order.forward(0)
    for _ in range(to_turn):
        order.forward(1)
        _input_and_weight(order, 1)
    started = 2 * to_turn - 1 + rank
    for _ in range(n_ranks, n):
        if started < n:
            order.forward(0)
            started += 1
        _input_and_weight(order, 0)
        order.forward(1)
        _input_and_weight(order, 1)
    for _ in range(rank):
        order.input(0)
        order.input(1)
    for _ in range(to_turn):
        order.input(0)
        order.weight_of(0)
    for _ in range(rank):
        order.weight_of(1)
    order.remaining_weights()
    return [slot for slot in order.slots if slot[0].microbatch < n_microbatches]


def _input_and_weight(order: RankSlots, chunk: int) -> None:
    order.input(chunk)
    order.weight()


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    return 0.0 if size.n_microbatches >= 2 * size.n_ranks - 1 and times.all_equal else None  # zero-bubble README


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, size.n_ranks)  # zero-bubble README


TRAITS = ScheduleTraits(
    schedule=Schedule.ZB_V,
    title="ZB-V",
    paths=out_and_back,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight),
    bubble_s=_bubble_s,
    backward=Backward.SPLIT,
    run_by=((PipelineRuntime.PYTORCH, "ZBVZeroBubble"),),
)
