"""The plans that no other beats in throughput, memory headroom, devices, cost and energy at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Device
from meshwright.solver.answer.plan import FrontierPoint
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.breakdown import all_devices, price_per_hour, step_energy_j
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import DecisionCost
from meshwright.solver.training.search.best_first import decision_tables
from meshwright.solver.training.search.search_result import Solved
from meshwright.solver.training.space.candidates import summary

TIE = 1e-9
"""Figures closer than this, relatively, count as equal."""


@dataclass(frozen=True)
class Costed:
    """A plan with the request, its part of the cluster, that it was found for."""

    request: TrainingRequest
    costs: TrainingCosts
    solved: Solved


def headroom_bytes(cost: DecisionCost) -> float:
    """Return the memory that the fullest device has left, in bytes that its driver counts."""
    return max(0.0, min(stage.usable_bytes - stage.device_bytes for stage in cost.stages))


def frontier(best: Costed, others: Iterable[Costed]) -> tuple[FrontierPoint, ...]:
    """The best plan, and of the others those that no plan beats in every respect; fewest devices and fastest first."""
    first = _point(best)
    kept = [first]
    points = [_point(other) for other in others]
    for point in sorted(points, key=lambda p: (-p.tokens_per_s, p.devices, p.summary)):
        if not any(at_least_as_good(known, point) for known in kept):
            kept = [known for known in kept if known is first or not at_least_as_good(point, known)]
            kept.append(point)
    return tuple(sorted(kept, key=lambda p: (p.devices, -p.tokens_per_s, p.summary)))


def at_least_as_good(a: FrontierPoint, b: FrontierPoint) -> bool:
    """Return True if no figure of ``a`` is worse than that of ``b``."""
    return all(_at_most(mine, theirs) for mine, theirs in zip(_losses(a), _losses(b), strict=True))


def _losses(point: FrontierPoint) -> tuple[float, ...]:
    """Figures of which less is better. Those that are unknown are unknown of all plans of a request."""
    return (
        -point.tokens_per_s,
        -(point.memory_headroom_bytes or 0.0),
        float(point.devices),
        point.cost_per_million_tokens or 0.0,
        point.energy_per_step_j or 0.0,
    )


def _at_most(a: float, b: float) -> bool:
    return a <= b + TIE * abs(b)


def _point(costed: Costed) -> FrontierPoint:
    request, solved = costed.request, costed.solved
    workload, candidate = request.workload, solved.decision.candidate
    tables = decision_tables(solved.decision, costed.costs)
    tokens_per_s = workload.global_batch * workload.seq_len / solved.cost.step_time_s
    return FrontierPoint(
        summary=summary(candidate),
        devices=candidate.mesh.stage_devices * candidate.mesh.pp,
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=solved.cost.peak_bytes,
        memory_headroom_bytes=headroom_bytes(solved.cost),
        cost_per_million_tokens=cost_per_million_tokens(all_devices(request.cluster), tokens_per_s),
        energy_per_step_j=step_energy_j(request.cluster, solved.decision, solved.cost, tables),
    )


def cost_per_million_tokens(devices: Iterable[tuple[Device, int]], tokens_per_s: float) -> float | None:
    """USD of so many devices of each kind; None where one has no price."""
    per_hour = price_per_hour(devices)
    return None if per_hour is None else per_hour / 3600.0 / tokens_per_s * 1e6
