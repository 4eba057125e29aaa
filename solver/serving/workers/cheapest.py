"""The fewest or cheapest devices that keep the promise, engine by engine.

Exact in its space: an engine is left out only when a bound or a simulation refuses every batch limit at the largest number
of replicas that would still beat the best plan so far. What follows for fewer replicas rests on one assumption, stated in
the certificate: a replica that misses its targets at a rate misses them at every higher rate.

Of plans that cost the same, the one that leaves most room to its targets. Room is what the tighter target has left above what
is promised. Of equal room more answers of a closed loop are better, then fewer replicas, then the layout that comes first in
canonical order, the smaller limit of tokens and the larger one of sequences. So the answer does not depend on which of them a
search meets first. Exact: a candidate is passed over only when a request alone or a simulation of it takes more of a target
than the best so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, CandidateKey, EngineKey, Measured
from meshwright.solver.serving.promise.certificates import energy_per_token_j, least_energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator, SearchStoppedError
from meshwright.solver.serving.promise.question import (
    Cause,
    Found,
    Question,
    Refused,
    ServingSearchResult,
    expected_strain,
    least_replicas,
    measurements,
    ordering_candidate,
    place_of_limit,
    replica_count,
    usable_candidates,
)


def cheapest(question: Question) -> ServingSearchResult:
    """The fewest devices, or the cheapest, that keep the promise at the requested rate; of several the first that is met."""
    result = ServingSearchResult()
    remaining = {engine.key: engine for engine in question.engines}
    for done, engine in enumerate(_by_expected_cost(question, result)):
        try:
            _try_to_beat(question, engine, result)
        except SearchStoppedError:
            rest = [question.cost(engine, least_replicas(question, engine)) for engine in remaining.values()]
            result.bound = min([result.bound, *rest])
            result.stopped = True
            break
        del remaining[engine.key]
        best_cost = None if result.best is None else question.cost(result.best.engine, result.best.replicas)
        question.tell(result, done + 1, best_cost, engine.layout.name)
    if result.best is not None:
        result.bound = min(result.bound, question.cost(result.best.engine, result.best.replicas))
    return result


def _try_to_beat(question: Question, engine: Engine, result: ServingSearchResult) -> None:
    """Find the least replicas of the engine that cost less than the best so far, or note why there are none."""
    usable = usable_candidates(question.evaluator, engine)
    if isinstance(usable, Refused):
        result.refused.append(usable)
        return
    result.considered += len(usable)
    least = least_replicas(question, engine)
    floor = question.cost(engine, least)
    most = engine.layout.most_replicas
    if question.at_most < math.inf:
        most = min(most, math.floor(question.at_most / question.cost(engine, 1)))
    if result.best is not None:
        limit = question.cost(result.best.engine, result.best.replicas)
        most = min(most, math.ceil(limit / question.cost(engine, 1)) - 1)
    counts = question.counts(engine, least, most)
    if not counts:
        if least == 1:
            result.refused.append(Refused(engine, Cause.COST, "one replica costs as much as the best plan", floor))
        else:
            why = f"needs at least {replica_count(least)} at this rate, by its throughput"
            result.refused.append(Refused(engine, Cause.RATE, why, floor))
        return
    found = _first_that_keeps(question, usable, counts[-1])
    if found is None:
        why = f"misses the targets with {replica_count(counts[-1])} in simulation, whatever the batch limits"
        result.refused.append(Refused(engine, Cause.RATE, why, question.cost(engine, counts[-1] + 1)))
        return
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        better = _first_that_keeps(question, usable, counts[middle])
        if better is None:
            low = middle + 1
        else:
            high, found = middle, better
    if result.best is not None:
        result.beaten.append(result.best)
    result.best = found


def _first_that_keeps(question: Question, candidates: list[Candidate], replicas: int) -> Found | None:
    """The first candidate that keeps the promise with so many replicas, those expected to do best tried first."""
    for measured in measurements(question.evaluator, candidates, Share(question.load, replicas)):
        if measured.keeps:
            return Found(measured)
    return None


def _by_expected_cost(question: Question, result: ServingSearchResult) -> Iterator[Engine]:
    """Engines by what the analytic model thinks that they cost.

    Asked only where it matters: not before the bound of an engine's cost has its turn, nor once the best plan costs no more.
    """
    ahead = [(_floor(question, engine), 0, engine.key, engine) for engine in question.engines]
    heapify(ahead)
    while ahead:
        cost, known, key, engine = heappop(ahead)
        beaten = result.best is not None and cost >= question.cost(result.best.engine, result.best.replicas)
        if known or beaten or cost == math.inf:
            yield engine
        else:
            heappush(ahead, (_expected_cost(question, engine), 1, key, engine))


def _floor(question: Question, engine: Engine) -> float:
    """Cost of the fewest replicas that the arrivals do not outrun; infinite for an engine that does not fit."""
    if not question.evaluator.candidates(engine):
        return math.inf
    return question.cost(engine, least_replicas(question, engine))


def _expected_cost(question: Question, engine: Engine) -> float:
    """Cost of the replicas that the analytic model thinks are needed; infinite when it thinks none are enough."""
    candidates = question.evaluator.candidates(engine)
    if not candidates:
        return math.inf
    candidate = ordering_candidate(candidates)
    counts = question.counts(engine, least_replicas(question, engine), engine.layout.most_replicas)

    def strained(replicas: int) -> bool:
        return expected_strain(question.evaluator, candidate, Share(question.load, replicas)) > 1.0

    if not counts or strained(counts[-1]):
        return math.inf
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if strained(counts[middle]) else (low, middle)
    return question.cost(engine, counts[low])


def of_equal_cost(question: Question, best: Found) -> Iterator[tuple[Engine, int]]:
    """Engines, each with the number of replicas that costs as much as the best plan."""
    cost = question.cost(best.engine, best.replicas)
    for engine in question.engines:
        replicas = round(cost / question.cost(engine, 1))
        if question.cost(engine, replicas) == cost and question.counts(engine, replicas, replicas):
            yield engine, replicas


# Replicas that take the least energy for an output token while they keep the promise.
#
# Exact in its space, by energy from below: each engine and number of replicas has a bound, idle power and the work that no
# schedule does without, and batch limits are simulated in its order until no bound is below the best plan. Nothing is taken to
# follow from fewer replicas or a lower rate.


def least_energy(question: Question) -> ServingSearchResult:
    """The replicas, and their batch limits, of least energy."""
    result = ServingSearchResult()
    least, ahead = math.inf, _numbers_of_replicas(question, result)
    undecided = Counter(entry[1] for entry in ahead)
    while ahead and ahead[0][0] < least:
        bound, key, replicas, engine, able = ahead[0]
        try:
            energy_j, found = _least_of(question, able, replicas, below=least)
        except SearchStoppedError:
            result.bound, result.stopped = bound, True
            return result
        heappop(ahead)
        if found is None:
            why = f"misses the targets with {replica_count(replicas)} in simulation, whatever the batch limits"
            result.refused.append(Refused(engine, Cause.RATE, why, bound))
        elif energy_j < least:
            if result.best is not None:
                result.beaten.append(result.best)
            least, result.best = energy_j, found
        else:
            result.beaten.append(found)
        undecided[key] -= 1
        if undecided[key] == 0:
            del undecided[key]
            best = None if result.best is None else least
            question.tell(result, len(question.engines) - len(undecided), best, engine.layout.name)
    result.bound = least
    return result


_Number = tuple[float, tuple[object, ...], int, Engine, list[Candidate]]
"""A number of replicas of an engine: bound of its energy, key, number, engine, and candidates that the load does not outrun."""


def _numbers_of_replicas(question: Question, result: ServingSearchResult) -> list[_Number]:
    """Every number of replicas that bounds of throughput leave; engines refused at any rate are noted."""
    found: list[_Number] = []
    evaluator = question.evaluator
    for engine in question.engines:
        usable = usable_candidates(evaluator, engine)
        if isinstance(usable, Refused):
            result.refused.append(usable)
            continue
        result.considered += len(usable)
        for replicas in question.counts(engine, least_replicas(question, engine), engine.layout.most_replicas):
            share = Share(question.load, replicas)
            able = [candidate for candidate in usable if evaluator.can_keep_up(candidate, share)]
            if able:
                bound = min(least_energy_per_token_j(candidate, share, evaluator) for candidate in able)
                heappush(found, (bound, engine.key, replicas, engine, able))
    return found


def _least_of(question: Question, able: list[Candidate], replicas: int, *, below: float) -> tuple[float, Found | None]:
    """The batch limits of least energy that keep the promise with so many replicas, of those whose bound is less than
    ``below``; infinite and None where none keeps it."""
    evaluator = question.evaluator
    least, found = math.inf, None
    share = Share(question.load, replicas)
    worth = [candidate for candidate in able if least_energy_per_token_j(candidate, share, evaluator) < below]
    for measured in measurements(evaluator, worth, share):
        energy_j = energy_per_token_j(measured, evaluator) if measured.keeps else math.inf
        if energy_j < least:
            least, found = energy_j, Found(measured)
    return least, found


_ROUNDING = 1e-9
"""Relative difference of two times that may be rounding alone."""


Accepts = Callable[[Measured], bool]
"""A function that returns True if what keeps the promise at a load counts."""


@dataclass
class Roomiest:
    """The roomiest of the candidates that were looked at, keep the promise and are accepted; ``best`` is the first to beat, if
    any. ``kept`` are the roomiest of each engine that were looked at."""

    evaluator: Evaluator
    best: Measured | None = None
    accepts: Accepts = field(default=lambda _: True)
    kept: dict[EngineKey, Measured] = field(default_factory=dict)

    def look_at(self, candidates: list[Candidate], share: Share) -> None:
        """Simulate those candidates that may be roomier under a load, as far as that takes."""
        alone = {step: self._strain_alone(candidates[0].engine, step) for step in {c.step_tokens for c in candidates}}
        most = self._within * (1.0 + _ROUNDING)
        promising = [candidate for candidate in candidates if alone[candidate.step_tokens] <= most]
        for measured in measurements(self.evaluator, promising, share, self._measure):
            if not measured.keeps:
                continue
            key = measured.candidate.engine.key
            if key not in self.kept or roominess(self.evaluator, measured) < roominess(self.evaluator, self.kept[key]):
                self.kept[key] = measured
            is_roomier = self.best is None or roominess(self.evaluator, measured) < roominess(self.evaluator, self.best)
            if is_roomier and self.accepts(measured):
                self.best = measured

    @property
    def _within(self) -> float:
        """The share of its targets that a candidate may take at most to be as roomy as the best."""
        return 1.0 if self.best is None else self.evaluator.strain(ttft=self.best.ttft, tpot=self.best.tpot)

    def _measure(self, candidate: Candidate, share: Share) -> Measured:
        return self.evaluator.measure(candidate, share, within=self._within)

    def _strain_alone(self, engine: Engine, step_tokens: int) -> float:
        """The larger ratio of a lone request's time to its target, below which no load leaves the engine."""
        alone = self.evaluator.alone(engine, step_tokens)
        return max(self.evaluator.promised.shares(ttft_s=alone.ttft_s, tpot_s=alone.tpot_s))


