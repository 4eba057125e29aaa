"""Serving plans by enumeration: every layout, batch limit and number of replicas or workers, simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from solver.control import never_stop
from solver.request import Objective, PlanRequest, ServingMode, ServingWorkload
from solver.serving.engine import Engine, EngineBuilder
from solver.serving.evaluation import Candidate, Evaluator, Measured
from solver.serving.goodput import RATE_GRID
from solver.serving.layouts import layouts
from solver.serving.phases import Phase, PhaseKind, phase
from solver.serving.pools import PairSimulator, PoolPair, placed
from solver.serving.traffic import Share


def best_objective(request: PlanRequest, *, found: float | None) -> float | None:
    """The objective of the best plan of the modes that the request allows, None where no plan keeps the promise.

    Devices or USD/h: of all plans. Seconds a request: ``found`` where no plan does better; otherwise that of one that does.
    """
    assert isinstance(request.workload, ServingWorkload)
    evaluator = Evaluator(request.workload, request.slo, request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = [builder.engine(layout) for layout in layouts(request)]
    if request.objective is Objective.THROUGHPUT:
        return _goodput(request, evaluator, engines, found)
    best = math.inf
    if ServingMode.AGGREGATED in request.search.modes:
        best = _cheapest_replicas(request, evaluator, engines)
    if ServingMode.DISAGGREGATED in request.search.modes:
        best = _cheapest_pools(request, evaluator, engines, below=best)
    return best if best < math.inf else None


def _cheapest_replicas(request: PlanRequest, evaluator: Evaluator, engines: list[Engine]) -> float:
    best, load = math.inf, evaluator.traffic.load
    for candidate, replicas in _replicas(evaluator, engines):
        cost = _cost(request, candidate.engine, replicas)
        if cost < best and evaluator.measure(candidate, Share(load, replicas)).keeps:
            best = cost
    return best


def _cheapest_pools(request: PlanRequest, evaluator: Evaluator, engines: list[Engine], *, below: float) -> float:
    """Every pair of layouts and of numbers of workers, with the roomiest batch limits of each phase."""
    load = evaluator.traffic.load
    prefill, decode = (phase(kind, request, engines, load=load, stop=never_stop) for kind in PhaseKind)
    simulator, best = PairSimulator(request.cluster, evaluator), below
    for (p, p_workers), (d, d_workers) in itertools.product(_workers(engines), repeat=2):
        cost = _cost(request, p, p_workers) + _cost(request, d, d_workers)
        ranks = placed(p.layout, p_workers, d.layout, d_workers)
        if cost < best and ranks is not None:
            first, second = _choice(prefill, p, p_workers), _choice(decode, d, d_workers)
            if first and second and simulator.measure(PoolPair(first, second, *ranks), load).keeps:
                best = cost
    return best


def _choice(of: Phase, engine: Engine, workers: int) -> Measured | None:
    return of.choice(engine, workers) if of.usable(engine) else None


def _goodput(request: PlanRequest, evaluator: Evaluator, engines: list[Engine], found: float | None) -> float | None:
    """Every rate of the grid above the found one that a bound does not refuse, or the requested one and those above."""
    first = (
        math.log(1.0 / found) / math.log(RATE_GRID) + 0.5 if found else math.log(evaluator.traffic.load) / math.log(RATE_GRID)
    )
    for candidate in _candidates(evaluator, engines):
        replicas = candidate.engine.layout.most_replicas
        step = math.ceil(first)
        while RATE_GRID**step < replicas * evaluator.rate_bound(candidate):
            if evaluator.measure(candidate, Share(RATE_GRID**step, replicas)).keeps:
                return RATE_GRID**-step
            step += 1
    return found


def _replicas(evaluator: Evaluator, engines: list[Engine]) -> Iterator[tuple[Candidate, int]]:
    for candidate in _candidates(evaluator, engines):
        for replicas in range(1, candidate.engine.layout.most_replicas + 1):
            yield candidate, replicas


def _candidates(evaluator: Evaluator, engines: list[Engine]) -> Iterator[Candidate]:
    for engine in engines:
        yield from evaluator.candidates(engine)


def _workers(engines: list[Engine]) -> Iterator[tuple[Engine, int]]:
    for engine in engines:
        for workers in range(1, engine.layout.most_replicas + 1):
            yield engine, workers


def _cost(request: PlanRequest, engine: Engine, replicas: int) -> float:
    price = engine.layout.group.node.device.price_per_hour if request.objective is Objective.COST else 1.0
    assert price is not None
    return replicas * engine.layout.devices * price
