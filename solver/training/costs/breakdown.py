"""Where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost
from meshwright.solver.training.costs.stage_table import StageTable


def time_breakdown(decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> TimeBreakdown:
    """Where the step's time goes, on the stage that takes longest."""
    m = decision.candidate.n_microbatches
    longest = max(range(len(cost.stages)), key=lambda n: (m * cost.stages[n].time_s + cost.stages[n].extra_s, -n))
    return rank_breakdown(decision, cost, tables, longest)


def rank_breakdown(decision: Decision, cost: DecisionCost, tables: Sequence[StageTable], rank: int) -> TimeBreakdown:
    """Where the step's time goes on one pipeline rank; what is left over is pipeline bubble.

    T >= m t_i + d_i for every stage i, so the bubble is never negative.
    """
    m = decision.candidate.n_microbatches
    spans, table, stage = decision.spans_of_rank(rank), tables[rank], cost.stages[rank]
    layers = np.r_[tuple(span.layers for span in spans)]
    parts = table.parts
    compute, tp, cp, dp, ep = (
        float(part[layers].sum()) / decision.n_copies
        for part in (parts.compute_s, parts.tp_comm_s, parts.cp_comm_s, parts.dp_comm_s, parts.ep_comm_s)
    )
    optimizer = float(parts.optimizer_s[layers].sum()) + parts.step_host_s
    modes = decision.candidate.recompute
    moves = sum(float(parts.moves_s[span.of_mode(modes)].sum()) for span in spans)
    moves /= decision.n_copies
    rerun = stage.time_s - stage.sends_s - compute - tp - cp - dp - ep - moves
    return TimeBreakdown(
        compute_s=m * compute,
        recompute_s=m * (rerun if spans[0].recompute is not Recompute.NONE else 0.0),
        tp_comm_s=m * tp,
        cp_comm_s=m * cp,
        pp_comm_s=m * stage.sends_s,
        dp_comm_s=m * dp + stage.extra_s - optimizer,
        bubble_s=max(0.0, cost.step_time_s - m * stage.time_s - stage.extra_s),
        optimizer_s=optimizer,
        ep_comm_s=m * ep,
        offload_s=m * moves,
    )
