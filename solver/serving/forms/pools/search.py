"""The best pools: prefill workers and decode workers, layouts and device types of each, and the ratio of the two. Where the
request names a launcher, layouts between which it moves caches.

Exact in its space, by cost from below: each phase by itself gives the fewest workers of each engine that it can do with, and
two pools are simulated together in order of their cost until they keep the promise. Two assumptions, stated in the certificate:
that fewer workers, or a higher load, are never better, and that decode workers which miss their targets when requests come
as they do to the whole system miss them behind prefill workers too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import product

from meshwright.solver.control import Stop
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.forms.pools.pools import (
    MeasuredPools,
    PhaseKind,
    PhaseWorkers,
    PlacedPools,
    PoolsSimulator,
    cache_moves,
    joined,
    may_join,
    phase,
    placed,
)
from meshwright.solver.serving.promise.evaluation import SearchStoppedError
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.promise.question import Question

_ROUNDING = 1e-9
"""Relative difference of two costs that is rounding alone."""


@dataclass
class PoolsResult:
    """The best pools, the proven bound of the objective, and those that missed at less cost."""

    best: MeasuredPools | None = None
    bound: float = math.inf
    considered: int = 0
    stopped: bool = False
    missed: list[MeasuredPools] = field(default_factory=list)


@dataclass(frozen=True)
class Option:
    """So many workers of an engine, and what they cost."""

    engine: Engine
    workers: int
    cost: float


Split = tuple[Option, Option]
"""So many workers of a prefill engine, and so many of a decode engine."""


class PoolsSearch:
    """Searches pools for one question: the cheapest, and what other objectives need of each split."""

    def __init__(self, request: ServingRequest, question: Question, *, prefill_engines: Sequence[Engine], stop: Stop):
        self.question = question
        self.moves = cache_moves(request)
        self._first = PoolsResult()
        engines = [engine for engine in question.engines if not engine.layout.repeats_answers]
        # Layouts that are in no two pools of the launcher would stand for the cheapest, and bound what they are not part of.
        engines, prompts = ([e for e in each if may_join(e.layout, self.moves)] for each in (engines, prefill_engines))
        self.simulator = PoolsSimulator(request.cluster, question.evaluator, promised_of(request, pools=True))
        self.prefill = phase(PhaseKind.PREFILL, request, prompts, load=question.load, stop=stop)
        self.decode = phase(PhaseKind.DECODE, request, engines, load=question.load, stop=stop)

    @property
    def simulations(self) -> int:
        """Simulations of single phases."""
        return self.prefill.evaluator.simulations + self.decode.evaluator.simulations

    def cheapest(self, *, below: float) -> PoolsResult:
        """The cheapest pools whose cost is less than ``below``; of those the ones whose phases alone leave most room."""
        result = PoolsResult(considered=self._first.considered, missed=list(self._first.missed))
        try:
            result.bound = self._floor(self.prefill) + self._floor(self.decode)
            known = self._first.best
            result.best = known if known and self._cost(known.placed) < below else self._incumbent(below, result)
            if result.best is not None:
                # Up to the pools that cost as much, among which room decides.
                below = min(below, self._cost(result.best.placed) * (1.0 + _ROUNDING))
            prefill = self._options(self.prefill, below - self._floor(self.decode))
            decode = self._options(self.decode, below - min(p.cost for p in prefill)) if prefill else []
            for cost, splits in _levels(prefill, decode, below):
                result.bound = cost
                found = self.first_that_keeps(splits, self.question.load, result)
                if found is not None:
                    result.best = found
                    return result
            result.bound = below
        except SearchStoppedError:
            result.stopped = True
        return result

    def incumbent_cost(self) -> float:
        """Cost of the pools that the analytic model thinks cheapest if they keep the promise; infinite where none are found."""
        with suppress(SearchStoppedError):
            self._first.best = self._incumbent(math.inf, self._first)
        return math.inf if self._first.best is None else self._cost(self._first.best.placed)

    def _cost(self, pools: PlacedPools) -> float:
        return sum(self.question.cost(m.candidate.engine, m.share.replicas) for m in (pools.prefill, pools.decode))

    def _floor(self, of: PhaseWorkers) -> float:
        """Cost below which no engine of a phase keeps up with the load, by a bound that holds for every schedule."""
        return min((self._least_cost(of, e) for e in of.engines), default=math.inf)

    def _incumbent(self, below: float, result: PoolsResult) -> MeasuredPools | None:
        """The pools of the engines that the analytic model thinks cheapest, with one worker more where that is not enough."""
        chosen = []
        for of in (self.prefill, self.decode):
            if not of.engines:
                return None
            engine = self._expected_cheapest(of)
            least = of.least_workers(engine, engine.layout.most_replicas)
            if least is None:
                return None
            chosen.append((engine, least))
        (prefill, p), (decode, d) = chosen
        for more_p, more_d in ((0, 0), (1, 0), (0, 1), (1, 1)):
            options = [
                Option(engine, workers, self.question.cost(engine, workers))
                for engine, workers in ((prefill, p + more_p), (decode, d + more_d))
            ]
            if options[0].cost + options[1].cost < below:
                found = self.first_that_keeps([(options[0], options[1])], self.question.load, result)
                if found is not None:
                    return found
        return None

    def _expected_cheapest(self, of: PhaseWorkers) -> Engine:
        """The engine that the analytic model thinks cheapest; asked only of those whose bound leaves them a chance."""
        ahead = [(self._least_cost(of, e), 0, e.key, e) for e in of.engines]
        heapify(ahead)
        while True:
            cost, known, key, engine = heappop(ahead)
            if known or cost == math.inf:
                return engine
            heappush(ahead, (self._expected_cost(of, engine), 1, key, engine))

    def _least_cost(self, of: PhaseWorkers, engine: Engine) -> float:
        """Cost below which an engine does not keep up with the load."""
        return self.question.cost(engine, of.workers_at_least(engine)) if of.usable(engine) else math.inf

    def _expected_cost(self, of: PhaseWorkers, engine: Engine) -> float:
        workers = of.expected_workers(engine)
        return math.inf if workers is None else self.question.cost(engine, workers)

    def _options(self, of: PhaseWorkers, below: float) -> list[Option]:
        """From the fewest workers of each engine that the phase can do with to those that cost too much."""
        options = []
        for engine in of.engines:
            unit = self.question.cost(engine, 1)
            most = engine.layout.most_replicas
            if below < math.inf:
                most = min(most, math.ceil(below / unit) - 1)
            least = of.least_workers(engine, most)
            if least is not None:
                options += [Option(engine, workers, workers * unit) for workers in range(least, most + 1)]
        return options

    def first_that_keeps(self, splits: list[Split], load: float, result: PoolsResult) -> MeasuredPools | None:
        """The first pools that keep the promise, those with most room in each phase by itself tried first."""
        candidates = []
        for prefill, decode in splits:
            pools = self._placed(prefill, decode, load)
            if pools is not None:
                strain = max(self.prefill.strain(pools.prefill), self.decode.strain(pools.decode))
                workers = prefill.workers + decode.workers
                candidates.append((strain, workers, prefill.engine.key, decode.engine.key, prefill.workers, pools))
        for *_, pools in sorted(candidates, key=lambda entry: entry[:5]):
            result.considered += 1
            measured = self.simulator.measure(pools, load)
            if measured.keeps:
                return measured
            result.missed.append(measured)
        return None

    def _placed(self, prefill: Option, decode: Option, load: float) -> PlacedPools | None:
        if not joined(prefill.engine.layout, decode.engine.layout, self.moves):
            return None
        ranks = placed(prefill.engine.layout, prefill.workers, decode.engine.layout, decode.workers)
        if ranks is None:
            return None
        chosen = self.prefill.choice(prefill.engine, prefill.workers, load)
        answering = None if chosen is None else self.decode.choice(decode.engine, decode.workers, load)
        if chosen is None or answering is None:
            return None
        energy_j = self.prefill.energy_per_token_j(chosen) + self.decode.energy_per_token_j(answering)
        return PlacedPools(chosen, answering, *ranks, energy_j)


def _levels(prefill: list[Option], decode: list[Option], below: float) -> Iterator[tuple[float, list[Split]]]:
    """Splits by their cost, cheapest first, as long as it is less than ``below``."""
    by_cost = [_by_cost(options) for options in (prefill, decode)]
    sums: dict[float, list[tuple[float, float]]] = {}
    for p, d in product(*by_cost):
        if p + d < below:
            sums.setdefault(p + d, []).append((p, d))
    for total in sorted(sums):
        yield total, [split for p, d in sums[total] for split in product(by_cost[0][p], by_cost[1][d])]


def _by_cost(options: list[Option]) -> dict[float, list[Option]]:
    grouped: dict[float, list[Option]] = {}
    for option in options:
        grouped.setdefault(option.cost, []).append(option)
    return grouped
