"""plan_serving: the best layout for a request, or the reason why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.costmodels.errors import InvalidInputError, PlanFileError, WorkloadError
from meshwright.costmodels.model.memory_law import DEFAULT_RISK
from meshwright.costmodels.queueing.router import Router
from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.answer.plan import Interactivity, Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN, AlsoTry, Equals, Reason, SearchStats, unfinished_search
from meshwright.solver.control import OnProgress, Stop, never_stop
from meshwright.solver.problem.choice import SERVING
from meshwright.solver.problem.choices import DEFAULT_LAUNCHER, FrontierScope, Objective, ServingMode, Space
from meshwright.solver.problem.launchers.servers import PromptSharing, ServingForm
from meshwright.solver.problem.launchers.table import ENGINES, SERVERS
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search, require_choices_of
from meshwright.solver.problem.serving_load import ScheduleArrivals
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import (
    require_format,
    require_served_model,
    worker_layouts,
)
from meshwright.solver.serving.forms.form import Asked, Earlier, Form, FormSearch, Misfit
from meshwright.solver.serving.forms.table import FORMS, space_of
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import KeptPlan, promised_of
from meshwright.solver.serving.promise.question import Question, require_prices, unit_cost
from meshwright.solver.serving.schedule import simulate_schedule
from meshwright.solver.serving.workers.answer import infeasible_plan
from meshwright.solver.serving.workers.goodput import swept_points
from meshwright.solver.serving.workers.reasons import no_layout, why_infeasible
from meshwright.solver.serving.workers.simulation import ServingSimulation


def plan_serving(request: ServingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best serving plan of the request's space; infeasible, with its reason, when nothing keeps the promise.

    Objective devices: fewest devices that keep the P95 targets at the arrival rate; cost: the cheapest; energy: the fewest
    joules a token; throughput: the highest rate at which all devices keep them (figures are at that rate).
    ``search.seconds`` is 0: clocks belong to the caller. Raises InvalidInputError for a request that this space can't mean.
    """
    request, left_out = require_servable(request)
    require_choices_of(request.search, SERVING)
    require_prices(request)
    asked = asked_of(request, stop, progress)
    if not asked.question.engines:
        return infeasible_serving(request, no_layout(request), _stats(asked, ()), left_out)
    searches = [search for form in FORMS if (search := form.search(asked)) is not None]
    best = _search(asked, searches)
    if best is not None:
        best.choose_roomiest()
    # What follows describes the answer: a few simulations that the stopping rule no longer cuts off.
    asked.question.evaluator.stop = never_stop
    stats, notes = _stats(asked, searches), (*left_out, *(note for search in searches for note in search.notes()))
    for search in reversed(searches):
        others = [other for other in searches if other is not search]
        plan = search.plan(others, stats=stats, notes=notes)
        if plan is not None:
            met = [each.kept() for each in (search, *others)]
            own = next(iter(met[0]), None)
            plan = replace(plan, equals=equal_plans(request.objective, plan, own, itertools.chain.from_iterable(met)))
            return _with_interactivity(plan, asked, searches, of=search)
    return _infeasible(asked, searches, stats, notes)


def asked_of(request: ServingRequest, stop: Stop, progress: OnProgress) -> Asked:
    """Return what every form is asked about a request: its question, and how its engines are made."""
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed, stop)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    question = Question(
        engines=[builder.engine(layout) for layout in worker_layouts(request)],
        evaluator=evaluator,
        load=evaluator.traffic.load,
        replicas=request.search.dp,
        unit_cost=unit_cost(request.objective),
        progress=progress,
    )
    return Asked(request, question, builder, stop, space_of(request))


def _search(asked: Asked, searches: Sequence[FormSearch]) -> FormSearch | None:
    """Search each form for what beats those before it; return the one that leads, None where none has found anything."""
    leading, at_most = None, min((search.worth_a_look for search in searches), default=math.inf)
    for place, search in enumerate(searches):
        objective = math.inf if leading is None else leading.objective
        search.search(Earlier(objective, at_most, _stats(asked, searches[:place])))
        if search.objective < objective:
            leading = search
    return leading


def _stats(asked: Asked, searches: Sequence[FormSearch]) -> SearchStats:
    considered = sum(search.considered for search in searches)
    return SearchStats(candidates=considered, evaluated=asked.question.evaluator.simulations, seconds=0.0)


def _infeasible(asked: Asked, searches: Sequence[FormSearch], stats: SearchStats, notes: Sequence[str]) -> Plan:
    if any(search.is_undecided for search in searches):
        unfinished = unfinished_search(
            stats.candidates,
            looked_for="a layout that keeps the targets",
            remedies=("raise search.time_limit_s", "restrict tp and pp in 'search'"),
        )
        return infeasible_serving(asked.request, unfinished, stats)
    reasons = (search.why_infeasible() for search in reversed(searches))
    reason = next((reason for reason in reasons if reason is not None), None) or why_infeasible(asked.question)
    return infeasible_serving(asked.request, reason, stats, notes)


