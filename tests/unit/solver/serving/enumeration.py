"""Serving plans by enumeration: every layout, batch limit and number of replicas or workers, simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from meshwright.costmodels.serving.latency_law import latency_law
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.control import never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import prefill_layouts, worker_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.pools.pools import PhaseKind, PhaseWorkers, PlacedPools, PoolsSimulator, phase, placed
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder
from meshwright.solver.serving.forms.switched.form import TwoLayouts
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.certificates import energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import place_of_limit
from meshwright.solver.serving.workers.answer import axes_of
from meshwright.solver.serving.workers.goodput import RATE_GRID

Workers = tuple[int, ...]
"""Replicas, degrees and batch limits."""


def best_objective(request: ServingRequest, *, found: float | None) -> float | None:
    """The objective of the best plan of the modes that the request allows, None where no plan keeps the promise.

    Devices or USD/h: of all plans. Seconds a request: of the highest rate of the grid, at most the one after ``found``, at
    which and at all lower rates of the grid some plan keeps the promise; by that definition higher rates need no look.
    """
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = [builder.engine(layout) for layout in worker_layouts(request)]
    if request.objective is Objective.THROUGHPUT:
        return _least_seconds(request, evaluator, engines, found)
    best = math.inf
    if request.objective is Objective.ENERGY:
        return _least_energy(request, evaluator, engines)
    if ServingMode.AGGREGATED in request.search.modes:
        best = _cheapest_replicas(request, evaluator, engines)
    if ServingMode.DISAGGREGATED in request.search.modes:
        best = _cheapest_pools(request, evaluator, engines, below=best)
    if ServingMode.SWITCHED in request.search.modes:
        best = min(best, _cheapest_replicas(request, *switching(request, engines)))
    return best if best < math.inf else None


def roomiest(request: ServingRequest, plan: Plan) -> tuple[Workers, ...]:
    """The workers with most room among all plans that cost as much as a plan and are of its kind: decode workers, or those
    that do both, then prefill workers."""
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engines = [builder.engine(layout) for layout in worker_layouts(request)]
    cost = plan.certificate.objective
    assert cost is not None
    if isinstance(plan.layout, Pools):
        return _roomiest_pools(request, evaluator, engines, cost=cost)
    found = []
    for measured in _equally_good(request, evaluator, engines, cost=cost):
        candidate, replicas = measured.candidate, measured.share.replicas
        order = (candidate.engine.key, candidate.step_tokens, *place_of_limit(candidate.sequences))
        found.append((_strain(request, measured), replicas, order, _workers_of(measured)))
    return (min(found)[-1],)


def _equally_good(request: ServingRequest, evaluator: Evaluator, engines: list[Engine], *, cost: float) -> Iterator[Measured]:
    """Replicas that keep the promise at a cost, or all that fit where they sustain a goodput of so many seconds a request."""
    goodput = request.objective is Objective.THROUGHPUT
    for candidate, replicas in _replicas(evaluator, engines):
        if goodput and replicas == candidate.engine.layout.most_replicas:
            step = round(_steps(1.0 / cost))
            steps = range(step, step - math.ceil(_steps(2.0)) - 1, -1)
            if all(evaluator.measure(candidate, Share(RATE_GRID**lower, replicas)).keeps for lower in steps):
                yield evaluator.measure(candidate, Share(RATE_GRID**step, replicas))
        elif not goodput and math.isclose(_cost(request, candidate.engine, replicas), cost):
            measured = evaluator.measure(candidate, Share(evaluator.traffic.load, replicas))
            if measured.keeps:
                yield measured


def described(plan: Plan) -> tuple[Workers, ...]:
    """A plan's workers, as ``roomiest`` gives them."""
    assert isinstance(plan.layout, Replicas | Pools)
    return tuple(
        _degrees(workers.axes, workers.max_num_batched_tokens, workers.max_num_seqs)
        for workers in reversed(plan.layout.all_workers)
    )


