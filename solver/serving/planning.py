"""plan_serving: the best layout for a request, or the reason why there is none."""

from __future__ import annotations

from dataclasses import replace

from costmodels.errors import WorkloadError
from solver.control import OnProgress, Stop, never_stop
from solver.plan import Plan, Reason, SearchStats, unfinished_search
from solver.request import Objective, PlanRequest, ServingWorkload
from solver.serving.answer import (
    feasible_plan,
    frontier,
    infeasible_plan,
    refusal_notes,
    runners_up,
    searched_certificate,
)
from solver.serving.cheapest import cheapest
from solver.serving.engine import Engine, EngineBuilder
from solver.serving.evaluation import Evaluator
from solver.serving.goodput import largest_goodput
from solver.serving.layouts import layouts, require_servable
from solver.serving.question import Question, SearchResult
from solver.serving.reasons import no_layout, why_infeasible


def plan_serving(request: PlanRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best serving plan of the request's space; infeasible, with its reason, when nothing keeps the promise.

    Objective devices: fewest devices that keep the P95 targets at the arrival rate; cost: the cheapest; throughput: the
    highest rate at which all devices keep them (figures are at that rate). ``search.seconds`` is 0: clocks belong to the
    caller. Raises InvalidInputError for a request that this space can't mean.
    """
    require_servable(request)
    assert isinstance(request.workload, ServingWorkload)
    _require_prices(request)
    evaluator = Evaluator(request.workload, request.slo, request.search.seed, stop)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = [builder.engine(layout) for layout in layouts(request)]
    if not engines:
        return infeasible_plan(request, no_layout(request), _stats(SearchResult(), evaluator))
    question = Question(
        engines=engines,
        evaluator=evaluator,
        load=evaluator.traffic.load,
        replicas=request.search.dp,
        unit_cost=_price if request.objective is Objective.COST else _one,
        progress=progress,
    )
    by_goodput = request.objective is Objective.THROUGHPUT
    result = largest_goodput(question) if by_goodput else cheapest(question)
    # What follows describes the answer: a few simulations that the stopping rule no longer cuts off.
    evaluator.stop = never_stop
    found = result.best
    if result.stopped and (found is None or (by_goodput and found.load < question.load)):
        return infeasible_plan(request, _unfinished(result), _stats(result, evaluator))
    notes = refusal_notes(result.refused)
    if found is None or (by_goodput and found.load < question.load):
        return infeasible_plan(request, why_infeasible(question), _stats(result, evaluator), notes)
    plan = feasible_plan(
        request,
        found,
        evaluator=evaluator,
        certificate=searched_certificate(request, found, result.bound),
        stats=_stats(result, evaluator),
        notes=notes,
    )
    return replace(plan, runners_up=runners_up(request, result), frontier=frontier(result, evaluator))


def _unfinished(result: SearchResult) -> Reason:
    return unfinished_search(
        result.considered,
        looked_for="a layout that keeps the targets",
        remedies=("raise search.time_limit_s", "restrict tp and pp in 'search'"),
    )


def _stats(result: SearchResult, evaluator: Evaluator) -> SearchStats:
    return SearchStats(candidates=result.considered, evaluated=evaluator.simulations, seconds=0.0)


def _one(_: Engine) -> float:
    return 1.0


def _price(engine: Engine) -> float:
    price = engine.layout.group.node.device.price_per_hour
    assert price is not None, "prices are asked for first"
    return price


def _require_prices(request: PlanRequest) -> None:
    if request.objective is not Objective.COST:
        return
    unpriced = [group.node.device.name for group in request.cluster.groups if not group.node.device.price_per_hour]
    if unpriced:
        raise WorkloadError(
            "objective cost needs a price for every device",
            given=unpriced,
            remedy="set price_per_hour of the device, or ask for objective devices",
        )
