"""Pipeline schedules as event programs: order of each rank, timeline, bubble, activations in flight; and closed forms."""

from meshwright.costmodels.pipeline.build import build, chunks_per_rank
from meshwright.costmodels.pipeline.closed_forms import bubble_s, one_f_one_b_step_s, peak_in_flight
from meshwright.costmodels.pipeline.placement import held_passes, n_copies, n_positions, positions_of_ranks
from meshwright.costmodels.pipeline.program import TOKEN_SLICED, Action, Kind, Program, Schedule
from meshwright.costmodels.pipeline.timeline import Durations, Sends, Span, Timeline, simulate
from meshwright.costmodels.pipeline.token_slices import held_tokens, slices_waiting_ratio
from meshwright.costmodels.pipeline.waiting import PassShares, fills, waiting_ratio

__all__ = [
    "TOKEN_SLICED",
    "Action",
    "Durations",
    "Kind",
    "PassShares",
    "Program",
    "Schedule",
    "Sends",
    "Span",
    "Timeline",
    "bubble_s",
    "build",
    "chunks_per_rank",
    "fills",
    "held_passes",
    "held_tokens",
    "n_copies",
    "n_positions",
    "one_f_one_b_step_s",
    "peak_in_flight",
    "positions_of_ranks",
    "simulate",
    "slices_waiting_ratio",
    "waiting_ratio",
]
