"""plan_serving: the best layout for a request, or the reason why there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.solver.answer.frontier import Interactivity
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.answer.reason import unfinished_search
from meshwright.solver.control import OnProgress, Stop, never_stop
from meshwright.solver.problem.choices import FrontierScope
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import worker_layouts
from meshwright.solver.serving.equals import equal_plans
from meshwright.solver.serving.forms.form import Asked, Earlier, FormSearch
from meshwright.solver.serving.forms.table import FORMS, space_of
from meshwright.solver.serving.no_plan import infeasible_serving
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import Question
from meshwright.solver.serving.promise.unit_cost import require_prices, unit_cost
from meshwright.solver.serving.rules import require_servable
from meshwright.solver.serving.workers.interactivity import swept_points
from meshwright.solver.serving.workers.reasons import no_layout, why_infeasible


def plan_serving(request: ServingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best serving plan of the request's space; infeasible, with its reason, when nothing keeps the promise.

    Objective devices: fewest devices that keep the P95 targets at the arrival rate; cost: the cheapest; energy: the fewest
    joules a token; throughput: the highest rate at which all devices keep them (figures are at that rate).
    ``search.seconds`` is 0: clocks belong to the caller. Raises InvalidInputError for a request that this space can't mean.
    """
    require_servable(request)
    require_prices(request)
    asked = _asked(request, stop, progress)
    if not asked.question.engines:
        return infeasible_serving(request, no_layout(request), _stats(asked, ()))
    searches = [search for form in FORMS if (search := form.search(asked)) is not None]
    best = _search(asked, searches)
    if best is not None:
        best.choose_roomiest()
    # What follows describes the answer: a few simulations that the stopping rule no longer cuts off.
    asked.question.evaluator.stop = never_stop
    stats, notes = _stats(asked, searches), tuple(note for search in searches for note in search.notes())
    for search in reversed(searches):
        others = [other for other in searches if other is not search]
        plan = search.plan(others, stats=stats, notes=notes)
        if plan is not None:
            met = [each.kept() for each in (search, *others)]
            own = next(iter(met[0]), None)
            plan = replace(plan, equals=equal_plans(request.objective, plan, own, itertools.chain.from_iterable(met)))
            return _with_interactivity(plan, asked, searches, of=search)
    return _infeasible(asked, searches, stats, notes)


def _asked(request: ServingRequest, stop: Stop, progress: OnProgress) -> Asked:
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
