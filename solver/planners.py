"""Every kind of workload, and what the solver does with requests of it: whoever has a request of any kind looks here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic

from meshwright.solver.answer.cluster_time import confident_factor, in_cluster_time, law_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, SearchStats
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.request import Asked, PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.serving import ServingSimulation, plan_serving, predict_serving, simulate_serving
from meshwright.solver.serving.changes import is_tight as tight_serving
from meshwright.solver.serving.changes import (
    reached_by_serving,
    serving_changes,
    serving_improvements,
    surer_beside,
    surer_targets,
)
from meshwright.solver.serving.explain import LayoutExplanation, explain_layouts, named_layouts
from meshwright.solver.serving.nearest import among_nearest
from meshwright.solver.serving.planning import infeasible_serving
from meshwright.solver.suggestions import (
    RESCUE_WORK,
    SERVING_WORK,
    TRAINING_WORK,
    AskBudget,
    BoundedAsking,
    RequestChange,
    Solve,
)
from meshwright.solver.training.explain import Explanation, named_operators
from meshwright.solver.training.explain import explain as explain_operator
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.training.report.changes import is_tight as tight_training
from meshwright.solver.training.report.changes import (
    reached_by,
    safer_beside,
    safer_risk,
    training_changes,
    training_improvements,
)
from meshwright.solver.training.report.plan_report import infeasible_plan as infeasible_training
from meshwright.solver.training.report.plan_report import promised_step_s, slo_reason


@dataclass(frozen=True, slots=True)
class Advice(Generic[Asked]):
    """What may help a request without a plan, or make its plan better.

    changes   ladders of changes, each to be solved in turn
    surer     the ladder that makes a tight plan surer, and ``beside`` one of it what makes that plan better
    reached   what the plan of a change reaches, in words
    work      how much of it is searched
    is_tight  True of a plan that is not sure
    """

    changes: Iterable[Iterable[RequestChange[Asked]]]
    surer: tuple[RequestChange[Asked], ...]
    beside: Callable[[RequestChange[Asked]], Iterable[Sequence[RequestChange[Asked]]]]
    reached: Callable[[Plan], str]
    work: AskBudget
    is_tight: bool


@dataclass(frozen=True, slots=True)
class WorkloadPlanner(Generic[Asked]):
    """A kind of workload, and what is done with requests of it; targets are in the cost model's time.

    plan        the best plan of a request's space, or why there is none
    predict     a given plan with every figure predicted anew
    infeasible  the answer without a plan, after so many candidates
    told        a plan in the cluster's time
    advise      what may help a request with this answer; its changes are solved by the function that is given
    require     refuses the name of what no plan of the request has
    explain     why what has this name is as it is in a plan
    simulate    a plan under its load; None where there is none
    """

    plan: Callable[[Asked, Stop, OnProgress], Plan]
    predict: Callable[[Asked, Plan], Plan]
    infeasible: Callable[[Asked, Reason, int], Plan]
    told: Callable[[Plan, Asked], Plan]
    advise: Callable[[Asked, Plan, Solve, Stop], Advice[Asked]]
    require: Callable[[Asked, str], object]
    explain: Callable[[Asked, Plan, str], tuple[Explanation, ...] | tuple[LayoutExplanation, ...]]
    simulate: Callable[[Asked, Plan], ServingSimulation] | None = None


def planner_of(request: PlanRequest) -> WorkloadPlanner[Any]:
    """Return the planner of a request's kind."""
    return PLANNERS[request.workload.kind]


# Training.


def _plan_training(request: TrainingRequest, stop: Stop, progress: OnProgress) -> Plan:
    return plan_training(request, stop=stop, progress=progress)


def _infeasible_training(request: TrainingRequest, reason: Reason, considered: int) -> Plan:
    return infeasible_training(request, reason, n_candidates=considered, n_solved=0)


def _told_training(plan: Plan, request: TrainingRequest) -> Plan:
    """The plan in the cluster's time; where it breaks a target, with the reason in that time."""
    told, law = in_cluster_time(plan, request), law_of(request)
    step_s = None if told.reason is None else promised_step_s(told.reason, request)
    if step_s is None:
        return told
    scale = 1.0 if law is None else law.scale
    reason = slo_reason(request, step_s * scale, factor=confident_factor(request) / scale)
    return replace(told, reason=reason or told.reason)


def _advise_training(request: TrainingRequest, plan: Plan, solve: Solve, stop: Stop) -> Advice[TrainingRequest]:
    changes = training_improvements(request) if plan.reason is None else training_changes(request, plan.reason)
    return Advice(changes, safer_risk(request), safer_beside, reached_by, TRAINING_WORK, tight_training(plan))


def _explain_training(request: TrainingRequest, plan: Plan, name: str) -> tuple[Explanation, ...]:
    """What explains an operator; nothing in an answer without a layout."""
    return () if plan.layout is None else explain_operator(request, plan, name)


# Serving.


def _plan_serving(request: ServingRequest, stop: Stop, progress: OnProgress) -> Plan:
    return plan_serving(request, stop=stop, progress=progress)


def _infeasible_serving(request: ServingRequest, reason: Reason, considered: int) -> Plan:
    return infeasible_serving(request, reason, SearchStats(considered, 0, 0.0))


def _told_serving(plan: Plan, request: ServingRequest) -> Plan:
    """The plan as it is: latencies are in the cluster's time already."""
    return plan


def _advise_serving(request: ServingRequest, plan: Plan, solve: Solve, stop: Stop) -> Advice[ServingRequest]:
    changes: Iterable[Iterable[RequestChange[ServingRequest]]]
    if plan.reason is None:
        work, changes = SERVING_WORK, serving_improvements(request)
    else:
        work = RESCUE_WORK
        bounded = partial(_solved_within, solve=solve, counted=BoundedAsking(stop, work.change))
        changes = among_nearest(serving_changes(request, plan.reason, bounded))
    return Advice(changes, surer_targets(request), surer_beside, reached_by_serving, work, tight_serving(plan))


def _solved_within(request: ServingRequest, *, solve: Solve, counted: BoundedAsking) -> Plan:
    return solve(request, counted)


PLANNERS: Mapping[str, WorkloadPlanner[Any]] = MappingProxyType(
    {
        "training": WorkloadPlanner(
            _plan_training,
            predict_training,
            _infeasible_training,
            _told_training,
            _advise_training,
            lambda request, name: named_operators(request.model, name),
            _explain_training,
        ),
        "serving": WorkloadPlanner(
            _plan_serving,
            predict_serving,
            _infeasible_serving,
            _told_serving,
            _advise_serving,
            named_layouts,
            explain_layouts,
            simulate_serving,
        ),
    }
)
"""Planners by the kind of workload."""
