"""Plans that lost: the runners-up with the reason why."""

from __future__ import annotations

from dataclasses import asdict

from meshwright.costmodels.units import GIB
from meshwright.solver.answer.predicted import RunnerUp, TimeBreakdown
from meshwright.solver.training.costs.breakdown import time_breakdown
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.search.best_first import decision_tables
from meshwright.solver.training.search.search_result import SearchResult, Solved
from meshwright.solver.training.space.candidate_names import summary

MAX_RUNNERS_UP = 4

_PART_NAMES = {
    "compute_s": "more compute on the slowest stage",
    "recompute_s": "more recomputation",
    "tp_comm_s": "more tensor-parallel communication",
    "cp_comm_s": "more context-parallel communication",
    "pp_comm_s": "more pipeline sends",
    "dp_comm_s": "more exposed gradient and weight communication",
    "bubble_s": "a larger pipeline bubble",
    "optimizer_s": "a longer optimizer step",
    "offload_s": "more exposed moves of activations to the host and back",
}


def runners_up(costs: TrainingCosts, best: Solved, result: SearchResult) -> tuple[RunnerUp, ...]:
    """The best plan of each other mesh, fastest first, after the meshes that looked faster and did not fit."""
    seen = {best.decision.candidate.mesh}
    fit_somehow = {solved.decision.candidate.mesh for solved in (best, *result.alternatives)}
    refused: list[RunnerUp] = []
    for mesh, (candidate, shortfall) in result.refused.items():
        if mesh not in fit_somehow and len(refused) < MAX_RUNNERS_UP // 2:
            refused.append(
                RunnerUp(
                    summary(candidate),
                    None,
                    f"does not fit: stage {shortfall.stage} needs {shortfall.need_bytes / GIB:.1f} GiB where "
                    f"{shortfall.have_bytes / GIB:.1f} GiB are left beside the framework",
                )
            )
    slower: list[RunnerUp] = []
    for solved in sorted(result.alternatives, key=lambda s: (s.value, s.sort_key)):
        if solved.decision.candidate.mesh not in seen and len(slower) < MAX_RUNNERS_UP - len(refused):
            seen.add(solved.decision.candidate.mesh)
            slower.append(RunnerUp(summary(solved.decision.candidate), solved.value, _why_worse(costs, best, solved)))
    return (*refused, *slower)


def _why_worse(costs: TrainingCosts, best: Solved, other: Solved) -> str:
    """The part of the step that grew most, in words and numbers."""
    winner, loser = (asdict(_breakdown(costs, solved)) for solved in (best, other))
    extra_s = other.cost.step_time_s - best.cost.step_time_s
    part = max(_PART_NAMES, key=lambda name: loser[name] - winner[name])
    slower = f"{abs(extra_s) / best.cost.step_time_s:.1%} {'slower' if extra_s >= 0 else 'faster'}"
    if best.value != best.cost.step_time_s:
        slower = f"{other.value / best.value - 1:.1%} more energy and {slower}"
    if loser[part] - winner[part] <= 0:
        return f"{slower}: as fast, and later in the canonical order"
    return f"{slower}: {_PART_NAMES[part]} ({winner[part]:.3g} s -> {loser[part]:.3g} s)"


def _breakdown(costs: TrainingCosts, solved: Solved) -> TimeBreakdown:
    return time_breakdown(solved.decision, solved.cost, decision_tables(solved.decision, costs))
