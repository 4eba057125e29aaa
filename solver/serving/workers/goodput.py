"""The largest goodput: the highest rate that a layout sustains with all devices that it can use.

A rate is sustained when the promise is kept at it and at every lower rate of the grid: next to its capacity a run may keep the
targets at a rate above one at which it misses them, which is luck and no promise. So one rate that is missed refuses all
higher ones by definition, and an engine is left out when a bound or a simulation refuses every batch limit at the next rate
above the best. The answer's lower rates are simulated down to half of it; those below are taken to be kept as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from meshwright.costmodels.queueing.analytic.percentiles import most_running, rates_at, steady_batches
from meshwright.costmodels.queueing.load import Load
from meshwright.costmodels.queueing.simulation.replica import NO_TARGETS
from meshwright.solver.answer.plan import InteractivityPoint
from meshwright.solver.control import Stop
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator, SearchStoppedError
from meshwright.solver.serving.promise.question import (
    Cause,
    Found,
    Question,
    Refused,
    ServingSearchResult,
    expected_strain,
    measurements,
    ordering_candidate,
    replica_count,
    usable_candidates,
)
from meshwright.solver.serving.workers.answer import axes_of
from meshwright.solver.serving.workers.cheapest import choose_roomiest, roominess

RATE_GRID = 1.01
"""Goodput is found on a geometric grid of rates, one percent apart."""

SUSTAINED_STEPS = math.ceil(math.log(2.0) / math.log(RATE_GRID))
"""Rates of the grid below a goodput that are simulated too: down to half of it."""

LEAST_RATE_SHARE = 1e-3
"""Share of an engine's capacity below which no goodput is looked for."""

_COARSE_GRID = 1.1
"""Ratio of the rates that the analytic model is asked about."""

_GRID_ROUNDING = 1e-9
"""Steps that a rate may be off its own for rounding."""

_KeptAt = Callable[[int], Found | None]
"""A function that finds what keeps the promise at a step of the rate grid; it returns None where nothing does."""

_Kept = TypeVar("_Kept")

Judge = Callable[[Question, list[Candidate], int, int], Found | None]
"""The same of some candidates and a number of replicas."""


def largest_goodput(question: Question) -> ServingSearchResult:
    """The layout that sustains the highest rate of the grid with all devices that it can use.

    Looked for first as if whatever is kept were sustained, which one more look at the answer mostly confirms.
    """
    result = _searched(question, keeping_at)
    if result.stopped or result.best is None:
        return result
    try:
        if is_sustained(question, result.best.measured):
            question.tell(result, len(question.engines), 1.0 / result.best.load, result.best.engine.layout.name)
            return result
    except SearchStoppedError:
        # No layout sustains the next rate, and this one may not sustain its own.
        result.bound = 1.0 / (result.best.load * RATE_GRID)
        result.stopped = True
        return result
    return _searched(question, sustaining_at)


def choose_roomiest_goodput(question: Question, result: ServingSearchResult) -> None:
    """Put the roomiest plan that sustains the rate of the best in its place."""
    counts = ((engine, question.counts(engine, 1, engine.layout.most_replicas)) for engine in question.engines)
    equals = [(engine, allowed[-1]) for engine, allowed in counts if allowed]
    choose_roomiest(question, result, equals, accepts=partial(is_sustained, question))


def goodput_of(question: Question, candidate: Candidate, found: Found, *, claimed_per_s: float) -> Found:
    """The highest rate of the grid that one candidate sustains.

    Looked for upwards from the rate that a plan claims, or, where it does not sustain that, from one at which it is known to
    keep the promise.
    """
    kept_at = partial(sustaining_at, question, [candidate], found.replicas)
    for rate in (claimed_per_s, found.load):
        step = step_below(rate)
        kept = kept_at(step)
        if kept is not None:
            return _upwards(kept_at, kept, step)
    return found