def _with_interactivity(plan: Plan, asked: Asked, searches: Sequence[FormSearch], *, of: FormSearch) -> Plan:
    """The plan with throughput of a device against tokens per second of a user, where the request asks for a sweep."""
    if asked.request.search.frontier is not FrontierScope.SWEPT:
        return plan
    points = swept_points(asked.question, [search.steady_points for search in searches], asked.stop)
    if points is None:
        missing = "search.time_limit_s ended the search before throughput per device against tokens/s per user was swept"
        return replace(plan, notes=(*plan.notes, missing))
    if not points:
        return replace(plan, notes=(*plan.notes, "No user waits for a second token: nothing to draw against throughput"))
    assert plan.predicted is not None, "it is feasible"
    of_a_user = of.user_tokens_per_s()
    assert of_a_user is not None, "the rules of forms that are not drawn refuse a sweep"
    drawn = Interactivity(
        points=points,
        plan_tokens_per_s_per_device=plan.predicted.tokens_per_s / plan.devices,
        plan_tokens_per_s_per_user=of_a_user,
    )
    return replace(plan, interactivity=drawn)


# Serving plans that ranking can't tell from the answer, and of them those that differ most in what is uncertain.
#
# A layout's throughput errs by a part that all layouts of a deployment share, which moves none
# before another, and by one of its own. What a plan costs, in devices, money or energy, is so many
# devices for so many answers a second: it errs alike.

OWN_SPREAD = 0.094
"""Spread (natural logarithm) of measured over predicted throughput that each layout has of its own."""

BASIS = "2,018 pairs of measured serving layouts that competed, of 20 deployments"
"""Both made by benchmarks/decisions_serving.py (docs/decisions-serving.md)."""

WITHIN = math.expm1(math.sqrt(2.0) * OWN_SPREAD)

MOST_TO_TRY = 3
"""Plans that are named beside the best."""

_MORE = {
    Objective.DEVICES: "more devices",
    Objective.COST: "more money",
    Objective.ENERGY: "more energy",
    Objective.THROUGHPUT: "more time for as many answers",
}

_AS_GOOD = 5e-4
"""Shares below it are 0.0% in words."""


def equal_plans(objective: Objective, plan: Plan, own: KeptPlan | None, met: Iterable[KeptPlan]) -> Equals:
    """Return the class of a plan: of each name that was met the best that is within the noise. ``own`` is the plan as its
    search met it, None of a form that names none."""
    best, figures = plan.certificate.objective, plan.predicted
    assert best is not None and figures is not None, "a feasible plan"
    names: dict[str, KeptPlan] = {}
    for each in met:
        is_equal = each.objective <= best * (1.0 + WITHIN) and (own is None or each.name != own.name)
        if is_equal and (each.name not in names or _order(each) < _order(names[each.name])):
            names[each.name] = each
    chances = [each for each in (figures.chance_ttft_missed, figures.chance_tpot_missed) if each is not None]
    splits = math.inf if own is None else own.splits
    answer = KeptPlan(
        "",
        best,
        0 if own is None else own.splits,
        figures.ttft_p95_s or 0.0,
        figures.tpot_p95_s or 0.0,
        figures.peak_memory_bytes,
        max(chances) if chances else None,
    )
    plainest = min(names.values(), key=lambda each: (each.splits, _order(each)), default=None)
    return Equals(
        within=WITHIN,
        count=len(names) + 1,
        all_found=False,
        also_try=tuple(_also_try(objective, answer, each) for each in _most_different(answer, list(names.values()))),
        basis=BASIS,
        plainest=None if plainest is None or plainest.splits >= splits else _also_try(objective, answer, plainest),
    )


def _order(each: KeptPlan) -> tuple[object, ...]:
    return each.objective, each.missed or 0.0, each.name


def _most_different(answer: KeptPlan, others: Sequence[KeptPlan]) -> list[KeptPlan]:
    """Up to `MOST_TO_TRY` plans, each the one that differs most from those taken before it, the best among equals."""
    taken, left = [answer], sorted(others, key=_order)
    while left and len(taken) <= MOST_TO_TRY:
        farthest = max(left, key=lambda other: min(_apart(other, each) for each in taken))
        taken.append(farthest)
        left.remove(farthest)
    return taken[1:]


