"""The ways in which workers run: batch limits, bounds and simulations. A form of a plan may have one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.costmodels.queueing.analytic.capacity import demand_of
from meshwright.costmodels.queueing.analytic.percentiles import AnalyticFigures
from meshwright.costmodels.queueing.simulation.replica import SimulationResult, Targets
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share, Traffic
from meshwright.solver.serving.promise.candidates import Alone, Candidate
from meshwright.solver.serving.promise.promised import Promised

# The load that is asked for and the targets that it is to meet, as a workload and its objective say.


@dataclass
class AskedLoad:
    """Requests of a workload under a seed, at most so many in a simulation, and the targets of what is simulated."""

    workload: ServingWorkload
    promised: Promised
    seed: int
    requests: int

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.workload, self.seed, self.requests)
        self.prompt, self.output = self.traffic.prompt, self.traffic.output
        self.targets = self.promised.simulated
        self.longest_request = self.traffic.longest_request
        self.demand = demand_of(self.traffic.whole)


P95 = 0.95

SURELY_COUNTED = 0.80
"""Of all requests a fifth lie above this quantile; where none of the 15% that are not counted is another, still 5% do."""


class Running(Protocol):
    """A way in which workers run under the load that is asked for."""

    def candidates(self, engine: Engine) -> list[Candidate]:
        """Batch limits with room for the longest request, most first."""

    def alone(self, engine: Engine, step_tokens: int) -> Alone:
        """Times of a request that no load makes shorter."""

    def bounds_with(self, asked: Candidate) -> dict[tuple[int, int], float]:
        """Requests per second that no schedule exceeds, of a candidate and all others of its engine, by their limits."""

    def least_request_s(self, candidate: Candidate) -> float:
        """Return the least seconds that a mean device works for a mean request."""

    def expected(self, candidate: Candidate, share: Share) -> AnalyticFigures:
        """Return the figures that an analytic model expects under a load."""

    def simulations_of(self, candidate: Candidate, share: Share, *, requests: int, targets: Targets) -> list[SimulationResult]:
        """One replica under its share of a load; under a trace every one."""

    def saturated_per_s(self, candidate: Candidate) -> float:
        """Requests per second of a worker that always has requests waiting, simulated."""


def largest_batch(asked: AskedLoad, candidate: Candidate) -> int:
    """No batch holds more sequences than its slot, or than the cache has room for."""
    in_a_slot = -(-candidate.sequences // candidate.engine.layout.pp)
    kv_tokens = candidate.limits.kv_tokens - asked.traffic.whole.shared_tokens
    in_the_cache = int(kv_tokens / asked.demand.least_own_kv_tokens)
    return max(1, min(in_a_slot, in_the_cache))


def answers_per_s(result: SimulationResult) -> float:
    """Rate of answers from a quarter to three quarters of them: the engine neither fills nor drains."""
    answered = np.sort(result.answered_s)
    low, high = len(answered) // 4, 3 * len(answered) // 4
    return (high - low) / float(answered[high] - answered[low])
