"""The replicas that answer most of clients in a closed loop, whose number is given, while they keep the promise.

Exact in its space, by rate from above: each engine and number of replicas has a bound, so many times the rate that no schedule
of a batch of its clients exceeds, and is simulated in that order until no bound is above the best plan. Of equal rates the
roomiest wins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import SearchStoppedError
from meshwright.solver.serving.promise.question import (
    Cause,
    Found,
    Question,
    Refused,
    SearchResult,
    measurements,
    replica_count,
    usable_candidates,
)
from meshwright.solver.serving.workers.roomiest import roominess


def most_answers(question: Question) -> SearchResult:
    """The replicas, and their batch limits, that answer most requests a second."""
    result = SearchResult()
    ahead = _numbers_of_replicas(question, result)
    undecided = Counter(entry[1] for entry in ahead)
    while ahead and (result.best is None or -ahead[0][0] > result.best.requests_per_s):
        bound, key, _, replicas, engine, usable = ahead[0]
        try:
            found = _most_of(question, usable, replicas)
        except SearchStoppedError:
            result.bound, result.stopped = -1.0 / bound, True
            return result
        heappop(ahead)
        if found is None:
            why = f"misses the targets with {replica_count(replicas)} in simulation, whatever the batch limits"
            result.refused.append(Refused(engine, Cause.RATE, why, -1.0 / bound))
        elif result.best is None or _order(question, found.measured) < _order(question, result.best.measured):
            if result.best is not None:
                result.beaten.append(result.best)
            result.best = found
        else:
            result.beaten.append(found)
        undecided[key] -= 1
        if undecided[key] == 0:
            del undecided[key]
            best = None if result.best is None else 1.0 / result.best.requests_per_s
            question.tell(result, len(question.engines) - len(undecided), best, engine.layout.name)
    if result.best is not None:
        result.bound = 1.0 / result.best.requests_per_s
    return result


_Number = tuple[float, tuple[object, ...], int, int, Engine, list[Candidate]]
"""A number of replicas of an engine: its rate's bound, negative; key; the number, negative and as it is; engine; candidates."""


def _numbers_of_replicas(question: Question, result: SearchResult) -> list[_Number]:
    """Every number of replicas that each have a client, the highest bound first; engines refused at any rate are noted."""
    found: list[_Number] = []
    for engine in question.engines:
        usable = usable_candidates(question.evaluator, engine)
        if isinstance(usable, Refused):
            result.refused.append(usable)
            continue
        result.considered += len(usable)
        for replicas in question.counts(engine, 1, min(engine.layout.most_replicas, int(question.load))):
            bound = _rate_bound(question, usable, Share(question.load, replicas))
            heappush(found, (-bound, engine.key, -replicas, replicas, engine, usable))
    return found


def _rate_bound(question: Question, usable: list[Candidate], share: Share) -> float:
    """Requests per second that no schedule of all replicas exceeds: no batch holds more than the clients of the fullest. Larger
    steps may do what smaller ones do."""
    clients = question.evaluator.traffic.clients(share)
    largest = max(usable, key=lambda candidate: (candidate.step_tokens, candidate.sequences))
    most = max(candidate.sequences for candidate in usable)
    return share.load / clients * question.evaluator.rate_bound(replace(largest, sequences=min(most, clients)))


def _most_of(question: Question, usable: list[Candidate], replicas: int) -> Found | None:
    """The batch limits that answer most with so many replicas and keep the promise; None where none keeps it."""
    share = Share(question.load, replicas)
    kept = [measured for measured in measurements(question.evaluator, usable, share) if measured.keeps]
    return Found(min(kept, key=lambda measured: _order(question, measured))) if kept else None


def _order(question: Question, measured: Measured) -> tuple[object, ...]:
    """The key by which plans are compared, the best one least."""
    return -measured.requests_per_s * measured.share.replicas, *roominess(question.evaluator, measured)