def _apart(one: KeptPlan, other: KeptPlan) -> float:
    """Return how differently two plans stand to what is promised: by chances to miss it, and by the times that they spend."""
    chances = abs((one.missed or 0.0) - (other.missed or 0.0))
    times = ((one.ttft_s, other.ttft_s), (one.tpot_s, other.tpot_s))
    return chances + OWN_SPREAD * sum(abs(math.log(a / b)) for a, b in times if a > 0.0 and b > 0.0)


def _also_try(objective: Objective, answer: KeptPlan, other: KeptPlan) -> AlsoTry:
    worse = other.objective / answer.objective - 1.0
    said = ["predicted as good" if abs(worse) < _AS_GOOD else f"predicted {worse:.1%} {_MORE[objective]}"]
    for name, own_s, other_s in (("TTFT", answer.ttft_s, other.ttft_s), ("TPOT", answer.tpot_s, other.tpot_s)):
        if own_s > 0.0 and other_s > 0.0:
            said.append(f"P95 {name} {other_s * 1e3:.4g} ms instead of {own_s * 1e3:.4g} ms")
    if other.missed is not None and answer.missed is not None:
        said.append(f"{other.missed:.1%} chance to miss a target instead of {answer.missed:.1%}")
    return AlsoTry(
        summary=other.name,
        step_time_s=None,
        peak_memory_bytes=other.peak_memory_bytes,
        chance_out_of_memory=None,
        differs="; ".join(said),
        objective=other.objective,
        chance_missed=other.missed,
    )


# The requests that serving plans are made for, and those that are refused before any search.

_OF_ONE_RATE = (Objective.THROUGHPUT, Objective.ENERGY)
"""Objectives whose figures are at one rate: the highest that is sustained, or that which idle power is shared by."""


def require_servable(request: ServingRequest) -> tuple[ServingRequest, tuple[str, ...]]:
    """Refuse what no layout of this space can mean, before any search.

    Returns the request with the modes that go with the rest of it, and why the others are left out.

    Raises WorkloadError for search restrictions and objectives of training, ModelError for models this space can't serve,
    ClusterError when no device of the cluster computes in the workload's precision.
    """
    require_format(request)
    if request.objective is Objective.STEP_TIME:
        raise WorkloadError(
            "the objective does not go with a serving workload",
            given=request.objective.value,
            allowed=", ".join(o.value for o in (Objective.DEVICES, Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)),
        )
    if isinstance(request.workload.arrivals, ScheduleArrivals) and request.objective in _OF_ONE_RATE:
        raise WorkloadError(
            "this objective is of one rate, and a schedule has several",
            given=request.objective.value,
            allowed="objective devices or cost; or arrivals poisson, at the rate of one interval",
        )
    request, left_out = _of_able_modes(request)
    kinds = request.search.worker_kinds
    _refuse_router(request, [f"worker_kinds {kinds}"] if kinds > 1 else [])
    for form in FORMS:
        form.refuse(request)
    _require_serving_search(request.search)
    require_served_model(request)
    return request, left_out


def _of_able_modes(request: ServingRequest) -> tuple[ServingRequest, tuple[str, ...]]:
    """Return the request with the modes that go with the rest of it, and why others are left out. Raises where none does."""
    refused: dict[ServingMode, InvalidInputError] = {}
    for mode in request.search.modes:
        try:
            _require_mode(replace(request, search=replace(request.search, modes=(mode,))), mode)
        except InvalidInputError as error:
            refused[mode] = error
    able = tuple(mode for mode in request.search.modes if mode not in refused)
    if not able:
        raise next(iter(refused.values()))
    left_out = tuple(f"search.modes {mode.value} is left out: {error.problem}" for mode, error in refused.items())
    return replace(request, search=replace(request.search, modes=able)), left_out


def _require_mode(request: ServingRequest, mode: ServingMode) -> None:
    """Refuse a mode that does not go with the rest of a request, which allows no other."""
    search, server = request.search, SERVERS.get(request.search.launcher)
    if search.space is Space.LAUNCHABLE and server is not None and _FORMS[mode] not in server.forms:
        raise WorkloadError(
            "the launcher starts no plans of this form",
            given=f"search.modes [{mode.value}] with search.launcher {search.launcher.value}",
            allowed=", ".join(each.value for each, form in _FORMS.items() if form in server.forms),
            remedy=_OTHER_FORMS,
        )
    if mode is not ServingMode.AGGREGATED:
        _refuse_router(request, [mode.value])
        next(form for form in FORMS if form.name == _FORMS[mode].value).refuse(request)


def _refuse_router(request: ServingRequest, asked: Sequence[str]) -> None:
    """Refuse a router of equal replicas beside other forms, whose workers draw their requests. Raises WorkloadError."""
    router = request.workload.router
    if router is not Router.RANDOM and asked:
        raise WorkloadError(
            f"router {router.value} deals requests to equal replicas that do both phases, to workers of no other form",
            given=", ".join(asked),
            allowed=f"search.modes [aggregated] with worker_kinds 1; or workload.router {Router.RANDOM.value}",
        )


