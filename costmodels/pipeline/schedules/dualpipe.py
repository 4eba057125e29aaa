"""DualPipe (DeepSeek-V3 report; deepseek-ai/DualPipe): a forward of one micro-batch overlaps a backward of another.

It feeds micro-batches from both ends of the pipeline, so each rank holds two parts of the model. Its steps are counted by how
far a rank is from the middle.
"""

from __future__ import annotations

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.program import Chunk, RankSlots, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassTimes,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    fills_in_two_rounds,
    from_both_ends,
)


def _require(size: PipelineSize) -> None:
    p, m = size.n_ranks, size.n_microbatches
    if p % 2 or m % 2 or m < 2 * p:
        raise InvalidInputError(
            "DualPipe can't run this",
            given=f"{m} micro-batches on {p} ranks",
            allowed="both even, at least 2 micro-batches a rank",
        )


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size.n_ranks, size.n_microbatches) for rank in range(size.n_ranks)]


def _order(rank: int, n_ranks: int, n_microbatches: int) -> list[Slot]:
    """Order of a DualPipe rank: the first half of the micro-batches enters at rank 0, the second at the last rank."""
    half = n_microbatches // 2
    along, against = Chunk(rank), Chunk(n_ranks - 1 - rank, first_microbatch=half)
    near_first = rank < n_ranks // 2
    chunks = (along, against) if near_first else (against, along)
    from_end = rank if near_first else n_ranks - 1 - rank
    return dualpipe_steps(chunks, from_end, n_ranks // 2 - 1 - from_end, half)


def dualpipe_steps(chunks: tuple[Chunk, Chunk], from_end: int, from_middle: int, n_microbatches: int) -> list[Slot]:
    """The steps of a rank that sees ``n_microbatches`` on each of its chunks; chunk 0 is the one fed from the nearer end."""
    order = RankSlots(chunks)
    order.forward(0, 2 * from_middle)
    for _ in range(from_end + 1):
        order.forward(0)
        order.forward(1)
    for _ in range(from_middle):
        order.input(1)
        order.weight()
        order.forward(1)
    for i in range(n_microbatches - 2 * from_middle - from_end - 1):
        if i == 0 and from_middle == 0:
            order.forward(0)  # the first pair at the middle runs apart, so that the forward can be sent on earlier
            order.backward(1)
        else:
            order.overlapped(0, 1)
        order.overlapped(1, 0)
    for _ in range(from_middle):
        order.backward(1)
        order.overlapped(1, 0)
    for i in range(2 * (from_end + 1)):
        if i <= from_end:
            order.backward(1 - i % 2)
        else:
            order.input(1 - i % 2)
    for _ in range(from_middle):
        order.weight()
        order.input(0)
    order.remaining_weights()
    return order.slots


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    if not times.all_equal or times.overlapped != 1:
        return None
    # DualPipe README
    return (size.n_ranks // 2 - 1) * (times.forward_s + times.backward_s + times.backward_s - 3 * times.weight_s)


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return size.n_ranks + 1  # DualPipe README


def _fills(size: PipelineSize) -> bool:
    return fills_in_two_rounds(size) and size.n_ranks % 2 == 0 and size.n_microbatches % 2 == 0


TRAITS = ScheduleTraits(
    schedule=Schedule.DUALPIPE,
    title="DualPipe",
    paths=from_both_ends,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight, fills=_fills),
    bubble_s=_bubble_s,
    require=_require,
    backward=Backward.SPLIT,
    pairs_passes=True,
)
