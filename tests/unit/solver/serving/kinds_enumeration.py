"""Plans of two kinds of workers by enumeration: every pair of layouts and numbers of replicas, at rates found step by step."""

from __future__ import annotations

import itertools
import math

from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import Layout, layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.workers.goodput import RATE_GRID

Part = tuple[Layout, int, float]
"""A layout, its replicas, and what each sustains."""


def best_of_two_kinds(request: ServingRequest) -> float | None:
    """The objective of the best plan of two layouts whose replicas have rates of the grid; None where there is none."""
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    rates = [(layout, _sustained(evaluator, builder.engine(layout))) for layout in layouts(request)]
    single = [(layout, n, rate) for layout, rate in rates if rate for n in range(1, layout.most_replicas + 1)]
    pairs = (pair for pair in itertools.combinations(single, 2) if pair[0][0].key != pair[1][0].key and _fit(*pair))
    if request.objective is Objective.THROUGHPUT:
        best = max((_rate(mix) for mix in pairs), default=0.0)
        return 1.0 / best if best >= evaluator.traffic.load else None
    enough = [_cost(request, mix) for mix in pairs if _rate(mix) >= evaluator.traffic.load * (1 - 1e-12)]
    return min(enough, default=None)


def _rate(mix: tuple[Part, ...]) -> float:
    return sum(n * rate for _, n, rate in mix)


def _cost(request: ServingRequest, mix: tuple[Part, ...]) -> float:
    by_money = request.objective is Objective.COST
    prices = [(layout.group.node.device.price_per_hour or 0.0) if by_money else 1.0 for layout, *_ in mix]
    return sum(price * n * layout.devices for price, (layout, n, _) in zip(prices, mix, strict=True))


def _fit(a: Part, b: Part) -> bool:
    """Return True if both have room, and their stages lie in nodes of a power of two devices: then order is all there is to
    it."""
    if a[0].group.name != b[0].group.name:
        return True
    return a[0].devices * a[1] + b[0].devices * b[1] <= a[0].group.n_devices


def _sustained(evaluator: Evaluator, engine: Engine) -> float:
    """The highest rate of the grid that one replica keeps with some batch limits, as at all lower rates down to half."""
    best, lower = -math.inf, math.ceil(math.log(2.0) / math.log(RATE_GRID))
    for candidate in evaluator.candidates(engine):
        top = math.floor(math.log(evaluator.rate_bound(candidate)) / math.log(RATE_GRID))
        for step in range(top, top - 400, -1):
            if step <= best or _keeps(evaluator, candidate, range(step, step - lower - 1, -1)):
                best = max(best, step)
                break
    return RATE_GRID**best if best > -math.inf else 0.0


def _keeps(evaluator: Evaluator, candidate: Candidate, steps: range) -> bool:
    return all(evaluator.measure(candidate, Share(RATE_GRID**step)).keeps for step in steps)


def better(request: ServingRequest, single: float | None, of_two: float | None) -> float | None:
    """The better of the objectives of plans of one and of two kinds; a goodput is better by a step of the rate grid."""
    if single is None or of_two is None:
        return single if of_two is None else of_two
    if request.objective is Objective.THROUGHPUT:
        least = math.floor(math.log(1.0 / single) / math.log(RATE_GRID) + 1e-9) + 1
        return of_two if 1.0 / of_two >= RATE_GRID**least * (1.0 - 1e-9) else single
    return min(single, of_two)