def _require_serving_search(search: Search) -> None:
    if search.risk != DEFAULT_RISK or search.price_risk is not None:
        raise WorkloadError(
            "search.risk is of training plans: a serving engine sizes its cache by the memory that it finds free at start",
            given=search.risk if search.price_risk is None else f"price_risk {search.price_risk}",
            allowed=f"{DEFAULT_RISK}, which has no effect",
            remedy="set cluster.memory_reserve for a margin of your own, slo.confidence for targets",
        )
    if search.cp and 1 not in search.cp and not _may_share_prompts(search):
        sharing = ", ".join(engine for engine, rules in ENGINES.items() if rules.prompt_sharing is not PromptSharing.NONE)
        raise WorkloadError(
            "search restrictions of training do not go with a serving workload",
            given=f"search.cp {list(search.cp)}",
            allowed=f"1; others of engine {sharing} or of prefill workers",
        )
    if search.space is Space.LAUNCHABLE and search.launcher not in (*SERVERS, DEFAULT_LAUNCHER):
        raise WorkloadError(
            "the launcher does not serve", given=search.launcher.value, allowed=", ".join(server.value for server in SERVERS)
        )
    server = SERVERS.get(search.launcher)
    if search.space is Space.LAUNCHABLE and server is not None and server.engine is not search.engine:
        raise WorkloadError(
            "the launcher starts another engine",
            given=f"search.launcher {search.launcher.value} with search.engine {search.engine.value}",
            allowed=f"search.engine {server.engine.value}",
            remedy="name one of the two: a launcher's engine is taken where the request names none",
        )
    if (
        search.space is Space.LAUNCHABLE
        and server is not None
        and search.worker_kinds > 1
        and ServingForm.KINDS not in server.forms
    ):
        given = f"search.worker_kinds {search.worker_kinds} with search.launcher {search.launcher.value}"
        raise WorkloadError("the launcher starts workers of one kind", given=given, allowed="1", remedy=_OTHER_FORMS)


_FORMS = {
    ServingMode.AGGREGATED: ServingForm.REPLICAS,
    ServingMode.DISAGGREGATED: ServingForm.POOLS,
    ServingMode.SWITCHED: ServingForm.SWITCHED,
}


_OTHER_FORMS = "allow others, or leave search.launcher out: plans of no launcher in particular have every form"


def _may_share_prompts(search: Search) -> bool:
    return ServingMode.DISAGGREGATED in search.modes or ENGINES[search.engine].prompt_sharing is not PromptSharing.NONE


# The answer that no form of a serving plan keeps the promise.


def infeasible_serving(request: ServingRequest, reason: Reason, stats: SearchStats, notes: Sequence[str] = ()) -> Plan:
    """The answer that there is no plan in the space that the request's forms make, and why."""
    return infeasible_plan(request, reason, stats, space=space_of(request), notes=notes)


# A plan that was given: predicted anew by its form.


def predict_serving(request: ServingRequest, plan: Plan) -> Plan:
    """The plan with every figure predicted anew; infeasible, with the reason, where it lacks memory or misses a target.

    Raises PlanFileError when the plan does not belong to the request.
    """
    form, layout = form_and_layout(request, plan)
    found = form.predict(request, plan, layout)
    if isinstance(found, Misfit):
        missed = infeasible_serving(request, found.reason, found.stats)
        return replace(missed, certificate=replace(missed.certificate, space=GIVEN_PLAN))
    return found


def form_and_layout(request: ServingRequest, plan: Plan) -> tuple[Form[Any], ServingLayout]:
    """The form of a feasible serving plan, and its layout.

    Raises PlanFileError for any other plan, and for a request that nothing serves what its rules say.
    """
    for form in FORMS:
        if isinstance(plan.layout, form.layout):
            # Kinds of workers can be predicted and simulated under arrivals that they are not searched for.
            require_servable(replace(request, search=replace(request.search, worker_kinds=1)))
            _refuse_router(request, [] if form.takes_turns else [form.name])
            return form, plan.layout
    raise PlanFileError("only a feasible serving plan can be predicted for a serving request", given=plan.kind)


def simulate_serving(request: ServingRequest, plan: Plan) -> ServingSimulation:
    """Simulate a plan under the request's load, to the end whatever it misses; under a schedule at each of its rates.

    Raises PlanFileError when the plan does not belong to the request, InfeasibleError
    when it does not fit in memory.
    """
    form, layout = form_and_layout(request, plan)
    if isinstance(request.workload.arrivals, ScheduleArrivals):
        return simulate_schedule(request, layout, lambda at_a_rate: form.simulate(at_a_rate, layout))
    return form.simulate(request, layout)
