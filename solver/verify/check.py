"""The order in which rules are checked: later groups take for granted what earlier ones found in order.

Each form of a serving plan has rules of its own, by its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from meshwright.solver.answer.layouts import (
    ByGroup,
    Kinds,
    Layout,
    Pools,
    Replicas,
    ServingLayout,
    Stagewise,
    Switched,
    TrainingLayout,
    Uniform,
)
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, Status
from meshwright.solver.problem.request import PlanRequest, ServingRequest, TrainingRequest
from meshwright.solver.verify.serving.forms import kinds, pools, replicas, switched
from meshwright.solver.verify.serving.load import interactivity_violations
from meshwright.solver.verify.training.by_group import share_violations
from meshwright.solver.verify.training.host import frontier_violations, host_violations
from meshwright.solver.verify.training.layout import layout_violations, order_violations, ordered_request
from meshwright.solver.verify.training.memory import memory_violations, risk_violations
from meshwright.solver.verify.training.restrictions import restriction_violations
from meshwright.solver.verify.training.sharding import overlap_violations, sharding_violations
from meshwright.solver.verify.training.stagewise import stagewise_violations
from meshwright.solver.verify.training.times import time_violations
from meshwright.solver.verify.training.token_slices import slice_violations
from meshwright.solver.verify.violation import (
    RELATIVE,
    Counted,
    Rule,
    SpaceRules,
    Subject,
    Violation,
    agrees,
    at_most,
    number_violations,
)

Rules = Callable[[Plan, Any, ServingRequest], Iterator[Violation]]
"""A function that yields what a plan of one form breaks, from its layout."""


RULES: Mapping[type[ServingLayout], Rules] = MappingProxyType(
    {
        Replicas: replicas.violations,
        Pools: pools.violations,
        Kinds: kinds.violations,
        Switched: switched.violations,
    }
)


def workers_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Rules of the workers of a serving plan, by their form."""
    rules = RULES.get(type(plan.layout))  # type: ignore[arg-type]
    assert rules is not None, "answer_violations asks for the layout of a feasible serving plan"
    return rules(plan, plan.layout, request)


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
    rules = WORKLOADS[request.workload.kind]
    counted = Counted(plan, space_rules, subjects, claims_no_bound=rules.may_be_given)
    broken = counted.of(number_violations(plan)) or counted.of(answer_violations(plan, request))
    if broken or plan.layout is None:
        return broken
    broken = counted.of(order_violations(plan, request))
    return broken or rules.broken(plan, request, counted)


def _broken_by_serving(plan: Plan, request: ServingRequest, counted: Counted) -> tuple[Violation, ...]:
    return _first_broken(_SERVING, plan, request, counted)


def _broken_by_training(plan: Plan, request: TrainingRequest, counted: Counted) -> tuple[Violation, ...]:
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


@dataclass(frozen=True, slots=True)
class WorkloadRules:
    """What is checked of the plans of a kind of workload.

    layouts       types of their layouts
    may_be_given  True where a plan that was only predicted claims no bound, and has a layout where it exceeds a limit
    broken        the rules that a plan breaks, after those of any plan
    """

    layouts: tuple[type[Layout], ...]
    may_be_given: bool
    broken: Callable[[Plan, Any, Counted], tuple[Violation, ...]]


WORKLOADS: Mapping[str, WorkloadRules] = MappingProxyType(
    {
        "training": WorkloadRules(get_args(TrainingLayout), True, _broken_by_training),
        "serving": WorkloadRules(get_args(ServingLayout), False, _broken_by_serving),
    }
)
"""Rules by the kind of workload."""


# The claims of an answer about itself: its kind, its parts, its certificate, its reason.


