"""Does a layout keep the promise under a load? Bounds first, then simulation; every answer is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from meshwright.costmodels.queueing.simulation.replica import (
    NO_TARGETS,
    SimulationResult,
    Targets,
    pooled,
)
from meshwright.costmodels.queueing.statistics import Percentile
from meshwright.solver.control import Stop, never_stop
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.asked_load import AskedLoad
from meshwright.solver.serving.promise.candidates import MAX_UTILISATION, Candidate, CandidateKey, EngineKey, Measured
from meshwright.solver.serving.promise.one_layout import OneLayout
from meshwright.solver.serving.promise.promised import Promised
from meshwright.solver.serving.promise.running import P95, Running, answers_per_s

REQUESTS = 10_000
"""Requests of a simulation: 8,500 are counted, so a 95th percentile rests on 425 above it."""

SCREENING_REQUESTS = 2_000
"""Requests of the short simulation that comes first: its 95th percentiles must meet the targets too."""


class SearchStoppedError(Exception):
    """The caller's stopping rule was met before a simulation; never leaves the search."""


class Evaluator:
    """Judges candidates for one workload and its promise, whatever way they run in; remembers what it has simulated.

    ``targets`` are those of simulated percentiles.

    Before each simulation ``stop`` is asked; True raises SearchStoppedError.
    """

    def __init__(
        self,
        workload: ServingWorkload,
        promised: Promised,
        seed: int,
        stop: Stop = never_stop,
        running: Callable[[AskedLoad], Running] = OneLayout,
    ):
        self.workload, self.promised, self.seed, self.stop = workload, promised, seed, stop
        self.simulations = 0
        self.asked = asked = AskedLoad(workload, promised, seed, REQUESTS)
        self.traffic, self.targets, self.demand = asked.traffic, asked.targets, asked.demand
        self.prompt, self.output, self.longest_request = asked.prompt, asked.output, asked.longest_request
        self._running = running(asked)
        self.candidates, self.alone = self._running.candidates, self._running.alone
        self.expected, self.least_request_s = self._running.expected, self._running.least_request_s
        self._measured: dict[tuple[CandidateKey, tuple[float, int]], Measured] = {}
        self._rate_bounds: dict[EngineKey, dict[tuple[int, int], float]] = {}
        self._best_rate_bound: dict[EngineKey, float] = {}
        self._capacity: dict[CandidateKey, float] = {}

    def rate_bound(self, candidate: Candidate) -> float:
        """Requests per second that no schedule of the engine can exceed, all its attention groups together."""
        limits, bounds = (candidate.step_tokens, candidate.sequences), self._rate_bounds.setdefault(candidate.engine.key, {})
        if limits not in bounds:
            bounds.update(self._running.bounds_with(candidate))
        return bounds[limits]

    def best_rate_bound(self, engine: Engine) -> float:
        """The largest of the bounds of an engine's candidates."""
        if engine.key not in self._best_rate_bound:
            self._best_rate_bound[engine.key] = max(self.rate_bound(candidate) for candidate in self.candidates(engine))
        return self._best_rate_bound[engine.key]

    def can_keep_up(self, candidate: Candidate, share: Share) -> bool:
        """Return True if no bound says that the load outruns the engine; clients of a closed loop never do."""
        return self.traffic.is_closed or share.each < self.rate_bound(candidate)

    def measure(self, candidate: Candidate, share: Share, *, within: float = 1.0) -> Measured:
        """Simulate a candidate with its share of a load; ends early when a target is sure to be missed.

        With ``within`` < 1 who takes more than that share of a target is of no interest, and counts as missed.
        """
        key = (candidate.key, self.traffic.key(share))
        if key not in self._measured:
            measured = self._simulate(candidate, share, within)
            if measured.missed and within < 1.0:
                return measured
            self._measured[key] = measured
        return replace(self._measured[key], share=share)

    def measure_fully(self, candidate: Candidate, share: Share) -> Measured:
        """Simulate to the end whatever is missed, for figures of a layout that breaks the promise."""
        return self._simulate(candidate, share, math.inf)

    def strain(self, *, ttft: Percentile, tpot: Percentile) -> float:
        """The larger share of a target that what is promised takes: 1 less the room that is left."""
        return max(self.promised.shares(ttft_s=ttft.high, tpot_s=tpot.high))

    def simulations_of(
        self, candidate: Candidate, share: Share, *, requests: int, targets: Targets = NO_TARGETS
    ) -> list[SimulationResult]:
        """One replica under its share of a load; under a trace every one."""
        self.count_simulation()
        return self._running.simulations_of(candidate, share, requests=requests, targets=targets)

    def capacity(self, candidate: Candidate) -> float:
        """Requests per second of an engine that always has requests waiting."""
        if candidate.key not in self._capacity:
            self.count_simulation()
            self._capacity[candidate.key] = self._running.saturated_per_s(candidate)
        return self._capacity[candidate.key]

    def _simulate(self, candidate: Candidate, share: Share, within: float) -> Measured:
        """Simulate with so large a share of the targets allowed; infinite: to the end whatever is missed."""
        result = self._run(candidate, share, NO_TARGETS if within == math.inf else self.targets, SCREENING_REQUESTS)
        if not result.missed and (self.traffic.one_run is None or within != 1.0):
            allowed = NO_TARGETS if within == math.inf else self.promised.tightened(within)
            result = self._run(candidate, share, allowed, REQUESTS)
        ttft, tpot = result.ttft(P95), result.tpot(P95)
        missed = result.missed or (within < 1.0 and self.strain(ttft=ttft, tpot=tpot) > within)
        kept = not missed and ttft.high <= self.targets.ttft_s and tpot.high <= self.targets.tpot_s
        requests_per_s, utilisation = share.each, math.nan
        if not missed:
            requests_per_s = self._answered_per_s(result, share) if self.traffic.is_closed else share.each
            utilisation = requests_per_s / self.capacity(candidate)
        if self.traffic.is_closed:
            utilisation = min(1.0, utilisation)
        return Measured(
            candidate=candidate,
            share=share,
            requests_per_s=requests_per_s,
            keeps=kept and (self.traffic.is_closed or utilisation <= MAX_UTILISATION),
            ttft=ttft,
            tpot=tpot,
            utilisation=utilisation,
            mean_batch=result.mean_batch,
            request_s=result.request_s,
            peak_running=result.peak_running,
            missed=missed,
        )

    def _answered_per_s(self, result: SimulationResult, share: Share) -> float:
        """Requests that a mean replica answers a second in a closed loop. The fullest one is simulated; who has fewer clients
        answers each of them no more slowly."""
        per_s = answers_per_s(result) if self.traffic.one_run is None else len(result.answered_s) / result.duration_s
        return per_s * share.each / self.traffic.clients(share)

    def _run(self, candidate: Candidate, share: Share, targets: Targets, requests: int) -> SimulationResult:
        return pooled(self.simulations_of(candidate, share, requests=requests, targets=targets))

    def count_simulation(self) -> None:
        """Note a simulation that is about to run; raises SearchStoppedError when the stopping rule is met."""
        if self.stop():
            raise SearchStoppedError
        self.simulations += 1
