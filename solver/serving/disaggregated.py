"""The best pair of pools: prefill workers and decode workers, layouts and device types of each, and the ratio of the two.

Exact in its space, by cost from below: each phase by itself gives the fewest workers of each engine that it can do with, and
pairs are simulated together in order of their cost until one keeps the promise. Two assumptions, stated in the certificate:
that fewer workers, or a higher load, are never better, and that decode workers which miss their targets when requests come
as they do to the whole system miss them behind prefill workers too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import product

from solver.control import Stop
from solver.request import PlanRequest
from solver.serving.engine import Engine
from solver.serving.evaluation import SearchStoppedError
from solver.serving.goodput import LEAST_RATE_SHARE, RATE_GRID, SUSTAINED_STEPS, step_below, step_under
from solver.serving.phases import Phase, PhaseKind, phase
from solver.serving.pools import MeasuredPair, PairSimulator, PoolPair, placed
from solver.serving.question import Question

_ROUNDING = 1e-9
"""Relative difference of two costs that is rounding alone."""

_GOODPUT_STEPS = math.ceil(math.log(1.0 / LEAST_RATE_SHARE) / math.log(RATE_GRID))
"""Steps of the grid below a phase's bound that are looked at."""


@dataclass
class PairResult:
    """The best pair of pools, the proven bound of the objective, and pairs that missed at less cost."""

    best: MeasuredPair | None = None
    bound: float = math.inf
    considered: int = 0
    stopped: bool = False
    missed: list[MeasuredPair] = field(default_factory=list)


@dataclass(frozen=True)
class _Option:
    """So many workers of an engine, and what they cost."""

    engine: Engine
    workers: int
    cost: float


_Judge = Callable[[_Option, _Option, PairResult, int], MeasuredPair | None]
"""What two pools measure at a step of the rate grid that they are taken to keep; None otherwise."""


