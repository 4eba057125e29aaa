"""The pools of prefill and decode workers that take the least energy for an output token.

Workers of each phase come by their energy, as simulated by themselves, from below: a number of workers is simulated only once
its bound is the least of what is left. Pools come by the sum of both, and are simulated together until one keeps the promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.layouts import Layout
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.forms.pools.phases import Phase
from meshwright.solver.serving.forms.pools.pools import PlacedPools, placed
from meshwright.solver.serving.forms.pools.search import PoolsResult, PoolsSearch
from meshwright.solver.serving.promise.candidates import Measured
from meshwright.solver.serving.promise.energy import least_energy_per_token_j
from meshwright.solver.serving.promise.evaluation import SearchStoppedError


def least_energy_pools(search: PoolsSearch, *, below: float) -> PoolsResult:
    """The pools of least energy, if that is less than ``below``."""
    result = PoolsResult(bound=0.0)
    try:
        for energy_j, prefill, decode in _by_sum(_Workers(search.prefill), _Workers(search.decode)):
            if energy_j >= below:
                break
            result.bound = energy_j
            ranks = placed(*_place(prefill), *_place(decode))
            if ranks is None:
                continue
            result.considered += 1
            measured = search.simulator.measure(PlacedPools(prefill, decode, *ranks, energy_j), search.prefill.load)
            if measured.keeps:
                result.best = measured
                return result
            result.missed.append(measured)
        result.bound = below
    except SearchStoppedError:
        result.stopped = True
    return result


@dataclass
class _Workers:
    """Workers of a phase that keep its part of the promise, least energy first; found as they are asked for."""

    phase: Phase

    def __post_init__(self) -> None:
        self._found: list[tuple[float, Measured]] = []
        self._rest = _by_energy(self.phase)

    def at(self, place: int) -> tuple[float, Measured] | None:
        """Those at a place; None beyond the last."""
        while len(self._found) <= place:
            following = next(self._rest, None)
            if following is None:
                return None
            self._found.append(following)
        return self._found[place]


def _by_energy(phase: Phase) -> Iterator[tuple[float, Measured]]:
    """Every number of workers of every engine that keeps the phase's targets, by its energy."""
    ahead: list[tuple[float, int, tuple[object, ...], int, Engine, Measured | None]] = []
    for engine in phase.engines:
        for workers in range(1, engine.layout.most_replicas + 1):
            bound = _bound(phase, engine, workers)
            if bound < math.inf:
                ahead.append((bound, 0, engine.key, workers, engine, None))
    heapify(ahead)
    while ahead:
        energy_j, _, key, workers, engine, known = heappop(ahead)
        if known is not None:
            yield energy_j, known
            continue
        chosen = phase.choice(engine, workers)
        if chosen is not None:
            heappush(ahead, (phase.energy_per_token_j(chosen), 1, key, workers, engine, chosen))


def _bound(phase: Phase, engine: Engine, workers: int) -> float:
    """Energy that no batch limits of so many workers are below; infinite where the load outruns them all."""
    share, evaluator = Share(phase.load, workers), phase.evaluator
    able = [candidate for candidate in phase.usable(engine) if evaluator.can_keep_up(candidate, share)]
    least = (least_energy_per_token_j(candidate, share, evaluator, output_tokens=phase.output_tokens) for candidate in able)
    return min(least, default=math.inf)


def _by_sum(prefill: _Workers, decode: _Workers) -> Iterator[tuple[float, Measured, Measured]]:
    """Workers of both phases by the sum of their energies, each phase looked at no further than sums ask for."""
    ahead: list[tuple[float, int, int]] = []

    def add(i: int, j: int) -> None:
        first, second = prefill.at(i), decode.at(j)
        if first is not None and second is not None:
            heappush(ahead, (first[0] + second[0], i, j))

    add(0, 0)
    while ahead:
        energy_j, i, j = heappop(ahead)
        first, second = prefill.at(i), decode.at(j)
        assert first is not None and second is not None, "both were found before"
        yield energy_j, first[1], second[1]
        add(i, j + 1)
        if j == 0:
            add(i + 1, 0)


def _place(workers: Measured) -> tuple[Layout, int]:
    return workers.candidate.engine.layout, workers.share.replicas
