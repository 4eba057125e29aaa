"""plan_serving: the best layout for a request, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.frontier import Interactivity
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import RunnerUp, SearchStats
from meshwright.solver.answer.reason import Reason, unfinished_search
from meshwright.solver.control import OnProgress, Stop, never_stop
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import prefill_layouts, worker_layouts
from meshwright.solver.serving.forms.kinds.planning import KindsSearch
from meshwright.solver.serving.forms.pools.answer import pools_certificate, pools_objective, pools_plan, pools_runner_up
from meshwright.solver.serving.forms.pools.goodput import largest_pools_goodput
from meshwright.solver.serving.forms.pools.least_energy import least_energy_pools
from meshwright.solver.serving.forms.pools.search import PoolsResult, PoolsSearch
from meshwright.solver.serving.forms.switched.answer import switched_plan
from meshwright.solver.serving.forms.switched.search import SwitchedSearch, search_switched
from meshwright.solver.serving.interactivity import swept_points, user_tokens_per_s
from meshwright.solver.serving.promise.candidates import Measured
from meshwright.solver.serving.promise.certificates import objective_of, searched_certificate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.question import Found, Question, SearchResult
from meshwright.solver.serving.rules import require_servable
from meshwright.solver.serving.workers.answer import (
    feasible_plan,
    frontier,
    infeasible_plan,
    leftover_notes,
    refusal_notes,
    runners_up,
)
from meshwright.solver.serving.workers.cheapest import cheapest, of_equal_cost
from meshwright.solver.serving.workers.goodput import choose_roomiest_goodput, largest_goodput
from meshwright.solver.serving.workers.least_energy import least_energy
from meshwright.solver.serving.workers.reasons import no_layout, why_infeasible
from meshwright.solver.serving.workers.roomiest import choose_roomiest

_SHOWN = 5

_WORTH_A_LOOK = 2.0
"""Plans of workers that do both phases are looked for up to so many times the cost of pools: runners-up, then."""


def plan_serving(request: ServingRequest, *, stop: Stop, progress: OnProgress) -> Plan:
    """The best serving plan of the request's space; infeasible, with its reason, when nothing keeps the promise.

    Objective devices: fewest devices that keep the P95 targets at the arrival rate; cost: the cheapest; energy: the fewest
    joules a token; throughput: the highest rate at which all devices keep them (figures are at that rate).
    ``search.seconds`` is 0: clocks belong to the caller. Raises InvalidInputError for a request that this space can't mean.
    """
    require_servable(request)
    _require_prices(request)
    evaluator = Evaluator(request.workload, request.slo, request.search.seed, stop)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = [builder.engine(layout) for layout in worker_layouts(request)]
    if not engines:
        return infeasible_plan(request, no_layout(request), _stats(SearchResult(), evaluator))

    def describe(now: SearchResult) -> Plan | None:
        """The best so far; nothing is proven of it yet."""
        if now.best is None or not _is_enough(request, question, now.best.load):
            return None
        certificate = searched_certificate(request, now.best, evaluator, bound=0.0)
        stats, notes = _stats(now, evaluator), leftover_notes(request, now.best.devices)
        return feasible_plan(request, now.best, evaluator=evaluator, certificate=certificate, stats=stats, notes=notes)

    question = Question(
        engines=engines,
        evaluator=evaluator,
        load=evaluator.traffic.load,
        replicas=request.search.dp,
        unit_cost=_price if request.objective is Objective.COST else _one,
        progress=progress,
        describe=describe,
    )
    modes = request.search.modes
    prefill = _prefill_engines(request, question, builder) if ServingMode.DISAGGREGATED in modes else []
    search = PoolsSearch(request, question, prefill_engines=prefill, stop=stop) if prefill else None
    if search is not None and request.objective in (Objective.DEVICES, Objective.COST):
        question = replace(question, at_most=_WORTH_A_LOOK * search.incumbent_cost())
    result = _search(request, question) if ServingMode.AGGREGATED in modes else SearchResult()
    pools = PoolsResult() if search is None else _search_pools(request, question, search, result)
    kinds = _search_kinds(request, question, result, pools) if request.search.worker_kinds > 1 else None
    of_kinds = kinds is not None and kinds.result.best is not None
    so_far = _best_objective(request, question, result, pools)
    switched = None
    if ServingMode.SWITCHED in modes:
        switched = search_switched(request, question, builder, below=so_far, earlier=_stats(result, evaluator, pools))
        evaluator.simulations += switched.evaluator.simulations
    if switched is not None and switched.is_better_than(so_far):
        switched.choose_roomiest()
    elif pools.best is None and result.best is not None and not result.stopped and not of_kinds:
        _choose_roomiest(request, question, result, result.best)
    # What follows describes the answer: a few simulations that the stopping rule no longer cuts off.
    evaluator.stop = never_stop
    floor = math.inf if switched is None else switched.floor()
    stats, notes = _stats(result, evaluator, pools), refusal_notes(result.refused)
    if kinds is not None:
        plan = kinds.plan(stats, notes, bound=_bound_of_one_kind(result, pools))
        if plan is not None:
            return replace(plan, runners_up=_one_kind(request, question, result, pools))
        result.bound = min(result.bound, kinds.result.bound)
        floor = min(floor, kinds.result.bound) if kinds.result.stopped else floor
    if switched is not None:
        stats, notes = switched.stats(stats), (*notes, *switched.notes())
        if switched.is_better_than(so_far) and switched.is_enough(question.load):
            return _switched_plan(request, switched, question, result, pools, stats, notes)
    if pools.best is not None and _is_enough(request, question, pools.best.load):
        plan = _pools_plan(request, question, pools, result, stats, floor)
        return _with_interactivity(plan, request, question, prefill, decode=pools.best.placed.decode, stop=stop)
    found = result.best
    if found is None or not _is_enough(request, question, found.load):
        if result.stopped or pools.stopped or floor < math.inf:
            return infeasible_plan(request, _unfinished(stats), stats)
        if switched is not None and modes == (ServingMode.SWITCHED,):
            return infeasible_plan(request, switched.why_infeasible(), stats, notes)
        reason = why_infeasible(question)
        return infeasible_plan(request, reason if kinds is None else kinds.explained(reason), stats, notes)
    bound = min(result.bound, floor, pools.bound if pools.stopped else math.inf)
    plan = feasible_plan(
        request,
        found,
        evaluator=evaluator,
        certificate=searched_certificate(request, found, evaluator, bound=bound),
        stats=stats,
        notes=(*notes, *leftover_notes(request, found.devices)),
    )
    plan = replace(plan, runners_up=runners_up(request, result, evaluator), frontier=frontier(result, evaluator))
    return _with_interactivity(plan, request, question, prefill, decode=found.measured, stop=stop)


def _with_interactivity(
    plan: Plan, request: ServingRequest, question: Question, prefill: Sequence[Engine], *, decode: Measured, stop: Stop
) -> Plan:
    """The plan with throughput of a device against tokens per second of a user, where the request asks for a sweep."""
    if request.search.frontier is not FrontierScope.SWEPT:
        return plan
    points = swept_points(question, prefill, stop)
    if points is None:
        missing = "search.time_limit_s ended the search before throughput per device against tokens/s per user was swept"
        return replace(plan, notes=(*plan.notes, missing))
    if not points:
        return replace(plan, notes=(*plan.notes, "No user waits for a second token: nothing to draw against throughput"))
    assert plan.predicted is not None
    phases = ServingMode.DISAGGREGATED if isinstance(plan.layout, Pools) else ServingMode.AGGREGATED
    drawn = Interactivity(
        points=points,
        plan_tokens_per_s_per_device=plan.predicted.tokens_per_s / plan.devices,
        plan_tokens_per_s_per_user=user_tokens_per_s(decode, question.evaluator, phases=phases),
    )
    return replace(plan, interactivity=drawn)


def _search(request: ServingRequest, question: Question) -> SearchResult:
    match request.objective:
        case Objective.THROUGHPUT:
            return largest_goodput(question)
        case Objective.ENERGY:
            return least_energy(question)
        case _:
            return cheapest(question)


def _choose_roomiest(request: ServingRequest, question: Question, result: SearchResult, best: Found) -> None:
    """Of plans as good as the best the roomiest."""
    if request.objective is Objective.THROUGHPUT:
        choose_roomiest_goodput(question, result)
    elif request.objective in (Objective.DEVICES, Objective.COST):
        choose_roomiest(question, result, of_equal_cost(question, best))


def _prefill_engines(request: ServingRequest, question: Question, builder: EngineBuilder) -> list[Engine]:
    """Engines of prefill workers: those of all workers, and those whose ranks share prompts."""
    whole = {engine.key: engine for engine in question.engines if not engine.layout.repeats_answers}
    return [whole.get(layout.key) or builder.engine(layout) for layout in prefill_layouts(request)]


def _search_pools(request: ServingRequest, question: Question, search: PoolsSearch, aggregated: SearchResult) -> PoolsResult:
    """Pools that are better than the best aggregated plan; of equals that one stays."""
    best = aggregated.best
    if request.objective is Objective.THROUGHPUT:
        found = largest_pools_goodput(search, above=0.0 if best is None else best.load)
    elif request.objective is Objective.ENERGY:
        below = math.inf if best is None else objective_of(request, best, question.evaluator)
        found = least_energy_pools(search, below=below)
    else:
        found = search.cheapest(below=math.inf if best is None else question.cost(best.engine, best.replicas))
    question.evaluator.simulations += search.simulations
    return found


def _search_kinds(request: ServingRequest, question: Question, aggregated: SearchResult, pools: PoolsResult) -> KindsSearch:
    """Mixes of several kinds of workers that are better than every plan of one kind; of equals that stays."""
    kinds = KindsSearch(request, question)
    below = math.inf
    if pools.best is not None:
        below = pools_objective(request, pools.best)
    elif aggregated.best is not None:
        below = objective_of(request, aggregated.best, question.evaluator)
    kinds.run(below=below)
    return kinds


def _bound_of_one_kind(result: SearchResult, pools: PoolsResult) -> float:
    """Return the bound that is proven for plans of one kind beside a mix that is better than all of them that were found."""
    if pools.stopped:
        return 0.0
    return result.bound if result.stopped else math.inf


def _one_kind(request: ServingRequest, question: Question, result: SearchResult, pools: PoolsResult) -> tuple[RunnerUp, ...]:
    """Plans of one kind that a mix beats."""
    beaten = [] if pools.best is None else [pools_runner_up(request, pools.best, "keeps the targets, but a mix is better")]
    every = replace(result, beaten=[*result.beaten, *([result.best] if result.best else [])])
    return (*beaten, *runners_up(request, every, question.evaluator))[:_SHOWN]


def _is_enough(request: ServingRequest, question: Question, load: float) -> bool:
    """Return True if a load that is kept is the one asked for: of goodput, at least that."""
    return request.objective is not Objective.THROUGHPUT or load >= question.load


def _best_objective(request: ServingRequest, question: Question, result: SearchResult, pools: PoolsResult) -> float:
    """The objective of the best of replicas and pools, infinite where there is none."""
    of_pools = math.inf if pools.best is None else pools_objective(request, pools.best)
    return of_pools if result.best is None else min(of_pools, objective_of(request, result.best, question.evaluator))


def _switched_plan(
    request: ServingRequest,
    switched: SwitchedSearch,
    question: Question,
    result: SearchResult,
    pools: PoolsResult,
    stats: SearchStats,
    notes: Sequence[str],
) -> Plan:
    """The plan of workers that switch layouts, and what it was better than."""
    found = switched.result.best
    assert found is not None
    bound = min(switched.result.bound, result.bound if result.stopped else math.inf)
    plan = switched_plan(
        request,
        found,
        evaluator=switched.evaluator,
        bound=0.0 if pools.stopped else bound,
        stats=stats,
        notes=(*notes, *leftover_notes(request, found.devices)),
    )
    beaten = runners_up(request, switched.result, switched.evaluator)
    every = replace(result, beaten=[*result.beaten, *([result.best] if result.best else [])])
    apart = [] if pools.best is None else [pools_runner_up(request, pools.best, "is no better")]
    others = (*beaten, *apart, *runners_up(request, every, question.evaluator))
    return replace(plan, runners_up=tuple(sorted(others, key=lambda other: (other.objective, other.summary)))[:_SHOWN])


def _pools_plan(
    request: ServingRequest, question: Question, pools: PoolsResult, result: SearchResult, stats: SearchStats, floor: float
) -> Plan:
    assert pools.best is not None
    bound = min(pools_objective(request, pools.best), result.bound if result.stopped else math.inf, floor)
    if pools.stopped:
        bound = 0.0
    plan = pools_plan(
        request,
        pools.best,
        evaluator=question.evaluator,
        certificate=pools_certificate(request, pools.best, bound),
        stats=stats,
        notes=(*refusal_notes(result.refused), *leftover_notes(request, pools.best.placed.devices)),
    )
    missing = [pools_runner_up(request, missed, "misses the targets") for missed in pools.missed[-_SHOWN:]]
    every = replace(result, beaten=[*result.beaten, *([result.best] if result.best else [])])
    beaten = runners_up(request, every, question.evaluator)
    return replace(plan, runners_up=(*missing, *beaten)[:_SHOWN])


def _unfinished(stats: SearchStats) -> Reason:
    return unfinished_search(
        stats.candidates,
        looked_for="a layout that keeps the targets",
        remedies=("raise search.time_limit_s", "restrict tp and pp in 'search'"),
    )


def _stats(result: SearchResult, evaluator: Evaluator, pools: PoolsResult | None = None) -> SearchStats:
    considered = result.considered + (0 if pools is None else pools.considered)
    return SearchStats(candidates=considered, evaluated=evaluator.simulations, seconds=0.0)


def _one(_: Engine) -> float:
    return 1.0


def _price(engine: Engine) -> float:
    price = engine.layout.group.node.device.price_per_hour
    assert price is not None, "prices are asked for first"
    return price


def _require_prices(request: ServingRequest) -> None:
    if request.objective is not Objective.COST:
        return
    unpriced = [group.node.device.name for group in request.cluster.groups if not group.node.device.price_per_hour]
    if unpriced:
        raise WorkloadError(
            "objective cost needs a price for every device",
            given=unpriced,
            remedy="set price_per_hour of the device, or ask for objective devices",
        )
