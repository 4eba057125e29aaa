"""GPipe (Huang et al., NeurIPS'19): all forwards, then all backwards."""

from __future__ import annotations

from meshwright.costmodels.pipeline.program import Chunk, RankSlots, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    HeldMicrobatches,
    PipelineRuntime,
    PipelineSize,
    ScheduleTraits,
    WholeSequences,
    along,
    fill_and_drain_s,
    fills_in_one_chunk,
    waits_as_1f1b,
)


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size.n_microbatches) for rank in range(size.n_ranks)]


def _order(rank: int, n_microbatches: int) -> list[Slot]:
    order = RankSlots((Chunk(rank),))
    order.forward(0, n_microbatches)
    order.backward(0, n_microbatches)
    return order.slots


def _peak_in_flight(_: int, size: PipelineSize) -> float:
    return size.n_microbatches


TRAITS = ScheduleTraits(
    schedule=Schedule.GPIPE,
    title="GPipe",
    paths=along,
    orders=_orders,
    sequences=WholeSequences(
        peak_in_flight=_peak_in_flight, fills=fills_in_one_chunk, waiting_ratio=waits_as_1f1b, held=HeldMicrobatches.EVERY
    ),
    bubble_s=fill_and_drain_s,
    no_better_than=Schedule.ONE_F_ONE_B,
    run_by=((PipelineRuntime.PYTORCH, "GPipe"), (PipelineRuntime.NANOTRON, "afab")),
)