def roominess(evaluator: Evaluator, measured: Measured) -> tuple[float, float, int, CandidateKey]:
    """Return the key by which plans of equal cost are compared, the best one least."""
    *engine, step_tokens, sequences = measured.candidate.key
    assert isinstance(sequences, int)
    strain = evaluator.strain(ttft=measured.ttft, tpot=measured.tpot)
    # Clients of a closed loop are answered as fast as the engine can: of equal room the faster is better.
    slower = -measured.requests_per_s * measured.share.replicas if evaluator.traffic.is_closed else 0.0
    return strain, slower, measured.share.replicas, (*engine, step_tokens, *place_of_limit(sequences))


def choose_roomiest(
    question: Question, result: ServingSearchResult, equals: Iterable[tuple[Engine, int]], *, accepts: Accepts | None = None
) -> None:
    """Put the roomiest plan in the place of the best one: of its engine and ``equals``, engines with so many replicas each.

    Those that the analytic model thinks roomiest come first.
    """
    assert result.best is not None, "there is a plan to be as good as"
    found = Roomiest(question.evaluator, result.best.measured, *(() if accepts is None else (accepts,)))
    # What a stop leaves is a plan that is no worse, only less roomy.
    with suppress(SearchStoppedError):
        for candidates, share in _by_expected_room(question, result.best, equals):
            found.look_at(candidates, share)
    assert found.best is not None, "it began with the best"
    result.best = Found(found.best)
    # Where more is asked of a plan than that it keeps the promise at this load, only the best is known to do it.
    result.equal = [Found(measured) for measured in found.kept.values()] if accepts is None else []
    chosen = result.best.engine.key
    result.refused = [refused for refused in result.refused if refused.engine.key != chosen]


def _by_expected_room(
    question: Question, best: Found, equals: Iterable[tuple[Engine, int]]
) -> list[tuple[list[Candidate], Share]]:
    """Usable candidates of engines with their shares of the best plan's load; its own engine first."""
    ordered = []
    for engine, replicas in equals:
        candidates, share = usable_candidates(question.evaluator, engine), Share(best.load, replicas)
        if not isinstance(candidates, Refused):
            strain = expected_strain(question.evaluator, ordering_candidate(candidates), share)
            own = engine.key == best.engine.key
            ordered.append((not own, math.inf if math.isnan(strain) else strain, engine.key, candidates, share))
    return [(candidates, share) for *_, candidates, share in sorted(ordered, key=lambda entry: entry[:3])]
