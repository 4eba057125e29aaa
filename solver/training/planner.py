"""Plans a training request, and predicts a given training plan; the bound that no plan can beat."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.costmodels.model.dims import HIDDEN
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.layouts import ByGroup, Stagewise, TrainingLayout, Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats, Status
from meshwright.solver.blocks.sharding_problem import least_compute_s
from meshwright.solver.control import DivisibleStop, Incumbent, OnProgress, Progress, Stop, ignore_progress, part_of, steps_of
from meshwright.solver.problem.choice import TRAINING, Form
from meshwright.solver.problem.choices import BatchShares, Space, StageDegrees
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import require_choices_of
from meshwright.solver.problem.token_prediction import without_token_prediction
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import compute_bound_s, least_step_flops, most_flops_per_s
from meshwright.solver.training.forms.by_group.search import ByGroupSearch, predict_by_group, refuse_by_group
from meshwright.solver.training.forms.stagewise.record import predict_stagewise
from meshwright.solver.training.forms.stagewise.search import StagewiseSearch, refuse_stagewise
from meshwright.solver.training.forms.stagewise.stage_sizes import sized_request, stage_sizes
from meshwright.solver.training.forms.uniform.device_orders import other_arrangements
from meshwright.solver.training.forms.uniform.launchable_inside import NOTE, has_many, simple_parts
from meshwright.solver.training.forms.uniform.prediction import predict_uniform
from meshwright.solver.training.forms.uniform.search import UniformSearch, refuse_uniform
from meshwright.solver.training.report.device_counts import UNITS, SizedResult, search_sizes, swept_plans, unproven
from meshwright.solver.training.report.plan_report import bounded_by, feasible_plan
from meshwright.solver.training.search.best_first import RELATIVE_TIE
from meshwright.solver.training.space.candidates import CandidateFamily, families

SHARE_OF_FLOOR = 0.25
"""Share of the time in which the floor of wide searches is worked out; a search that has less for it has that of FLOPs."""


def plan_training(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best plan of the request's space that fits memory and meets the SLO, or the reason why none does.

    With all devices in use and a fixed global batch, the objectives throughput and step_time both ask for the shortest
    step; devices, cost and energy choose a part of the cluster. Raises WorkloadError for a model that can't be staged.
    """
    require_choices_of(request.search, TRAINING)
    check_stageable(request.model)
    for form in FORMS:
        form.refuse(request)
    return with_price_of_risk(request, _best_plan(request, stop=stop, progress=progress), _best_plan, stop=stop)


