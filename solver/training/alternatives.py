"""Plans that lost: the runners-up with the reason why, and the frontier of speed against memory."""

from __future__ import annotations

from dataclasses import asdict

from costmodels.pipeline import Schedule
from costmodels.units import GIB
from solver.plan import FrontierPoint, RunnerUp, TimeBreakdown
from solver.request import PlanRequest, TrainingWorkload
from solver.training.breakdown import time_breakdown
from solver.training.costs import TrainingCosts
from solver.training.pipelining import PLAIN
from solver.training.search import SearchResult, Solved, stage_tables
from solver.training.space import Candidate

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
}


def summary(candidate: Candidate) -> str:
    """One line that names a candidate."""
    mesh = candidate.mesh
    parts = [f"dp {mesh.dp}", f"tp {mesh.tp}", f"pp {mesh.pp}", f"cp {mesh.cp}", f"micro-batch {candidate.microbatch}"]
    if mesh.ep > 1:
        parts.append(f"ep {mesh.ep}")
    parts.append(f"ZeRO-{candidate.zero_stage}")
    if candidate.boundary.dim is not None:
        parts.append("sequence parallel")
    parts.append("recompute " + "/".join(mode.value for mode in candidate.recompute))
    if candidate.pipelining != PLAIN:
        chunks = f" x {candidate.pipelining.chunks}" if candidate.pipelining.schedule is Schedule.INTERLEAVED else ""
        parts.append(candidate.pipelining.schedule.value + chunks)
    return ", ".join(parts)


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
    for solved in sorted(result.alternatives, key=lambda s: (s.cost.step_time_s, s.sort_key)):
        if solved.decision.candidate.mesh not in seen and len(slower) < MAX_RUNNERS_UP - len(refused):
            seen.add(solved.decision.candidate.mesh)
            slower.append(
                RunnerUp(summary(solved.decision.candidate), solved.cost.step_time_s, _why_slower(costs, best, solved))
            )
    return (*refused, *slower)


def frontier(request: PlanRequest, best: Solved, result: SearchResult) -> tuple[FrontierPoint, ...]:
    """Of the plans that the search solved, those that no other beats in both speed and peak memory, fastest first."""
    workload = request.workload
    assert isinstance(workload, TrainingWorkload)
    points: list[FrontierPoint] = []
    for solved in sorted((best, *result.alternatives), key=lambda s: (s.cost.step_time_s, s.cost.peak_bytes, s.sort_key)):
        if not points or solved.cost.peak_bytes < points[-1].peak_memory_bytes:
            mesh = solved.decision.candidate.mesh
            points.append(
                FrontierPoint(
                    summary(solved.decision.candidate),
                    mesh.stage_devices * mesh.pp,
                    workload.global_batch * workload.seq_len / solved.cost.step_time_s,
                    solved.cost.peak_bytes,
                )
            )
    return tuple(points)


def _why_slower(costs: TrainingCosts, best: Solved, other: Solved) -> str:
    """The part of the step that grew most, in words and numbers."""
    winner, loser = (asdict(_breakdown(costs, solved)) for solved in (best, other))
    extra_s = other.cost.step_time_s - best.cost.step_time_s
    part = max(_PART_NAMES, key=lambda name: loser[name] - winner[name])
    slower = f"{extra_s / best.cost.step_time_s:.1%} slower"
    if loser[part] - winner[part] <= 0:
        return f"{slower}: as fast, and later in the canonical order"
    return f"{slower}: {_PART_NAMES[part]} ({winner[part]:.3g} s -> {loser[part]:.3g} s)"


def _breakdown(costs: TrainingCosts, solved: Solved) -> TimeBreakdown:
    candidate = solved.decision.candidate
    tables = stage_tables(candidate, solved.decision.sharding, costs.stage_kinds(candidate), costs)
    return time_breakdown(solved.decision, solved.cost, tables)
