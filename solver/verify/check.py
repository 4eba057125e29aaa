"""The order in which rules are checked: later groups take for granted what earlier ones found in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from solver.plan import Plan
from solver.request import PlanRequest, ServingWorkload
from solver.verify.answer import answer_violations
from solver.verify.frontier import frontier_violations
from solver.verify.group_order import order_violations, ordered_request
from solver.verify.host import host_violations
from solver.verify.interactivity import interactivity_violations
from solver.verify.layout import layout_violations
from solver.verify.memory import memory_violations
from solver.verify.numbers import number_violations
from solver.verify.pools import serving_violations
from solver.verify.restrictions import restriction_violations
from solver.verify.sharding import sharding_violations
from solver.verify.shares import share_violations
from solver.verify.stagewise import stagewise_violations
from solver.verify.switched import switched_violations
from solver.verify.tensor_overlap import overlap_violations
from solver.verify.times import time_violations
from solver.verify.token_slices import slice_violations
from solver.verify.violation import Violation

_Rules = Callable[[Plan, PlanRequest], Iterator[Violation]]


def check(plan: Plan, request: PlanRequest) -> tuple[Violation, ...]:
    """Every rule that the plan breaks, empty when it is accepted.

    Groups are checked in order: numbers; what the answer claims; layers, stages and devices; sharding; restrictions of
    the search and rules of the launcher; memory, time and frontier. A group whose predecessor is broken is not looked at, since
    its figures would have no meaning.
    """
    broken = tuple(number_violations(plan)) or tuple(answer_violations(plan, request))
    if broken or not plan.feasible:
        return broken
    broken = tuple(order_violations(plan, request))
    if broken:
        return broken
    request = ordered_request(plan, request)
    if any(stage.shardings for stage in plan.stages):
        return tuple(stagewise_violations(plan, request))
    if plan.shares is not None:
        return tuple(share_violations(plan, request))
    groups = _SERVING if isinstance(request.workload, ServingWorkload) else _TRAINING
    for group in groups:
        broken = tuple(violation for rules in group for violation in rules(plan, request))
        if broken:
            return broken
    return ()


_TRAINING: tuple[tuple[_Rules, ...], ...] = (
    (layout_violations, slice_violations),
    (sharding_violations,),
    (
        restriction_violations,
        overlap_violations,
        memory_violations,
        host_violations,
        time_violations,
        frontier_violations,
    ),
)


def _workers_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Rules of the workers of a serving plan, by their kind."""
    return (serving_violations if plan.switched is None else switched_violations)(plan, request)


_SERVING: tuple[tuple[_Rules, ...], ...] = ((_workers_violations,), (interactivity_violations,))