def _best_plan(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    if request.objective in UNITS:
        on_part = best_part(request, stop=stop, progress=progress)
        if on_part is not None:
            return on_part
    asked = [form for form in FORMS if form.form in forms_asked(request)]
    alone = len(asked) == 1 and not other_arrangements(request)
    floor_s = compute_bound_s(request)
    if has_kernel_bound(request) and isinstance(stop, DivisibleStop):
        floor_s = kernel_bound_s(request, stop=part_of(stop, SHARE_OF_FLOOR))
    told = NeverWorse(progress, floor_s, alone=alone)
    searches = {form.form: form.search(request) for form in asked}
    ended = _searched(searches, asked, None, stop=stop, progress=told)
    best = ended[-1].plan
    # What some forms leave of the time goes to those that their part of it ended, which go on from what they know.
    for _ in asked:
        first = next((place for place, each in enumerate(ended) if each.was_stopped), None)
        if first is None or best.certificate.status is Status.OPTIMAL or stop():
            break
        given = ended[first - 1].plan if first else None
        open_ones = frozenset(each.form for each in ended if each.was_stopped)
        again = _searched(searches, asked[first:], given, open_ones, stop=stop, progress=told)
        ended = [*ended[:first], *again]
        best = _better_proven(best, ended[-1].plan)
    return bounded_by(best, floor_s)


@dataclass(frozen=True, slots=True)
class _Searched:
    """The answer of a form and those before it, and whether its part of the time ended its search."""

    form: Form
    plan: Plan
    was_stopped: bool


def _searched(
    searches: Mapping[Form, TrainingFormSearch],
    forms: Sequence[TrainingForm[Any]],
    given: Plan | None,
    open_ones: frozenset[Form] = frozenset(Form),
    *,
    stop: Stop,
    progress: OnProgress,
) -> list[_Searched]:
    """Search forms one after another, each with its part of the time that is left; those that are not open need none."""
    found = list[_Searched]()
    for place, form in enumerate(forms):
        # Later forms have what earlier ones leave of their parts beside their own.
        left = sum(each.parts for each in forms[place:] if each.form in open_ones)
        is_divided = form.form in open_ones and form.parts < left
        part = part_of(stop, form.parts / left) if is_divided else stop
        given = searches[form.form](given, stop=part, progress=progress)
        found.append(_Searched(form.form, given, is_divided and not _is_proven(given) and part()))
    return found


def _is_proven(plan: Plan) -> bool:
    return plan.certificate.status is Status.OPTIMAL or (plan.is_decided and not plan.feasible)


def _better_proven(before: Plan, again: Plan) -> Plan:
    """The better of two answers to one request, with the better of their bounds; the later one where they are as good."""
    was, now = before.certificate.objective, again.certificate.objective
    if now is None:
        return again if was is None and again.is_decided else before
    if was is None:
        return again
    best, other = (again, before) if now <= was * (1 + RELATIVE_TIE) else (before, again)
    return bounded_by(best, other.certificate.bound or 0.0)


def predict_training(request: TrainingRequest, plan: Plan) -> Plan:
    """The given plan with its figures predicted anew under the request's model, cluster and cost models.

    A plan that exceeds memory or the SLO comes back infeasible, with its figures and the reason. Raises PlanFileError when the
    plan does not belong to the request (other layers, more devices, a sharding that does not divide), and WorkloadError for a
    model that can't be staged.
    """
    check_stageable(request.model)
    for form in FORMS:
        if isinstance(plan.layout, form.layout):
            return form.predict(request, plan.layout)
    raise PlanFileError("this is not a plan with training stages", given=f"a {plan.kind} plan without them")


# The progress of a search in several parts, which never tells a worse plan or bound than before.


@dataclass
class NeverWorse:
    """Tells ``listener`` of each moment of a part with the best plan and bound of all parts so far.

    Steps of a part come on top of those of the parts before it. A plan counts where the part can make its record. The bound of
    a part is that of the whole where ``alone``: no other form or arrangement may hold a faster plan. Else ``floor_s`` stands
    for it.
    """

    listener: OnProgress
    floor_s: float
    alone: bool
    best_s: float | None = None
    incumbent: Incumbent | None = None

    def __post_init__(self) -> None:
        self._bound_s = self.floor_s
        self._before, self._done = 0, 0

    def __call__(self, progress: Progress) -> None:
        """Take note of a moment of a part, and tell it."""
        is_better = progress.best is not None and (self.best_s is None or progress.best < self.best_s)
        if is_better and progress.incumbent is not None:
            self.best_s = progress.best
        # The same plan may come with a better bound.
        if progress.incumbent is not None and progress.best == self.best_s:
            self.incumbent = progress.incumbent
        if self.alone and progress.bound is not None:
            self._bound_s = max(self._bound_s, progress.bound)
        bound_s = self._bound_s if self.best_s is None else min(self._bound_s, self.best_s)
        if progress.done < self._done:
            self._before += self._done
        self._done = progress.done
        done, total = self._before + progress.done, self._before + progress.total
        told = replace(progress, done=done, total=total, best=self.best_s, bound=bound_s, incumbent=self.incumbent)
        self.listener(told)


# The price of a plan's risk: the same request solved at another chance to run out of memory.

NO_PRICE = 1e-9
"""Relative difference of two objectives from which one plan is better."""


def with_price_of_risk(request: TrainingRequest, plan: Plan, solve: Callable[..., Plan], *, stop: Stop) -> Plan:
    """Return the plan with a note of how much better it would be at the other risk that the request names; unchanged where it
    names none, or has no plan. ``solve`` answers the request at that risk."""
    search = request.search
    if search.price_risk is None or plan.certificate.objective is None:
        return plan
    asked = replace(request, search=replace(search, risk=search.price_risk, price_risk=None))
    other = solve(asked, stop=stop, progress=ignore_progress)
    return replace(plan, notes=(*plan.notes, _price(plan.certificate.objective, other, search.price_risk)))


def _price(own: float, other: Plan, risk: float) -> str:
    value, unit = other.certificate.objective, other.certificate.unit
    if value is None:
        return f"price of the risk: not known, the search at risk {risk:g} found no plan in its time"
    best = "at best" if other.certificate.status is Status.OPTIMAL else "as far as was searched"
    gain = (own - value) / own
    if abs(gain) <= NO_PRICE:
        return f"price of the risk: none, {best} a plan at risk {risk:g} is as good"
    return (
        f"price of the risk: {abs(gain):.1%} {'better' if gain > 0 else 'worse'} with risk {risk:g}, {value:.4g} {unit} {best}"
    )


# Every form of a training plan.

OwnLayout = TypeVar("OwnLayout", bound=TrainingLayout)


class TrainingFormSearch(Protocol):
    """The search of a form for a request. It may be called again when its time was too short, and knows then what it has worked
    out."""

    def __call__(self, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
        """Return the better of the best plan of the forms before it, None for the first, and the best of this form, with a
        certificate of both spaces."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingForm(Generic[OwnLayout]):
    """A form of a training plan, and what is done with it.

    layout    the type of its part of a plan
    refuse    raises for a request that asks for the form beside what it is not planned for
    search    makes the search for its best plan
    predict   the plan of a given layout, with every figure predicted anew
    parts     of the time that all forms have: equal pipelines begin with launchable plans, and all others with their answer;
              stages that differ list what each candidate takes at least before they find anything
    """

    form: Form
    layout: type[OwnLayout]
    refuse: Callable[[TrainingRequest], None]
    search: Callable[[TrainingRequest], TrainingFormSearch]
    predict: Callable[[TrainingRequest, OwnLayout], Plan]
    parts: int


FORMS: tuple[TrainingForm[Any], ...] = (
    TrainingForm(Form.UNIFORM, Uniform, refuse_uniform, UniformSearch, predict_uniform, parts=3),
    TrainingForm(Form.BY_GROUP, ByGroup, refuse_by_group, ByGroupSearch, predict_by_group, parts=1),
    TrainingForm(Form.STAGEWISE, Stagewise, refuse_stagewise, StagewiseSearch, predict_stagewise, parts=3),
)
"""Forms in the order in which they are searched."""


# The forms of a training plan that a request has searched.


def forms_asked(request: TrainingRequest) -> frozenset[Form]:
    """Return the forms that are searched: equal pipelines always, and what the request opens beside them.

    Replicas by node group are searched only where there is more than one group.
    """
    search = request.search
    by_group = search.batch_shares is BatchShares.BY_GROUP and len(request.cluster.groups) > 1
    stagewise = search.stage_degrees is not StageDegrees.SAME
    opened = {Form.BY_GROUP: by_group, Form.STAGEWISE: stagewise}
    return frozenset({Form.UNIFORM, *(form for form, is_open in opened.items() if is_open)})


# The properties that a model must have for stages to hold its layers.


def check_stageable(model: ModelGraph) -> None:
    """Raises WorkloadError for a model that is no sequence of layers with a residual stream: a traced graph, for one."""
    plain = without_token_prediction(model)
    for name in dict.fromkeys(plain.layers):
        kinds = {operator.kind for operator in plain.block(name).operators}
        if {OperatorKind.EMBEDDING, OperatorKind.LOSS} <= kinds:
            raise WorkloadError(
                "training plans need a model of layers, one block each",
                given=f"block {name!r} from the lookup to the loss",
                remedy="shard it with 'meshwright shard --model', or give a config or a model graph of layers",
            )
    if HIDDEN not in model.dims:
        raise WorkloadError(
            "training plans need the dim of the residual stream between layers",
            given=f"dims {', '.join(sorted(model.dims)) or 'none'}",
            allowed=f"a dim named {HIDDEN!r}",
            remedy="shard a traced graph with 'meshwright shard --model'",
        )


# Plans that choose a part of the cluster: in a large free space the launchable plans of simple shape are searched first.

SHARE = 1 / 3
"""Share of the time that plans of simple shape may take: what a narrower search finds in a third of it, a wider one must."""


def best_part(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> Plan | None:
    """The best plan on a part of the cluster; None where none was found that meets the SLO.

    Raises WorkloadError for a cluster of several node groups, or for the objective cost without a price.
    """
    simple = _of_simple_shape(request, stop=part_of(stop, SHARE), progress=progress)
    sized = search_sizes(request, stop=stop, progress=progress)
    if simple is not None and (sized is None or _value(simple) < _value(sized) * (1 - RELATIVE_TIE)):
        plan = feasible_plan(simple.request, simple.costs, simple.result, sized=simple)
        return replace(
            plan,
            certificate=unproven(request, _value(simple)),
            # Counted are candidates of the declared space: these are among them.
            search=SearchStats(0, 0, 0.0),
            notes=(*plan.notes, NOTE),
        )
    if sized is None:
        return None
    swept = swept_plans(request, stop=stop, progress=steps_of(progress))
    return feasible_plan(sized.request, sized.costs, sized.result, swept=swept, sized=sized)


def _value(sized: SizedResult) -> float:
    assert sized.certificate.objective is not None
    return sized.certificate.objective


def _of_simple_shape(request: TrainingRequest, *, stop: Stop, progress: OnProgress) -> SizedResult | None:
    """The best part of the cluster under plans of simple shape, of the first launcher that runs one there."""
    if request.search.space is not Space.FREE or not has_many(request):
        return None
    for part in simple_parts(request.search):
        try:
            inside = replace(request, search=part)
            found = search_sizes(inside, stop=stop, progress=steps_of(progress))
        except WorkloadError:
            # What the request restricts the free space to is nothing that this launcher runs, or it can't be asked at all,
            # which the search of the free space says in its own words.
            continue
        if found is not None:
            return found
    return None


# The bound that no training plan can beat: its layers' kernels in the best shapes that any plan of the space gives them.


def has_kernel_bound(request: TrainingRequest) -> bool:
    """True if a bound by kernels is worth its time, and holds: launchable searches have bounds of their own from the start, and
    where groups may have shares of the batch, micro-batches have sizes that are not looked at."""
    search = request.search
    return search.space is Space.FREE and search.batch_shares is BatchShares.EVEN and request.model.is_chain


def kernel_bound_s(request: TrainingRequest, *, stop: Stop) -> float:
    """Seconds that every plan's step takes at least: all devices always compute, nothing is sent, run again or waited for.

    The block that most layers have takes the time of the best of all shapes that a plan can give it, other layers their FLOPs
    at the peak. Where devices differ, their seconds have prices by which the whole cluster costs one a second: a step takes no
    less than its layers cost, each where it is cheapest. Where it is stopped, it is `compute_bound_s`.
    """
    at_peak_s = compute_bound_s(request)
    name, copies = Counter(request.model.layers).most_common(1)[0]
    least = _device_seconds(request, name, stop)
    groups = request.cluster.groups
    if not all(math.isfinite(sequence_s) for sequence_s in least.values()):
        return at_peak_s
    rate = sum(group.n_devices / least[group.node.device.name] for group in groups)
    elsewhere = least_step_flops(request, without=name)
    rest_s = min(
        elsewhere / (rate * least[device.name] * most_flops_per_s(request, device))
        for device in (group.node.device for group in groups)
    )
    return max(at_peak_s, request.workload.global_batch * copies / rate + rest_s)


def _requests(request: TrainingRequest) -> Iterator[TrainingRequest]:
    """The request, and what stages that differ see of it."""
    yield request
    if request.search.stage_degrees is not StageDegrees.SAME:
        for group in request.cluster.groups:
            for size in stage_sizes(request, group):
                yield sized_request(request, group, size, pp=2)


def _device_seconds(request: TrainingRequest, block: str, stop: Stop) -> dict[str, float]:
    """By device, the least device-seconds that a sequence computes in a block, of all shapes that its operators can have;
    infinite where stopped."""
    devices = {group.node.device.name: group.node.device for group in request.cluster.groups}
    least = dict.fromkeys(devices, math.inf)
    shapes, times = set[tuple[object, ...]](), dict[tuple[object, ...], float]()
    for asked in _requests(request):
        costs = TrainingCosts(asked)
        for family in families(asked):
            shape = _shape(family, request.search.space)
            if shape in shapes:
                continue
            shapes.add(shape)
            if stop():
                return dict.fromkeys(devices, math.inf)
            candidate = next(family.candidates())
            like = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
            for name, device in devices.items():
                setting = replace(like, device=device)
                each_s = [least_compute_s(request.model, request.model.block(block), part, times) for part in setting.parts]
                known_s = [part_s for part_s in each_s if part_s is not None]
                if len(known_s) == len(each_s):
                    least[name] = min(least[name], setting.tp * setting.cp / setting.microbatch * sum(known_s))
    return least


def _shape(family: CandidateFamily, space: Space) -> tuple[object, ...]:
    """What the time of a block's operators depends on where nothing is sent."""
    mesh, slices = family.mesh, family.pipelinings[0].slices
    boundary = None if space is Space.FREE else family.boundary
    ranks = (mesh.tp, mesh.cp, mesh.ulysses, mesh.ep, mesh.expert_tp)
    return (*ranks, family.microbatch, slices, family.tp_overlap, boundary)
