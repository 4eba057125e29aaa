"""Candidates of a search, engines with their batch limits, and the figures that are measured of them.

The ways in which workers run have batch limits, bounds and simulations; a form of a plan may have one of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from meshwright.costmodels.queueing.analytic.capacity import demand_of
from meshwright.costmodels.queueing.analytic.percentiles import AnalyticFigures
from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Scheduling, SimulationResult, Targets
from meshwright.solver.problem.request import ServingWorkload
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.serving.engines.traffic import Share, Traffic
from meshwright.solver.serving.promise.promised import Promised

MAX_UTILISATION = 0.97
"""Load above which a plan is refused: the percentiles of a run of 10,000 requests say nothing of the long run there."""

EngineKey = tuple[str | int, ...]
CandidateKey = tuple[str | int, ...]


@dataclass(frozen=True)
class Candidate:
    """An engine with the batch limits of each of its attention groups; replicas and rate come later."""

    engine: Engine
    step_tokens: int
    sequences: int

    @cached_property
    def key(self) -> CandidateKey:
        """The key that tells the candidates of a request apart; also their canonical order."""
        return *self.engine.key, self.step_tokens, self.sequences

    @cached_property
    def limits(self) -> BatchLimits:
        """Limits as the queueing model wants them."""
        kv_tokens = self.engine.kv_tokens(step_tokens=self.step_tokens, sequences=self.sequences)
        if self.engine.speculation is None:
            apart = self.engine.layout.repeats_answers
            scheduling = Scheduling.CHUNKS_FIRST if apart else Scheduling.CHUNKED_PREFILL
            return BatchLimits(self.sequences, self.step_tokens, kv_tokens, scheduling, Admission.PREEMPT)
        # Every sequence keeps room for its proposals; requests start when there is room for all their tokens.
        kv_tokens -= self.sequences * self.engine.speculation.draft_tokens
        return BatchLimits(self.sequences, self.step_tokens, kv_tokens, admission=Admission.RESERVE)


@dataclass(frozen=True, slots=True)
class Alone:
    """The figures of a request on an engine without other requests: no load makes it faster."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate, simulated with its share of a load, which the engine deals out to the attention groups of a replica.

    ``keeps`` is true when the percentiles of the short simulation and the upper ends of the confidence intervals of the long
    one meet the targets, and the load is below MAX_UTILISATION (clients of a closed loop wait instead, so it does not bind
    there). ``missed`` is true when a simulation ended early because a target was sure to be missed; its figures are then
    those of the requests seen until then. ``requests_per_s`` are those that one replica answers, ``request_s`` is how long a
    mean device works for a request of its attention group.
    """

    candidate: Candidate
    share: Share
    requests_per_s: float
    keeps: bool
    ttft: Percentile
    tpot: Percentile
    utilisation: float
    mean_batch: float
    request_s: float
    peak_running: int
    missed: bool

    @property
    def only_overloaded(self) -> bool:
        """True if nothing but the load refuses it."""
        return not self.keeps and not self.missed and self.utilisation > MAX_UTILISATION


# The room that a plan leaves to each of its promises, tightest first.


def room_note(promised: Promised, *, ttft: Percentile, tpot: Percentile, load: float | None) -> str:
    """Return a note of the constraint that binds: shares of the targets that what is promised takes, and of the largest
    allowed load.

    ``load`` is the share of what the engines keep up with, None where clients wait and no load is too high.
    """
    first, later = promised.shares(ttft_s=ttft.high, tpot_s=tpot.high)
    shares = {
        "P95 TTFT": first,
        "P95 TPOT": later,
        "load": 0.0 if load is None else load / MAX_UTILISATION,
    }
    asked = [(share, name) for name, share in shares.items() if share > 0.0 and math.isfinite(share)]
    if not asked:
        return "No target binds"
    ordered = sorted(asked, key=lambda entry: (-entry[0], entry[1]))
    tightest, *others = [f"{name} ({share:.0%})" for share, name in ordered]
    rest = f"; then {', '.join(others)}" if others else ""
    return f"Binds most, by the share of what is allowed that it takes: {tightest}{rest}"


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
