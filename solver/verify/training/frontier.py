"""The frontier of a training plan: the plan is on it, no point beats another, and cost follows from price and speed."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.frontier import FrontierPoint
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.violation import Rule, Violation

_S_PER_HOUR = 3600.0


def frontier_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Rules of a searched plan's frontier; one that was only predicted has none."""
    for index, point in enumerate(plan.frontier):
        where = f"plan.frontier[{index}]"
        better = [other for other in plan.frontier if other is not point and _beats(other, point)]
        if better and not _is_plan(point, plan):
            given = f"{better[0].summary!r} is at least as good in every respect, and better in one"
            yield Violation(Rule.FRONTIER, where, given)
        if point.devices > request.cluster.n_devices:
            given = f"{point.devices} devices, the cluster has {request.cluster.n_devices}"
            yield Violation(Rule.FRONTIER, where, given)
        yield from _cost_violations(point, request, where)
    if plan.frontier and not any(_is_plan(point, plan) for point in plan.frontier):
        yield Violation(Rule.FRONTIER, "plan.frontier", "the plan itself is not on it")


def _beats(a: FrontierPoint, b: FrontierPoint) -> bool:
    """Return True if no figure of ``a`` is worse, and one is better by more than rounding."""
    mine, theirs = _losses(a), _losses(b)
    return all(at_most(x, y) for x, y in zip(mine, theirs, strict=True)) and any(
        x < y and not agrees(x, y) for x, y in zip(mine, theirs, strict=True)
    )


def _losses(point: FrontierPoint) -> list[float]:
    known = (point.cost_per_million_tokens, point.energy_per_step_j)
    return [
        float(point.devices),
        1.0 / point.tokens_per_s,
        -(point.memory_headroom_bytes or 0.0),
        *(0.0 if figure is None else figure for figure in known),
    ]


def _is_plan(point: FrontierPoint, plan: PipelinePlan) -> bool:
    assert plan.predicted is not None
    same = (point.tokens_per_s, plan.predicted.tokens_per_s), (point.peak_memory_bytes, plan.predicted.peak_memory_bytes)
    return point.devices == plan.devices and all(agrees(a, b) for a, b in same)


def _cost_violations(point: FrontierPoint, request: TrainingRequest, where: str) -> Iterator[Violation]:
    """Of a cluster with one kind of node, any part costs its devices times their price."""
    if len(request.cluster.groups) > 1 or point.cost_per_million_tokens is None:
        return
    price = request.cluster.groups[0].node.device.price_per_hour
    expected = None if price is None else point.devices * price / _S_PER_HOUR / point.tokens_per_s * 1e6
    if expected is None or not agrees(point.cost_per_million_tokens, expected):
        given = f"{point.cost_per_million_tokens} USD a million tokens, price and speed make {expected}"
        yield Violation(Rule.FRONTIER, f"{where}.cost_per_million_tokens", given)
