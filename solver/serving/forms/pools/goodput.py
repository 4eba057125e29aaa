"""The pools that sustain the highest rate: prefill and decode workers on as many devices as there are.

A rate is sustained when the promise is kept at it and at every lower rate of the grid, by both pools together, and by one
worker of each phase at its share. So a rate that one worker misses bounds all pools it is part of, however large they are.
Pools come by the rate that the analytic model expects of them; those that could beat the best are simulated only once a worker
of each phase is known to keep its share of the next rate, simulated once for all pools and taken to hold for lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.forms.pools.phases import Phase
from meshwright.solver.serving.forms.pools.pools import MeasuredPools, placed
from meshwright.solver.serving.forms.pools.search import Option, PoolsResult, PoolsSearch
from meshwright.solver.serving.promise.evaluation import SearchStoppedError
from meshwright.solver.serving.workers.goodput import RATE_GRID, SUSTAINED_STEPS, highest_kept, step_below, step_under

_Judge = Callable[[PoolsSearch, Option, Option, PoolsResult, int], MeasuredPools | None]
"""A function that measures two pools at a step of the rate grid that they are taken to keep; it returns None for other
steps."""


def largest_pools_goodput(search: PoolsSearch, *, above: float) -> PoolsResult:
    """The pools that sustain the highest load of the grid, if that is more than ``above`` and no less than was asked for.

    As for replicas: looked for first as if whatever is kept were sustained, and with the answer's own lower loads after.
    """
    workers = _OneWorker(search.prefill), _OneWorker(search.decode)
    result = _searched(search, workers, above, _kept)
    if result.stopped or result.best is None:
        return result
    try:
        if _is_sustained(search, result.best):
            return result
    except SearchStoppedError:
        result.stopped = True
        result.bound = math.inf
        return result
    return _searched(search, workers, above, _sustained)


@dataclass
class _OneWorker:
    """The steps of the rate grid that one worker of each engine of a phase keeps, as far as they are known.

    A step that one batch limit keeps is taken to be kept below too, and one that all miss refuses those above.
    """

    phase: Phase
    _missed: dict[object, int] = field(default_factory=dict)
    _kept: dict[object, int] = field(default_factory=dict)

    @property
    def engines(self) -> list[Engine]:
        """Engines whose request alone meets the targets."""
        return [engine for engine in self.phase.engines if self.phase.usable(engine)]

    def ceiling(self, engine: Engine, workers: int) -> int:
        """The last step that so many workers together may keep."""
        if engine.key not in self._missed:
            evaluator = self.phase.evaluator
            bound = max(evaluator.rate_bound(candidate) for candidate in self.phase.usable(engine))
            self._missed[engine.key] = step_below(bound) + 1
        return step_under(workers * RATE_GRID ** self._missed[engine.key])

    def may_keep(self, engine: Engine, workers: int, step: int) -> bool:
        """Return True if one worker keeps its share of a step; simulated where it does not follow from what is known."""
        if self.ceiling(engine, workers) < step:
            return False
        each = step_below(RATE_GRID**step / workers)
        if each > self._kept.get(engine.key, each - 1):
            if not self.phase.keeps_any(engine, RATE_GRID**each):
                self._missed[engine.key] = each
                return False
            self._kept[engine.key] = each
        return True


def _searched(search: PoolsSearch, workers: tuple[_OneWorker, _OneWorker], above: float, judge: _Judge) -> PoolsResult:
    result = PoolsResult(bound=above)
    try:
        # Less than was asked for is no answer.
        lowest = step_under(search.question.load) + 1 if above == 0.0 else step_below(above) + 1
        for expected, prefill, decode in _splits(search, workers, lowest):
            next_step = lowest if result.best is None else step_below(result.best.load) + 1
            both = tuple(zip(workers, (prefill, decode), strict=True))
            if all(of.ceiling(option.engine, option.workers) >= next_step for of, option in both) and all(
                of.may_keep(option.engine, option.workers, next_step) for of, option in both
            ):
                ceiling = min(of.ceiling(option.engine, option.workers) for of, option in both)
                kept_at = partial(judge, search, prefill, decode, result)
                result.best = highest_kept(kept_at, next_step, min(expected, ceiling), ceiling) or result.best
        result.bound = above if result.best is None else result.best.load
    except SearchStoppedError:
        result.stopped = True
        result.bound = math.inf
    return result


def _splits(search: PoolsSearch, workers: tuple[_OneWorker, _OneWorker], lowest: int) -> Iterator[tuple[int, Option, Option]]:
    """Pools that use the cluster as far as it goes and that no bound keeps from a step, with the step that the analytic model
    expects of them; the highest first."""
    found = []
    rates = [{engine.key: of.phase.expected_rate(engine) for engine in of.engines} for of in workers]
    prefills, decodes = workers
    for p in prefills.engines:
        for p_workers in range(1, p.layout.most_replicas + 1):
            if prefills.ceiling(p, p_workers) < lowest:
                continue
            for d in decodes.engines:
                d_workers = _most_beside(p, p_workers, d)
                if d_workers and decodes.ceiling(d, d_workers) >= lowest:
                    expected = min(p_workers * rates[0][p.key], d_workers * rates[1][d.key])
                    step = step_below(expected) if expected > 0.0 else lowest
                    found.append(
                        (-expected, p.key, p_workers, d.key, step, Option(p, p_workers, 0.0), Option(d, d_workers, 0.0))
                    )
    for *_, step, prefill, decode in sorted(found, key=lambda entry: entry[:4]):
        yield step, prefill, decode


def _most_beside(p: Engine, p_workers: int, d: Engine) -> int:
    """The most decode workers that have room beside prefill workers."""
    most = d.layout.most_replicas
    if p.layout.group.name == d.layout.group.name:
        most = min(most, (p.layout.group.n_devices - p_workers * p.layout.devices) // d.layout.devices)
    return next((n for n in range(most, 0, -1) if placed(p.layout, p_workers, d.layout, n)), 0)


def _kept(search: PoolsSearch, prefill: Option, decode: Option, result: PoolsResult, step: int) -> MeasuredPools | None:
    return search.first_that_keeps([(prefill, decode)], RATE_GRID**step, result)


def _sustained(search: PoolsSearch, prefill: Option, decode: Option, result: PoolsResult, step: int) -> MeasuredPools | None:
    kept = _kept(search, prefill, decode, result, step)
    return kept if kept is not None and _is_sustained(search, kept) else None


def _is_sustained(search: PoolsSearch, kept: MeasuredPools) -> bool:
    """Return True if the pools with these batch limits, and each phase of them by itself, keep the promise at the lower rates
    of the grid too, down to half."""
    pools, step = kept.placed, step_below(kept.load)
    by_itself = search.prefill.sustains(pools.prefill, kept.load) and search.decode.sustains(pools.decode, kept.load)
    lower = (RATE_GRID ** (step - down) for down in range(1, SUSTAINED_STEPS + 1))
    return by_itself and all(search.simulator.measure(pools, load).keeps for load in lower)
