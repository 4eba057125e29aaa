"""DualPipeV (deepseek-ai/DualPipe): half of a DualPipe folded at the middle, a V path with two chunks a rank."""

from __future__ import annotations

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.program import Chunk, Schedule, Slot
from meshwright.costmodels.pipeline.schedules.dualpipe import dualpipe_steps
from meshwright.costmodels.pipeline.traits import (
    Backward,
    PassTimes,
    PipelineRuntime,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    out_and_back,
)


def _require(size: PipelineSize) -> None:
    if size.n_microbatches < 2 * size.n_ranks:
        raise InvalidInputError(
            "DualPipeV can't run this",
            given=f"{size.n_microbatches} micro-batches on {size.n_ranks} ranks",
            allowed="at least 2 micro-batches a rank",
        )


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size.n_ranks, size.n_microbatches) for rank in range(size.n_ranks)]


def _order(rank: int, n_ranks: int, n_microbatches: int) -> list[Slot]:
    """Chunk 0 on the way out, chunk 1 on the way back."""
    return dualpipe_steps((Chunk(rank), Chunk(2 * n_ranks - 1 - rank)), rank, n_ranks - 1 - rank, n_microbatches)


def _bubble_s(size: PipelineSize, times: PassTimes) -> float | None:
    if not times.all_equal or times.overlapped != 1:
        return None
    # DualPipe README, PP = 2p stages
    return (size.n_ranks - 1) * (times.forward_s + times.backward_s + times.backward_s - 3 * times.weight_s)


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return (2 * size.n_ranks + 1) / 2  # DualPipe README: PP + 1 chunks, PP = 2p, two a rank


TRAITS = ScheduleTraits(
    schedule=Schedule.DUALPIPE_V,
    title="DualPipeV",
    paths=out_and_back,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight),
    bubble_s=_bubble_s,
    require=_require,
    backward=Backward.SPLIT,
    pairs_passes=True,
    run_by=((PipelineRuntime.PYTORCH, "DualPipeV"),),
)
