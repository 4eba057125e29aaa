"""Replicas that take the least energy for an output token while they keep the promise.

Exact in its space, by energy from below: each engine and number of replicas has a bound, idle power and the work that no
schedule does without, and batch limits are simulated in its order until no bound is below the best plan. Nothing is taken to
follow from fewer replicas or a lower rate.
"""

from __future__ import annotations

import math
from collections import Counter
from heapq import heappop, heappush

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.energy import energy_per_token_j, least_energy_per_token_j
from meshwright.solver.serving.promise.evaluation import SearchStoppedError
from meshwright.solver.serving.promise.question import (
    Cause,
    Found,
    Question,
    Refused,
    SearchResult,
    least_replicas,
    measurements,
    replica_count,
    usable_candidates,
)


def least_energy(question: Question) -> SearchResult:
    """The replicas, and their batch limits, of least energy."""
    result = SearchResult()
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


def _numbers_of_replicas(question: Question, result: SearchResult) -> list[_Number]:
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