class PairSearch:
    """Searches pairs of pools for one question."""

    def __init__(self, request: PlanRequest, question: Question, *, stop: Stop):
        self._question = question
        engines = list(question.engines)
        self.simulator = PairSimulator(request.cluster, question.evaluator)
        self.prefill = phase(PhaseKind.PREFILL, request, engines, load=question.load, stop=stop)
        self.decode = phase(PhaseKind.DECODE, request, engines, load=question.load, stop=stop)

    @property
    def simulations(self) -> int:
        """Simulations of single phases."""
        return self.prefill.evaluator.simulations + self.decode.evaluator.simulations

    def cheapest(self, *, below: float) -> PairResult:
        """The cheapest pair whose cost is less than ``below``; of those the one whose phases by themselves leave most room."""
        result = PairResult()
        try:
            result.bound = self._floor(self.prefill) + self._floor(self.decode)
            result.best = self._incumbent(below, result)
            if result.best is not None:
                # Up to the pairs that cost as much, among which room decides.
                below = min(below, self._cost(result.best.pair) * (1.0 + _ROUNDING))
            prefill = self._options(self.prefill, below - self._floor(self.decode))
            decode = self._options(self.decode, below - min(p.cost for p in prefill)) if prefill else []
            for cost, pairs in _levels(prefill, decode, below):
                result.bound = cost
                found = self._first_that_keeps(pairs, self._question.load, result)
                if found is not None:
                    result.best = found
                    return result
            result.bound = below
        except SearchStoppedError:
            result.stopped = True
        return result

    def largest_goodput(self, *, above: float) -> PairResult:
        """The pair that sustains the highest load of the grid, if that is more than ``above``.

        As for replicas: looked for first as if whatever is kept were sustained, and with the answer's own lower loads after.
        """
        result = self._searched(above, self._kept)
        if result.stopped or result.best is None:
            return result
        try:
            if self._is_sustained(result.best):
                return result
        except SearchStoppedError:
            result.stopped = True
            result.bound = math.inf
            return result
        return self._searched(above, self._sustained)

    def _searched(self, above: float, judge: _Judge) -> PairResult:
        result = PairResult(bound=above)
        try:
            refused = [self._refused_rates(p) for p in (self.prefill, self.decode)]
            splits = sorted(self._splits(*refused), key=lambda split: (-split[0], split[1].engine.key, split[2].engine.key))
            for ceiling, prefill, decode in splits:
                best = above if result.best is None else result.best.load
                if best > 0.0 and ceiling <= step_below(best):
                    break
                self._raise(partial(judge, prefill, decode, result), ceiling, best, result)
            result.bound = above if result.best is None else result.best.load
        except SearchStoppedError:
            result.stopped = True
            result.bound = math.inf
        return result

    def _cost(self, pair: PoolPair) -> float:
        return sum(self._question.cost(m.candidate.engine, m.share.replicas) for m in (pair.prefill, pair.decode))

    def _floor(self, of: Phase) -> float:
        """Cost below which no engine of a phase keeps up with the load, by a bound that holds for every schedule."""
        return min((self._least_cost(of, e) for e in of.engines), default=math.inf)

    def _incumbent(self, below: float, result: PairResult) -> MeasuredPair | None:
        """The pair of the engines that the analytic model thinks cheapest, with one worker more where that is not enough."""
        chosen = []
        for of in (self.prefill, self.decode):
            engine = self._expected_cheapest(of)
            least = of.least_workers(engine, engine.layout.most_replicas)
            if least is None:
                return None
            chosen.append((engine, least))
        (prefill, p), (decode, d) = chosen
        for more_p, more_d in ((0, 0), (1, 0), (0, 1), (1, 1)):
            options = [
                _Option(engine, workers, self._question.cost(engine, workers))
                for engine, workers in ((prefill, p + more_p), (decode, d + more_d))
            ]
            if options[0].cost + options[1].cost < below:
                found = self._first_that_keeps([(options[0], options[1])], self._question.load, result)
                if found is not None:
                    return found
        return None

    def _expected_cheapest(self, of: Phase) -> Engine:
        """The engine that the analytic model thinks cheapest; asked only of those whose bound leaves them a chance."""
        ahead = [(self._least_cost(of, e), 0, e.key, e) for e in of.engines]
        heapify(ahead)
        while True:
            cost, known, key, engine = heappop(ahead)
            if known or cost == math.inf:
                return engine
            heappush(ahead, (self._expected_cost(of, engine), 1, key, engine))

    def _least_cost(self, of: Phase, engine: Engine) -> float:
        """Cost below which an engine does not keep up with the load."""
        return self._question.cost(engine, of.workers_at_least(engine)) if of.usable(engine) else math.inf

    def _expected_cost(self, of: Phase, engine: Engine) -> float:
        workers = of.expected_workers(engine)
        return math.inf if workers is None else self._question.cost(engine, workers)

    def _options(self, of: Phase, below: float) -> list[_Option]:
        """From the fewest workers of each engine that the phase can do with to those that cost too much."""
        options = []
        for engine in of.engines:
            unit = self._question.cost(engine, 1)
            most = engine.layout.most_replicas
            if below < math.inf:
                most = min(most, math.ceil(below / unit) - 1)
            least = of.least_workers(engine, most)
            if least is not None:
                options += [_Option(engine, workers, workers * unit) for workers in range(least, most + 1)]
        return options

    def _first_that_keeps(self, pairs: list[tuple[_Option, _Option]], load: float, result: PairResult) -> MeasuredPair | None:
        """The first pair that keeps the promise, those with most room in each phase by itself tried first."""
        candidates = []
        for prefill, decode in pairs:
            pair = self._pair(prefill, decode, load)
            if pair is not None:
                strain = max(self.prefill.strain(pair.prefill), self.decode.strain(pair.decode))
                workers = prefill.workers + decode.workers
                candidates.append((strain, workers, prefill.engine.key, decode.engine.key, prefill.workers, pair))
        for *_, pair in sorted(candidates, key=lambda entry: entry[:5]):
            result.considered += 1
            measured = self.simulator.measure(pair, load)
            if measured.keeps:
                return measured
            result.missed.append(measured)
        return None

    def _pair(self, prefill: _Option, decode: _Option, load: float) -> PoolPair | None:
        ranks = placed(prefill.engine.layout, prefill.workers, decode.engine.layout, decode.workers)
        if ranks is None:
            return None
        chosen = self.prefill.choice(prefill.engine, prefill.workers, load)
        answering = None if chosen is None else self.decode.choice(decode.engine, decode.workers, load)
        if chosen is None or answering is None:
            return None
        energy_j = self.prefill.energy_per_token_j(chosen) + self.decode.energy_per_token_j(answering)
        return PoolPair(chosen, answering, *ranks, energy_j)

    def _refused_rates(self, of: Phase) -> list[tuple[Engine, float]]:
        """A rate of the grid that one worker of each engine misses in its phase, next above one that it keeps."""
        found = []
        for engine in of.engines:
            candidates = of.usable(engine)
            if not candidates:
                continue
            high = step_below(max(of.evaluator.rate_bound(candidate) for candidate in candidates)) + 1
            low = high - _GOODPUT_STEPS
            if of.choice(engine, 1, RATE_GRID**low) is None:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if of.choice(engine, 1, RATE_GRID**middle) is not None else (low, middle)
            found.append((engine, RATE_GRID**high))
        return found

    def _splits(
        self, prefill: list[tuple[Engine, float]], decode: list[tuple[Engine, float]]
    ) -> Iterator[tuple[int, _Option, _Option]]:
        """Pairs that use the cluster as far as it goes, with the last step of the grid that neither phase by itself refuses."""
        for (p, p_rate), (d, d_rate) in product(prefill, decode):
            for p_workers in range(1, p.layout.most_replicas + 1):
                workers = range(d.layout.most_replicas, 0, -1)
                d_workers = next((n for n in workers if placed(p.layout, p_workers, d.layout, n)), None)
                if d_workers is None:
                    break
                refused = min(p_workers * p_rate, d_workers * d_rate)
                yield step_under(refused), _Option(p, p_workers, 0.0), _Option(d, d_workers, 0.0)

    def _raise(self, kept_at: Callable[[int], MeasuredPair | None], step: int, best: float, result: PairResult) -> None:
        """Look for the highest step that the pair keeps, downwards from its ceiling, as long as it beats the best."""
        lowest = step_below(best) + 1 if best > 0.0 else step - _GOODPUT_STEPS
        if step < lowest:
            return
        low = kept_at(lowest)
        if low is None:
            return
        high = step + 1
        while high - lowest > 1:
            middle = (lowest + high) // 2
            kept = kept_at(middle)
            lowest, high, low = (lowest, middle, low) if kept is None else (middle, high, kept)
        result.best = low

    def _kept(self, prefill: _Option, decode: _Option, result: PairResult, step: int) -> MeasuredPair | None:
        return self._first_that_keeps([(prefill, decode)], RATE_GRID**step, result)

    def _sustained(self, prefill: _Option, decode: _Option, result: PairResult, step: int) -> MeasuredPair | None:
        kept = self._kept(prefill, decode, result, step)
        return kept if kept is not None and self._is_sustained(kept) else None

    def _is_sustained(self, kept: MeasuredPair) -> bool:
        """Whether the pair with these batch limits, and each phase of it by itself, keeps the promise at the lower rates of the
        grid too, down to half."""
        pair, step = kept.pair, step_below(kept.load)
        by_itself = self.prefill.sustains(pair.prefill, kept.load) and self.decode.sustains(pair.decode, kept.load)
        lower = (RATE_GRID ** (step - down) for down in range(1, SUSTAINED_STEPS + 1))
        return by_itself and all(self.simulator.measure(pair, load).keeps for load in lower)


def _levels(
    prefill: list[_Option], decode: list[_Option], below: float
) -> Iterator[tuple[float, list[tuple[_Option, _Option]]]]:
    """Pairs by their cost, cheapest first, as long as it is less than ``below``."""
    by_cost = [_by_cost(options) for options in (prefill, decode)]
    sums: dict[float, list[tuple[float, float]]] = {}
    for p, d in product(*by_cost):
        if p + d < below:
            sums.setdefault(p + d, []).append((p, d))
    for total in sorted(sums):
        yield total, [pair for p, d in sums[total] for pair in product(by_cost[0][p], by_cost[1][d])]


def _by_cost(options: list[_Option]) -> dict[float, list[_Option]]:
    grouped: dict[float, list[_Option]] = {}
    for option in options:
        grouped.setdefault(option.cost, []).append(option)
    return grouped
