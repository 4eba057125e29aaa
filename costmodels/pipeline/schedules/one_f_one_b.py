"""1F1B (PipeDream-Flush; Narayanan et al., ICML'21): a backward for each forward, once the ranks behind are busy."""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Chunk, RankSlots, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    PipelineRuntime,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    along,
    fill_and_drain_s,
    fills_in_one_chunk,
    waits_as_1f1b,
)


def one_f_one_b_order(rank: int, n_microbatches: int, *, warmup: int) -> list[Slot]:
    """``warmup`` forwards, then a backward for each forward."""
    order = RankSlots((Chunk(rank),))
    warmup = min(warmup, n_microbatches)
    order.forward(0, warmup)
    for _ in range(n_microbatches - warmup):
        order.backward(0)
        order.forward(0)
    order.backward(0, warmup)
    return order.slots


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [one_f_one_b_order(rank, size.n_microbatches, warmup=size.n_ranks - rank) for rank in range(size.n_ranks)]


def _peak_in_flight(rank: int, size: PipelineSize) -> float:
    return min(size.n_microbatches, size.n_ranks - rank)


TRAITS = ScheduleTraits(
    schedule=Schedule.ONE_F_ONE_B,
    title="1F1B",
    paths=along,
    orders=_orders,
    sequences=WholeSequences(peak_in_flight=_peak_in_flight, fills=fills_in_one_chunk, waiting_ratio=waits_as_1f1b),
    bubble_s=fill_and_drain_s,
    run_by=(
        (PipelineRuntime.MEGATRON_CORE, "forward_backward_pipelining_without_interleaving"),
        (PipelineRuntime.DEEPSPEED, "TrainSchedule"),
        (PipelineRuntime.PYTORCH, "1F1B"),
        (PipelineRuntime.NANOTRON, "1f1b"),
    ),
)