def _roomiest_pools(
    request: ServingRequest, evaluator: Evaluator, engines: list[Engine], *, cost: float
) -> tuple[Workers, ...]:
    """Of all pools of equal cost that keep the promise, the ones whose phases by themselves leave most room."""
    load = evaluator.traffic.load
    prefill, decode = _phases(request, engines, load=load)
    simulator, found = PoolsSimulator(request.cluster, evaluator, promised_of(request, pools=True)), []
    for (p, p_workers), (d, d_workers) in itertools.product(_workers(prefill.engines), _workers(decode.engines)):
        if not math.isclose(_cost(request, p, p_workers) + _cost(request, d, d_workers), cost):
            continue
        pools = _placed(prefill, p, p_workers, decode, d, d_workers)
        if pools is not None and simulator.measure(pools, load).keeps:
            strain = max(_strain(request, measured, pools=True) for measured in (pools.prefill, pools.decode))
            order = (strain, p_workers + d_workers, p.key, d.key)
            found.append((order, (_workers_of(pools.decode), _workers_of(pools.prefill))))
    return min(found)[-1]


def _strain(request: ServingRequest, measured: Measured, *, pools: bool = False) -> float:
    """The larger share of a target that what is promised takes."""
    devices = [group.node.device for group in request.cluster.groups]
    law, slo = latency_law(request.search.engine, pools=pools, devices=devices), request.slo
    asked = ((measured.ttft, law.ttft, slo.p95_ttft_ms), (measured.tpot, law.tpot, slo.p95_tpot_ms))
    return max(
        (figure.high + (of.outside_s if figure.high else 0.0)) * of.factor(slo.confidence) / (target_ms / 1e3)
        for figure, of, target_ms in asked
        if target_ms and math.isfinite(figure.high)
    )


def _workers_of(measured: Measured) -> Workers:
    candidate = measured.candidate
    axes = axes_of(candidate.engine.layout, measured.share.replicas)
    return _degrees(axes, candidate.step_tokens, candidate.sequences)


def _degrees(axes: Axes, step_tokens: int, sequences: int) -> Workers:
    return axes.dp, axes.tp, axes.pp, axes.ep, axes.attention_dp, axes.kvp, step_tokens, sequences


def _cheapest_replicas(request: ServingRequest, evaluator: Evaluator, engines: list[Engine]) -> float:
    """Every candidate and number of replicas, cheapest first, up to the first that keeps the promise."""
    load, every = evaluator.traffic.load, list(_replicas(evaluator, engines))
    by_cost = sorted((_cost(request, candidate.engine, n), place) for place, (candidate, n) in enumerate(every))
    for cost, place in by_cost:
        candidate, replicas = every[place]
        if evaluator.measure(candidate, Share(load, replicas)).keeps:
            return cost
    return math.inf


def _cheapest_pools(request: ServingRequest, evaluator: Evaluator, engines: list[Engine], *, below: float) -> float:
    """All layouts and numbers of workers of both pools, with the roomiest batch limits of each phase, cheapest first."""
    load = evaluator.traffic.load
    prefill, decode = _phases(request, engines, load=load)
    simulator = PoolsSimulator(request.cluster, evaluator, promised_of(request, pools=True))
    prompts, answers = list(_workers(prefill.engines)), list(_workers(decode.engines))
    costs = [[_cost(request, engine, n) for engine, n in workers] for workers in (prompts, answers)]
    places = itertools.product(range(len(prompts)), range(len(answers)))
    sums = ((costs[0][p] + costs[1][d], p, d) for p, d in places)
    for cost, p, d in sorted(entry for entry in sums if entry[0] < below):
        pools = _placed(prefill, *prompts[p], decode, *answers[d])
        if pools is not None and simulator.measure(pools, load).keeps:
            return cost
    return below


def _least_energy(request: ServingRequest, evaluator: Evaluator, engines: list[Engine]) -> float | None:
    """Joules of an output token: of all replicas, and of all pools with the roomiest batch limits of each phase."""
    best, load = math.inf, evaluator.traffic.load
    if ServingMode.AGGREGATED in request.search.modes:
        for candidate, replicas in _replicas(evaluator, engines):
            measured = evaluator.measure(candidate, Share(load, replicas))
            if measured.keeps:
                best = min(best, energy_per_token_j(measured, evaluator))
    if ServingMode.DISAGGREGATED in request.search.modes:
        prefill, decode = _phases(request, engines, load=load)
        simulator = PoolsSimulator(request.cluster, evaluator, promised_of(request, pools=True))
        for (p, p_workers), (d, d_workers) in itertools.product(_workers(prefill.engines), _workers(decode.engines)):
            pools = _placed(prefill, p, p_workers, decode, d, d_workers)
            if pools is not None and pools.energy_per_token_j < best and simulator.measure(pools, load).keeps:
                best = pools.energy_per_token_j
    return best if best < math.inf else None


