"""The largest goodput: the highest rate at which a layout keeps the promise with all devices that it can use.

As for the fewest devices, an engine is left out only when a bound or a simulation refuses every batch limit at the next rate
of the grid above the best so far; a replica that misses its targets at a rate is taken to miss them at every higher rate.
"""

from __future__ import annotations

import math

from solver.serving.engine import Engine
from solver.serving.evaluation import Candidate, SearchStoppedError
from solver.serving.question import (
    Cause,
    Found,
    Question,
    Refused,
    SearchResult,
    expected_strain,
    measurements,
    ordering_candidate,
    replica_count,
    usable_candidates,
)
from solver.serving.traffic import Share

RATE_GRID = 1.01
"""Goodput is found on a geometric grid of rates, one percent apart."""

_LEAST_RATE_SHARE = 1e-3
"""Share of an engine's capacity below which no goodput is looked for."""


def largest_goodput(question: Question) -> SearchResult:
    """The layout that keeps the promise at the highest rate with all devices that it can use, on the grid of rates."""
    result = SearchResult()
    ordered = sorted(question.engines, key=lambda engine: (-_expected_goodput(question, engine), engine.key))
    result.bound = 0.0
    for done, engine in enumerate(ordered):
        try:
            _raise_goodput(question, engine, result)
        except SearchStoppedError:
            ceilings = [_goodput_ceiling(question, engine) for engine in ordered[done:]]
            result.bound = 1.0 / max(*ceilings, 1e-12, result.best.load if result.best else 0.0)
            result.stopped = True
            return result
        best = None if result.best is None else 1.0 / result.best.load
        question.tell(result, done + 1, best, engine.layout.name)
    result.bound = 1.0 / result.best.load if result.best else math.inf
    return result


def goodput_of(question: Question, candidate: Candidate, found: Found, *, claimed_per_s: float) -> Found:
    """The highest rate of the grid at which one candidate keeps the promise.

    Looked for upwards from the rate that a plan claims, or, where it does not keep that, from one at which it is known to.
    """
    for rate in (claimed_per_s, found.load):
        step = _step_below(rate)
        kept = _keeping_at(question, [candidate], found.replicas, step)
        if kept is not None:
            return _upwards(question, [candidate], kept, step)
    return found


def _raise_goodput(question: Question, engine: Engine, result: SearchResult) -> None:
    usable = usable_candidates(question.evaluator, engine)
    if isinstance(usable, Refused):
        result.refused.append(usable)
        return
    result.considered += len(usable)
    counts = question.counts(engine, 1, engine.layout.most_replicas)
    if not counts:
        result.refused.append(Refused(engine, Cause.MEMORY, "the allowed numbers of replicas do not fit in the cluster"))
        return
    replicas = counts[-1]
    before = result.best
    step = _step_below(_goodput_ceiling(question, engine)) if before is None else _step_below(before.load) + 1
    found = _keeping_at(question, usable, replicas, step)
    if found is None and before is None:
        found, step = _downwards(question, usable, replicas, step)
    if found is None:
        rate = RATE_GRID**step
        why = f"misses the targets at {rate:.3g} requests/s with {replica_count(replicas)}, whatever the batch limits"
        result.refused.append(Refused(engine, Cause.RATE, why, 1.0 / rate))
        return
    if before is not None:
        result.beaten.append(before)
    result.best = _upwards(question, usable, found, step)


def _keeping_at(question: Question, candidates: list[Candidate], replicas: int, step: int) -> Found | None:
    rate = RATE_GRID**step
    for measured in measurements(question.evaluator, candidates, Share(rate, replicas)):
        if measured.keeps:
            return Found(measured)
    return None


def _downwards(question: Question, candidates: list[Candidate], replicas: int, refused_step: int) -> tuple[Found | None, int]:
    """The highest step of the rate grid, below one that is refused, at which the promise is kept."""
    stride, found, step = 8, None, refused_step
    lowest = refused_step + math.floor(math.log(_LEAST_RATE_SHARE) / math.log(RATE_GRID))
    while found is None:
        refused_step, step = step, step - stride
        if step < lowest:
            return None, lowest
        found, stride = _keeping_at(question, candidates, replicas, step), 2 * stride
    return _between(question, candidates, found, step, refused_step)


def _upwards(question: Question, candidates: list[Candidate], found: Found, step: int) -> Found:
    """From a step at which the promise is kept to the highest one."""
    stride = 1
    while True:
        higher = _keeping_at(question, candidates, found.replicas, step + stride)
        if higher is None:
            return _between(question, candidates, found, step, step + stride)[0] or found
        found, step, stride = higher, step + stride, 2 * stride


def _between(
    question: Question, candidates: list[Candidate], found: Found, kept: int, refused: int
) -> tuple[Found | None, int]:
    while refused - kept > 1:
        middle = (kept + refused) // 2
        higher = _keeping_at(question, candidates, found.replicas, middle)
        if higher is None:
            refused = middle
        else:
            kept, found = middle, higher
    return found, kept


def _step_below(rate_per_s: float) -> int:
    """Last step of the rate grid that is not above a rate."""
    return math.floor(math.log(rate_per_s) / math.log(RATE_GRID) + 1e-9)


def _goodput_ceiling(question: Question, engine: Engine) -> float:
    """Load that no schedule exceeds with all devices that the layout can use; in a closed loop what was asked for, which is
    looked into only once it is refused."""
    if question.evaluator.traffic.is_closed:
        return question.load
    candidates = question.evaluator.candidates(engine)
    counts = question.counts(engine, 1, engine.layout.most_replicas)
    if not candidates or not counts:
        return 1e-12
    return counts[-1] * question.evaluator.best_rate_bound(engine)


def _expected_goodput(question: Question, engine: Engine) -> float:
    """Rate that the analytic model thinks keeps the promise with all devices, to a factor of two."""
    candidates = question.evaluator.candidates(engine)
    counts = question.counts(engine, 1, engine.layout.most_replicas)
    if not candidates or not counts:
        return 0.0
    candidate = ordering_candidate(candidates)
    rate = _goodput_ceiling(question, engine) / counts[-1]
    for _ in range(10):
        if expected_strain(question.evaluator, candidate, Share(rate)) <= 1.0:
            return rate * counts[-1]
        rate /= 2.0
    return 0.0