def _searched(question: Question, judge: Judge) -> ServingSearchResult:
    """The best of all engines by a judge for whom what is refused at a rate is refused at higher rates too."""
    result = ServingSearchResult()
    ordered = sorted(question.engines, key=lambda engine: (-_expected_goodput(question, engine), engine.key))
    result.bound = 0.0
    for done, engine in enumerate(ordered):
        try:
            _raise_goodput(question, engine, result, judge)
        except SearchStoppedError:
            ceilings = [_goodput_ceiling(question, engine) for engine in ordered[done:]]
            result.bound = 1.0 / max(*ceilings, 1e-12, result.best.load if result.best else 0.0)
            result.stopped = True
            return result
        best = None if result.best is None else 1.0 / result.best.load
        # The last one is decided when the best is known to be sustained.
        question.tell(result, done, best, engine.layout.name)
    result.bound = 1.0 / result.best.load if result.best else math.inf
    return result


def _raise_goodput(question: Question, engine: Engine, result: ServingSearchResult, judge: Judge) -> None:
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
    kept_at = partial(judge, question, usable, replicas)
    before = result.best
    beaten = question.above if before is None else before.load
    step = step_below(beaten) + 1 if beaten else step_below(_goodput_ceiling(question, engine))
    found = kept_at(step)
    if found is None and not beaten:
        found, step = _downwards(kept_at, step)
    if found is None:
        rate = RATE_GRID**step
        why = f"misses the targets at {rate:.3g} requests/s with {replica_count(replicas)}, whatever the batch limits"
        result.refused.append(Refused(engine, Cause.RATE, why, 1.0 / rate))
        return
    if before is not None:
        result.beaten.append(before)
    result.best = _upwards(kept_at, found, step)


def keeping_at(question: Question, candidates: list[Candidate], replicas: int, step: int) -> Found | None:
    """The first candidate that keeps the promise at a step."""
    share = Share(RATE_GRID**step, replicas)
    for measured in measurements(question.evaluator, candidates, share, leaves_out_overloaded=True):
        if measured.keeps:
            return Found(measured)
    return None


def sustaining_at(question: Question, candidates: list[Candidate], replicas: int, step: int) -> Found | None:
    """The first candidate that sustains a step."""
    share = Share(RATE_GRID**step, replicas)
    for candidate in candidates:
        if question.evaluator.can_keep_up(candidate, share):
            measured = question.evaluator.measure(candidate, share)
            if measured.keeps and is_sustained(question, measured):
                return Found(measured)
    return None


def is_sustained(question: Question, kept: Measured) -> bool:
    """Return True if the promise is kept at the lower rates of the grid too, down to half of this one.

    Without targets a load is kept as long as the engine is no busier than it may be, so at every lower rate too.
    """
    if question.evaluator.targets == NO_TARGETS:
        return True
    replicas, step = kept.share.replicas, step_below(kept.share.load)
    lower = (Share(RATE_GRID ** (step - down), replicas) for down in range(1, SUSTAINED_STEPS + 1))
    return all(question.evaluator.measure(kept.candidate, share).keeps for share in lower)


def _downwards(kept_at: _KeptAt, refused_step: int) -> tuple[Found | None, int]:
    """The highest step of the rate grid, below one that is refused, at which the promise is kept."""
    stride, found, step = 8, None, refused_step
    lowest = refused_step + math.floor(math.log(LEAST_RATE_SHARE) / math.log(RATE_GRID))
    while found is None:
        refused_step, step = step, step - stride
        if step < lowest:
            return None, lowest
        found, stride = kept_at(step), 2 * stride
    return _between(kept_at, found, step, refused_step)


def _upwards(kept_at: _KeptAt, found: Found, step: int) -> Found:
    """From a step at which the promise is kept to the highest one."""
    stride = 1
    while True:
        higher = kept_at(step + stride)
        if higher is None:
            return _between(kept_at, found, step, step + stride)[0]
        found, step, stride = higher, step + stride, 2 * stride


def _between(kept_at: _KeptAt, found: Found, kept: int, refused: int) -> tuple[Found, int]:
    """The highest step between one that is kept and one that is refused, and what keeps it."""
    while refused - kept > 1:
        middle = (kept + refused) // 2
        higher = kept_at(middle)
        if higher is None:
            refused = middle
        else:
            kept, found = middle, higher
    return found, kept