def _phases(request: ServingRequest, engines: list[Engine], *, load: float) -> tuple[PhaseWorkers, PhaseWorkers]:
    """Prefill workers, also those that share the tokens of prompts, and decode workers."""
    builder = EngineBuilder(request, sequence_tokens=longest_request(request))
    prefill = [builder.engine(layout) for layout in prefill_layouts(request)]
    of_prompts = phase(PhaseKind.PREFILL, request, prefill, load=load, stop=never_stop)
    whole = [engine for engine in engines if engine.layout.grid.cp == 1]
    return of_prompts, phase(PhaseKind.DECODE, request, whole, load=load, stop=never_stop)


def switching(request: ServingRequest, engines: list[Engine]) -> tuple[Evaluator, list[Engine]]:
    """Workers that switch layouts, and what measures them."""
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed, running=TwoLayouts)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    shortest = int(evaluator.traffic.whole.prompt_tokens.min())
    return evaluator, list(SwitchedBuilder(request, builder, shortest_prompt=shortest).engines(engines))


def longest_request(request: ServingRequest) -> int:
    """Tokens of the longest request."""
    return Evaluator(request.workload, promised_of(request), request.search.seed).longest_request


def _choice(of: PhaseWorkers, engine: Engine, workers: int) -> Measured | None:
    return of.choice(engine, workers) if of.usable(engine) else None


def _least_seconds(request: ServingRequest, evaluator: Evaluator, engines: list[Engine], found: float | None) -> float | None:
    requested = math.ceil(_steps(evaluator.traffic.load) - 1e-9)
    first = requested if found is None else round(_steps(1.0 / found)) + 1
    for step in range(first, requested - 1, -1):
        if _sustained(request, evaluator, engines, step):
            return RATE_GRID**-step
    return None


def _sustained(request: ServingRequest, evaluator: Evaluator, engines: list[Engine], step: int) -> bool:
    """Return True if any replicas or pools keep the promise at a step of the rate grid and at all below, down to a hundredth of
    it."""
    modes, steps = request.search.modes, range(step, step - math.ceil(_steps(100.0)), -1)
    if ServingMode.AGGREGATED in modes:
        for candidate in _candidates(evaluator, engines):
            shares = (Share(RATE_GRID**lower, candidate.engine.layout.most_replicas) for lower in steps)
            if all(evaluator.measure(candidate, share).keeps for share in shares):
                return True
    if ServingMode.DISAGGREGATED in modes:
        prefill, decode = _phases(request, engines, load=RATE_GRID**step)
        simulator = PoolsSimulator(request.cluster, evaluator, promised_of(request, pools=True))
        for (p, p_workers), (d, d_workers) in itertools.product(_workers(prefill.engines), _workers(decode.engines)):
            pools = _placed(prefill, p, p_workers, decode, d, d_workers)
            by_itself = pools is not None and all(
                of.sustains(chosen, RATE_GRID**step, steps=len(steps))
                for of, chosen in ((prefill, pools.prefill), (decode, pools.decode))
            )
            if pools is not None and by_itself and all(simulator.measure(pools, RATE_GRID**lower).keeps for lower in steps):
                return True
    return False


def _placed(
    prefill: PhaseWorkers, p: Engine, p_workers: int, decode: PhaseWorkers, d: Engine, d_workers: int
) -> PlacedPools | None:
    """Two pools with the roomiest batch limits of each phase; None where they do not fit or a phase misses its targets."""
    ranks = placed(p.layout, p_workers, d.layout, d_workers)
    first, second = _choice(prefill, p, p_workers), _choice(decode, d, d_workers)
    if not (ranks and first and second):
        return None
    return PlacedPools(first, second, *ranks, prefill.energy_per_token_j(first) + decode.energy_per_token_j(second))


def _steps(rate_per_s: float) -> float:
    return math.log(rate_per_s) / math.log(RATE_GRID)


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


def _cost(request: ServingRequest, engine: Engine, replicas: int) -> float:
    price = engine.layout.group.node.device.price_per_hour if request.objective is Objective.COST else 1.0
    assert price is not None
    return replicas * engine.layout.devices * price
