"""Pipeline schedules as event programs: order of each rank, timeline, bubble, activations in flight; and closed forms."""

from meshwright.costmodels.pipeline.closed_forms import (
    bubble_s,
    fills,
    one_f_one_b_step_s,
    paired_share,
    peak_in_flight,
    slices_waiting_ratio,
    waiting_ratio,
)
from meshwright.costmodels.pipeline.placement import (
    build,
    chunks_per_rank,
    held_passes,
    held_tokens,
    n_copies,
    n_positions,
    positions_of_ranks,
)
from meshwright.costmodels.pipeline.program import Action, PassKind, Program, Schedule
from meshwright.costmodels.pipeline.schedules.table import TOKEN_SLICED, TRAITS, names_in
from meshwright.costmodels.pipeline.timeline import Durations, Sends, TimedSlot, Timeline, simulate
from meshwright.costmodels.pipeline.traits import (
    Backward,
    ChunkCount,
    HeldMicrobatches,
    PassShares,
    PipelineRuntime,
    ScheduleTraits,
    SendTiming,
    TokenSlices,
    WholeSequences,
)

__all__ = [
    "TOKEN_SLICED",
    "TRAITS",
    "Action",
    "Backward",
    "ChunkCount",
    "Durations",
    "HeldMicrobatches",
    "PassKind",
    "PassShares",
    "PipelineRuntime",
    "Program",
    "Schedule",
    "ScheduleTraits",
    "SendTiming",
    "Sends",
    "TimedSlot",
    "Timeline",
    "TokenSlices",
    "WholeSequences",
    "bubble_s",
    "build",
    "chunks_per_rank",
    "fills",
    "held_passes",
    "held_tokens",
    "n_copies",
    "n_positions",
    "names_in",
    "one_f_one_b_step_s",
    "paired_share",
    "peak_in_flight",
    "positions_of_ranks",
    "simulate",
    "slices_waiting_ratio",
    "waiting_ratio",
]