def highest_kept(kept_at: Callable[[int], _Kept | None], lowest: int, expected: int, ceiling: int) -> _Kept | None:
    """Return the finding at the highest step from ``lowest`` to ``ceiling`` that keeps the promise; None where the lowest is
    missed.

    Looked for upwards from what is expected, else from the lowest step, in strides that double.
    """
    step, refused = max(lowest, expected), ceiling + 1
    found = kept_at(step)
    if found is None and step > lowest:
        step, refused = lowest, step
        found = kept_at(step)
    if found is None:
        return None
    stride = 1
    while refused - step > 1:
        ahead = min(step + stride, (step + refused) // 2)
        higher = kept_at(ahead)
        if higher is None:
            refused = ahead
        else:
            found, step, stride = higher, ahead, 2 * stride
    return found


def replica_goodput(question: Question, engine: Engine, judge: Judge, *, lowest: int, expected: int) -> Found | None:
    """Return the finding that a judge takes of one replica at the highest step of the rate grid from ``lowest`` on; None where
    it refuses that one. Looked for from ``expected``."""
    usable = usable_candidates(question.evaluator, engine)
    ceiling = step_below(question.evaluator.best_rate_bound(engine))
    if isinstance(usable, Refused) or ceiling < lowest:
        return None
    return highest_kept(partial(judge, question, usable, 1), lowest, min(expected, ceiling), ceiling)


def expected_rate(evaluator: Evaluator, usable: list[Candidate]) -> float:
    """Requests per second at which the analytic model thinks that one worker keeps its targets, to a tenth; 0 where it does so
    at none that is worth a look."""
    candidate = ordering_candidate(usable)
    steps = math.ceil(math.log(1.0 / LEAST_RATE_SHARE) / math.log(_COARSE_GRID))
    bound = evaluator.rate_bound(candidate)
    low, high = 0, steps
    while low < high:
        middle = (low + high) // 2
        strained = expected_strain(evaluator, candidate, Share(bound * _COARSE_GRID**-middle)) > 1.0
        low, high = (middle + 1, high) if strained else (low, middle)
    return 0.0 if low == steps else float(bound * _COARSE_GRID**-low)


def step_below(rate_per_s: float) -> int:
    """Last step of the rate grid that is not above a rate."""
    return math.floor(math.log(rate_per_s) / math.log(RATE_GRID) + _GRID_ROUNDING)


def step_under(rate_per_s: float) -> int:
    """Last step of the rate grid that is less than a rate."""
    return math.ceil(math.log(rate_per_s) / math.log(RATE_GRID) - _GRID_ROUNDING) - 1


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


# The replicas that answer most of clients in a closed loop, whose number is given, while they keep the promise.
#
# Exact in its space, by rate from above: each engine and number of replicas has a bound, so many
# times the rate that no schedule of a batch of its clients exceeds, and is simulated in that order
# until no bound is above the best plan. Of equal rates the roomiest wins.


def most_answers(question: Question) -> ServingSearchResult:
    """The replicas, and their batch limits, that answer most requests a second."""
    result = ServingSearchResult()
    ahead = _numbers_of_replicas(question, result)
    undecided = Counter(entry[1] for entry in ahead)
    while ahead and (result.best is None or -ahead[0][0] > result.best.requests_per_s):
        bound, key, _, replicas, engine, usable = ahead[0]
        kept = list[Measured]()
        try:
            _keep_of(question, usable, replicas, kept)
        except SearchStoppedError:
            # What was found of this number counts, its bound as that of what was not.
            _take_better(question, _most_of(question, kept), result)
            result.bound, result.stopped = -1.0 / bound, True
            return result
        found = _most_of(question, kept)
        heappop(ahead)
        if found is None:
            why = f"misses the targets with {replica_count(replicas)} in simulation, whatever the batch limits"
            result.refused.append(Refused(engine, Cause.RATE, why, -1.0 / bound))
        _take_better(question, found, result)
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


def _numbers_of_replicas(question: Question, result: ServingSearchResult) -> list[_Number]:
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


def _keep_of(question: Question, usable: list[Candidate], replicas: int, kept: list[Measured]) -> None:
    """Append the batch limits that keep the promise with so many replicas."""
    kept.extend(
        measured for measured in measurements(question.evaluator, usable, Share(question.load, replicas)) if measured.keeps
    )


def _most_of(question: Question, kept: list[Measured]) -> Found | None:
    """The one that answers most of those that keep the promise; None where there are none."""
    return Found(min(kept, key=lambda measured: _order(question, measured))) if kept else None


def _take_better(question: Question, found: Found | None, result: ServingSearchResult) -> None:
    """Put what was found in the place of the best if it is better, else among the beaten."""
    if found is None:
        return
    if result.best is None or _order(question, found.measured) < _order(question, result.best.measured):
        if result.best is not None:
            result.beaten.append(result.best)
        result.best = found
    else:
        result.beaten.append(found)


def _order(question: Question, measured: Measured) -> tuple[object, ...]:
    """The key by which plans are compared, the best one least."""
    return -measured.requests_per_s * measured.share.replicas, *roominess(question.evaluator, measured)


# Output tokens per second of a device against those of a user, over all layouts and batch limits, in steady state.
#
# The chart by which inference engines are compared: a larger batch serves more tokens a device and fewer to each user. A point
# is a replica whose batch is always full (``costmodels.queueing.analytic.percentiles.steady_batches``): no queue, no
# percentiles.


def swept_points(
    question: Question, others: Sequence[Callable[[Load], Iterable[InteractivityPoint]]], stop: Stop
) -> tuple[InteractivityPoint, ...] | None:
    """Steady states that no other of the question's engines and batch limits, nor of ``others``, beats in both figures, most
    throughput first.

    None when ``stop`` is met first. Without a second output token nobody waits for one: there are no points then.
    """
    evaluator = question.evaluator
    if evaluator.output.mean <= 1.0:
        return ()
    load = evaluator.traffic.load_of(Share(question.load))
    points: list[InteractivityPoint] = []
    for engine in question.engines:
        if stop():
            return None
        if question.counts(engine, 1, engine.layout.most_replicas):
            points = undominated([*points, *_points(evaluator.candidates(engine), load)])
    for of_form in others:
        for point in of_form(load):
            # A chart without some of its points would look like a whole one.
            if stop():
                return None
            points.append(point)
    return tuple(undominated(points))


def user_tokens_per_s(decode: Measured, evaluator: Evaluator, *, phases: ServingMode) -> float:
    """Output tokens per second of a user at the mean batch of the workers that decode.

    Prompts come in between where the same workers compute them.
    """
    load, candidate = evaluator.traffic.load_of(Share(1.0)), decode.candidate
    rates = rates_at(candidate.engine.times, load, candidate.limits, np.array([max(1.0, decode.mean_batch)]))
    tpot_s = rates.round_s if phases is ServingMode.DISAGGREGATED else steady_batches(rates, load).tpot_s
    return 1.0 / float(tpot_s[0])


def undominated(points: Iterable[InteractivityPoint]) -> list[InteractivityPoint]:
    """Points that no other equals or beats in both figures, most throughput first; of equals the first one given."""
    kept: list[InteractivityPoint] = []
    for point in sorted(points, key=lambda p: (-p.tokens_per_s_per_device, -p.tokens_per_s_per_user)):
        if not kept or point.tokens_per_s_per_user > kept[-1].tokens_per_s_per_user:
            kept.append(point)
    return kept


def _points(candidates: list[Candidate], load: Load) -> Iterator[InteractivityPoint]:
    """The steady state of every candidate of an engine, its batch as full as limits and cache allow."""
    by_step_tokens: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_step_tokens.setdefault(candidate.step_tokens, []).append(candidate)
    for group in by_step_tokens.values():
        yield from _steady(group, load)


def _steady(candidates: list[Candidate], load: Load) -> list[InteractivityPoint]:
    """Points of candidates of one engine and limit of tokens; none for batches that prompts are too slow to keep full."""
    first, sizes = candidates[0], np.array([float(most_running(load, candidate.limits)) for candidate in candidates])
    states = steady_batches(rates_at(first.engine.times, load, first.limits, sizes), load)
    layout = first.engine.layout
    groups = layout.schedulers
    return [
        InteractivityPoint(
            summary=layout.name,
            group=layout.group.name,
            axes=axes_of(layout, 1),
            devices=layout.devices,
            batch=float(size) * groups,
            max_num_seqs=candidate.sequences,
            max_num_batched_tokens=candidate.step_tokens,
            tokens_per_s_per_device=float(requests_per_s) * groups * load.output.mean / layout.devices,
            tokens_per_s_per_user=1.0 / float(tpot_s),
        )
        for candidate, size, requests_per_s, tpot_s, prompts_share in zip(
            candidates, sizes, states.requests_per_s, states.tpot_s, states.prompts_share, strict=True
        )
        if prompts_share <= 1.0
    ]
