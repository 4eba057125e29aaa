"""DualPipe and DualPipeV: a forward of one micro-batch overlaps a backward of another on the same rank.

DualPipe feeds micro-batches from both ends of the pipeline, so each rank holds two parts of the model; DualPipeV is its
half, folded at the middle: a V path with two chunks a rank. Both run the same steps (deepseek-ai/DualPipe), counted by how
far a rank is from the middle.
"""

from __future__ import annotations

from meshwright.costmodels.pipeline.order import Chunk, RankOrder
from meshwright.costmodels.pipeline.program import Slot


def dualpipe_order(rank: int, n_ranks: int, n_microbatches: int) -> list[Slot]:
    """Order of a DualPipe rank: the first half of the micro-batches enters at rank 0, the second at the last rank."""
    half = n_microbatches // 2
    along, against = Chunk(rank), Chunk(n_ranks - 1 - rank, first_microbatch=half)
    near_first = rank < n_ranks // 2
    chunks = (along, against) if near_first else (against, along)
    from_end = rank if near_first else n_ranks - 1 - rank
    return _steps(chunks, from_end, n_ranks // 2 - 1 - from_end, half)


def dualpipe_v_order(rank: int, n_ranks: int, n_microbatches: int) -> list[Slot]:
    """Order of a DualPipeV rank: chunk 0 on the way out, chunk 1 on the way back."""
    return _steps((Chunk(rank), Chunk(2 * n_ranks - 1 - rank)), rank, n_ranks - 1 - rank, n_microbatches)


def _steps(chunks: tuple[Chunk, Chunk], from_end: int, from_middle: int, n_microbatches: int) -> list[Slot]:
    """The steps of a rank that sees ``n_microbatches`` on each of its chunks; chunk 0 is the one fed from the nearer end."""
    order = RankOrder(chunks)
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
