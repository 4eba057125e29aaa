"""The order in which rules are checked: later groups take for granted what earlier ones found in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from meshwright.solver.answer.layouts import ByGroup, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.verify.answer import answer_violations
from meshwright.solver.verify.counted import Counted, SpaceRules
from meshwright.solver.verify.numbers import number_violations
from meshwright.solver.verify.serving.forms.table import workers_violations
from meshwright.solver.verify.serving.interactivity import interactivity_violations
from meshwright.solver.verify.training.by_group import share_violations
from meshwright.solver.verify.training.frontier import frontier_violations
from meshwright.solver.verify.training.group_order import order_violations, ordered_request
from meshwright.solver.verify.training.host import host_violations
from meshwright.solver.verify.training.layout import layout_violations
from meshwright.solver.verify.training.memory import memory_violations
from meshwright.solver.verify.training.memory_quantiles import risk_violations
from meshwright.solver.verify.training.restrictions import restriction_violations
from meshwright.solver.verify.training.sharding import sharding_violations
from meshwright.solver.verify.training.stagewise import stagewise_violations
from meshwright.solver.verify.training.tensor_overlap import overlap_violations
from meshwright.solver.verify.training.times import time_violations
from meshwright.solver.verify.training.token_slices import slice_violations
from meshwright.solver.verify.violation import Subject, Violation

Judged = TypeVar("Judged", Plan, PipelinePlan)
Asked = TypeVar("Asked", TrainingRequest, ServingRequest)


def check(
    plan: Plan,
    request: PlanRequest,
    *,
    space_rules: SpaceRules = SpaceRules.OF_SEARCHED_PLANS,
    subjects: Collection[Subject] = tuple(Subject),
) -> tuple[Violation, ...]:
    """Every rule about these subjects that the plan breaks, empty when it is accepted.

    Groups are checked in order: numbers; what the answer claims; layers, stages and devices; sharding; restrictions of
    the search and rules of the launcher; memory, time and frontier. A group whose predecessor is broken is not looked at, since
    its figures would have no meaning.
    """
    counted = Counted(plan, space_rules, subjects)
    broken = counted.of(number_violations(plan)) or counted.of(answer_violations(plan, request))
    if broken or plan.layout is None:
        return broken
    broken = counted.of(order_violations(plan, request))
    if broken:
        return broken
    if isinstance(request, ServingRequest):
        return _first_broken(_SERVING, plan, request, counted)
    request = ordered_request(plan, request)
    layout = plan.layout
    if isinstance(layout, ByGroup):
        broken = share_violations(plan, layout, request, counted)
    else:
        assert isinstance(layout, Uniform | Stagewise), "answer_violations asks for a training plan"
        pipelines = PipelinePlan(layout.pipelines, layout.placement, plan.devices, plan.predicted, plan.frontier)
        if isinstance(layout, Stagewise):
            broken = stagewise_violations(pipelines, request, counted)
        else:
            broken = _first_broken(_TRAINING, pipelines, request, counted)
    return broken or tuple(counted.unfounded_reason())


def _first_broken(
    groups: Sequence[Sequence[Callable[[Judged, Asked], Iterator[Violation]]]], plan: Judged, request: Asked, counted: Counted
) -> tuple[Violation, ...]:
    """Violations of the first group of rules that the plan breaks."""
    for group in groups:
        broken = tuple(violation for rules in group for violation in counted.of(rules(plan, request)))
        if broken:
            return broken
    return ()


_TRAINING = (
    (layout_violations, slice_violations),
    (sharding_violations,),
    (
        restriction_violations,
        overlap_violations,
        memory_violations,
        risk_violations,
        host_violations,
        time_violations,
        frontier_violations,
    ),
)


_SERVING = ((workers_violations,), (interactivity_violations,))