def answer_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Kind, presence of parts, certificate and reason."""
    if plan.kind != request.workload.kind:
        yield Violation(Rule.KIND, "plan.kind", f"{plan.kind} answers a {request.workload.kind} request")
        return
    rules = WORKLOADS[plan.kind]
    if plan.layout is not None and not isinstance(plan.layout, rules.layouts):
        yield Violation(Rule.KIND, "plan.kind", f"{plan.kind}, its layout is {type(plan.layout).__name__.lower()}")
        return
    if plan.model != request.model.name:
        yield Violation(Rule.KIND, "plan.model", f"{plan.model!r} answers a request for {request.model.name!r}")
    if plan.feasible:
        yield from _missing_parts(plan)
        if plan.reason is not None:
            yield Violation(Rule.ANSWER, "plan.reason", "a feasible plan has no reason why there is none")
        yield from _feasible_certificate(plan)
        yield from _objective_violations(plan, request)
    elif rules.may_be_given and plan.layout is not None:
        yield from _missing_parts(plan)
        yield from _exceeding_certificate(plan)
        yield from _reason_violations(plan)
    else:
        yield from _answer_without_plan(plan)


def _missing_parts(plan: Plan) -> Iterator[Violation]:
    needed: dict[str, object] = {"predicted": plan.predicted}
    match plan.layout:
        case Uniform(placement=placement) | ByGroup(placement=placement) | Stagewise(placement=placement):
            needed |= {"breakdown": placement.breakdown, "predicted.step_time_s": plan.predicted and plan.predicted.step_time_s}
        case None:
            needed["stages"] = None
        case served:
            apart = {f"{place}.predicted": figures for place, figures in served.predicted_apart.items()}
            for where, predicted in ({"predicted": plan.predicted} | apart).items():
                needed[f"{where}.ttft_p95_s"] = predicted and predicted.ttft_p95_s
                needed[f"{where}.tpot_p95_s"] = predicted and predicted.tpot_p95_s
            *_, answering = served.all_workers
            needed["stages"] = answering.stages or None
    for name, part in needed.items():
        if part is None:
            yield Violation(Rule.ANSWER, f"plan.{name}", f"a {plan.kind} plan must have it")


def _feasible_certificate(plan: Plan) -> Iterator[Violation]:
    certificate = plan.certificate
    where = "plan.certificate"
    if certificate.status in (Status.INFEASIBLE, Status.UNDECIDED) or certificate.objective is None:
        yield Violation(Rule.CERTIFICATE, where, "a feasible plan needs an objective and status optimal or feasible")
        return
    step_s = None if plan.predicted is None else plan.predicted.step_time_s
    if certificate.unit == "s" and step_s is not None and not agrees(certificate.objective, step_s):
        given = f"{certificate.objective} s, predicted step time is {step_s} s"
        yield Violation(Rule.CERTIFICATE, f"{where}.objective", given)
    if certificate.unit == "devices" and certificate.objective != plan.devices:
        given = f"{certificate.objective}, the plan has {plan.devices} devices"
        yield Violation(Rule.CERTIFICATE, f"{where}.objective", given)
    yield from _bound_and_gap(certificate, certificate.objective)


def _objective_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Energy, and money of a step, are those that the plan predicts."""
    certificate, predicted = plan.certificate, plan.predicted
    if certificate.objective is None or predicted is None:
        return
    expected: float | None = None
    if certificate.unit == "J per step":
        expected = predicted.energy_per_step_j
    elif certificate.unit == "J/token":
        expected = predicted.energy_per_token_j
    elif certificate.unit == "USD per step" and predicted.step_time_s is not None:
        price = request.cluster.groups[0].node.device.price_per_hour
        expected = None if price is None else plan.devices * price * predicted.step_time_s / 3600.0
    else:
        return
    if expected is None or not agrees(certificate.objective, expected):
        given = f"{certificate.objective} {certificate.unit}, the plan's own figures make {expected}"
        yield Violation(Rule.CERTIFICATE, "plan.certificate.objective", given)


def _bound_and_gap(certificate: Certificate, objective: float) -> Iterator[Violation]:
    where = "plan.certificate"
    if certificate.bound is None or certificate.gap is None:
        # A plan that was given and only predicted claims no bound; one that was searched for must.
        if certificate.status is Status.OPTIMAL or certificate.bound != certificate.gap:
            yield Violation(Rule.CERTIFICATE, where, "bound and gap go together, and with status optimal")
        return
    if not at_most(certificate.bound, objective):
        given = f"lower bound {certificate.bound} is above objective {objective}"
        yield Violation(Rule.CERTIFICATE, f"{where}.bound", given)
    gap = max(0.0, objective - certificate.bound) / objective if objective > 0 else 0.0
    if abs(certificate.gap - gap) > RELATIVE:
        yield Violation(Rule.CERTIFICATE, f"{where}.gap", f"{certificate.gap}, objective and bound make it {gap}")
    if certificate.status is Status.OPTIMAL and certificate.gap > RELATIVE:
        yield Violation(Rule.CERTIFICATE, f"{where}.status", f"optimal with a gap of {certificate.gap}")


def _exceeding_certificate(plan: Plan) -> Iterator[Violation]:
    """Of a given plan that exceeds a limit of the request nothing is proven but its own step time."""
    certificate, step_s = plan.certificate, None if plan.predicted is None else plan.predicted.step_time_s
    where = "plan.certificate"
    if certificate.status is not Status.INFEASIBLE or certificate.bound is not None or certificate.gap is not None:
        yield Violation(Rule.CERTIFICATE, where, "a given plan that exceeds a limit is infeasible, without bound and gap")
    if certificate.objective is None or step_s is None or not agrees(certificate.objective, step_s):
        given = f"{certificate.objective} s, predicted step time is {step_s} s"
        yield Violation(Rule.CERTIFICATE, f"{where}.objective", given)


def _answer_without_plan(plan: Plan) -> Iterator[Violation]:
    expected = Status.INFEASIBLE if plan.is_decided else Status.UNDECIDED
    if plan.certificate.status is not expected:
        given = f"{plan.certificate.status.value}, and the answer without a plan is {expected.value}"
        yield Violation(Rule.CERTIFICATE, "plan.certificate.status", given)
    if plan.certificate.objective is not None or plan.certificate.bound is not None:
        yield Violation(Rule.CERTIFICATE, "plan.certificate", "an infeasible answer has neither objective nor bound")
    if plan.layout is not None or plan.predicted is not None:
        yield Violation(Rule.ANSWER, "plan.stages", "an infeasible answer has no stages and predicts nothing")
    yield from _reason_violations(plan)


def _reason_violations(plan: Plan) -> Iterator[Violation]:
    """An infeasible plan says what it needs more of than there is."""
    if plan.reason is None:
        yield Violation(Rule.REASON, "plan.reason", "an infeasible answer must say why")
    elif plan.reason.need <= plan.reason.have:
        given = f"need {plan.reason.need} {plan.reason.unit} is not more than have {plan.reason.have}"
        yield Violation(Rule.REASON, "plan.reason", given)
