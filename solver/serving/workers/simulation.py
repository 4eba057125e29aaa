"""Workers of a given plan, simulated: percentile by percentile and over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodels.errors import InfeasibleError
from meshwright.costmodels.queueing.results import Percentile, RequestTimes, percentile, run_percentile
from meshwright.costmodels.queueing.simulation.replica import LoadTimeline, SimulationResult, pooled, timeline
from meshwright.costmodels.serving.latency_law import LatencyLaw, ServingLaw
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import TraceArrivals
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.promised import Promised
from meshwright.solver.serving.workers.given import given_candidate

PROBABILITIES = (0.50, 0.90, 0.95, 0.99)
"""Percentiles that are reported."""

SPREAD = tuple(range(1, 100))
"""Percentiles that the whole distribution of a time is drawn by."""

INTERVALS = 56
"""Intervals of the timeline: as many as fit in a picture of 80 columns."""

_P95 = PROBABILITIES.index(0.95)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and PROBABILITIES of a time in seconds, each percentile with the 90% confidence interval of the simulation, and the
    percentiles of SPREAD."""

    mean_s: float
    percentiles: tuple[Percentile, ...]
    spread_s: tuple[float, ...] = ()

    @property
    def p95(self) -> Percentile:
        """The percentile that targets are about."""
        return self.percentiles[_P95]

    def measured(self, law: LatencyLaw) -> Distribution:
        """Return the medians of measured times of which these are simulated."""
        told = tuple(Percentile(*map(law.median_s, (each.value, each.low, each.high))) for each in self.percentiles)
        return Distribution(law.median_s(self.mean_s), told, tuple(map(law.median_s, self.spread_s)))


@dataclass(frozen=True, eq=False)
class ServingSimulation:
    """A simulated plan. ``tpot`` is None where no request has a second token; ``missed`` names the targets that its 95th
    percentiles do not keep with the confidence of the SLO.
    ``rates`` are those of a schedule, all else is then of its busiest interval.
    ``timeline`` is of one replica, None where there are several ``kinds`` of them; ``times`` are those of the requests that it
    was given, as simulated."""

    requests: int
    counted: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Distribution
    tpot: Distribution | None
    end_to_end: Distribution
    timeline: LoadTimeline | None
    busy: float
    mean_batch: float
    peak_running: int
    evictions: int
    missed: tuple[str, ...]
    kinds: tuple[KindSimulation, ...] = ()
    times: RequestTimes | None = None
    rates: tuple[RateSimulation, ...] = ()


@dataclass(frozen=True, eq=False)
class KindSimulation:
    """One of several kinds of workers, under its share of the arrivals by itself."""

    name: str
    share: float
    simulated: ServingSimulation


@dataclass(frozen=True, slots=True)
class RateSimulation:
    """One rate of a schedule, by itself.

    seconds           of all its intervals
    ttft_s, tpot_s    medians of the measured 95th percentiles with all of the plan's workers; None at a rate of 0, and where
                      no request has a second token
    replicas          fewest of the plan's replicas that keep the targets; None where none do, and of plans that are not of
                      equal replicas
    """

    seconds: float
    requests_per_s: float
    ttft_s: float | None
    tpot_s: float | None
    missed: tuple[str, ...]
    replicas: int | None


def simulated_replicas(request: ServingRequest, replicas: Replicas) -> tuple[Evaluator, SimulationResult, LoadTimeline, float]:
    """Replicas that do both phases: what was simulated, over time, and how many like it there are."""
    evaluator, candidate, share = given_candidate(request, replicas.workers)
    if candidate.limits.kv_tokens < evaluator.longest_request:
        raise InfeasibleError(
            f"the plan does not fit: its cache holds {candidate.limits.kv_tokens} tokens, the longest request has "
            f"{evaluator.longest_request}; 'meshwright predict' says what would help"
        )
    results = evaluator.simulations_of(candidate, share, requests=REQUESTS)
    traced = isinstance(request.workload.arrivals, TraceArrivals)
    alike = 1.0 if traced else share.replicas / len(results)
    return evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike


def described(evaluator: Evaluator, whole: SimulationResult, line: LoadTimeline, *, alike: float) -> ServingSimulation:
    """The figures of a run that stands for so many alike."""
    law = evaluator.promised.law
    of = run_percentile if whole.one_run else percentile
    ttft = _distribution(whole.ttft_s, of).measured(law.ttft)
    tpot = _distribution(whole.tpot_s, of).measured(law.tpot) if len(whole.tpot_s) else None
    answered = int(np.count_nonzero(np.isfinite(whole.requests.last_s)))
    return ServingSimulation(
        requests=len(whole.requests.arrival_s),
        counted=len(whole.ttft_s),
        requests_per_s=alike * answered / whole.duration_s,
        output_tokens_per_s=alike * _answered_tokens(whole) / whole.duration_s,
        ttft=ttft,
        tpot=tpot,
        end_to_end=_distribution(whole.end_to_end_s, of).measured(whole_requests(law)),
        timeline=line,
        busy=whole.busy,
        mean_batch=whole.mean_batch,
        peak_running=whole.peak_running,
        evictions=whole.evictions,
        missed=missed_targets(evaluator.promised, ttft, tpot),
        times=whole.requests,
    )


def missed_targets(promised: Promised, ttft: Distribution, tpot: Distribution | None) -> tuple[str, ...]:
    """Return the names of the targets that medians of measured times do not keep with the confidence of the promise."""
    asked = (
        ("p95_ttft", ttft, promised.law.ttft, promised.ttft_s),
        ("p95_tpot", tpot, promised.law.tpot, promised.tpot_s),
    )
    return tuple(
        name
        for name, found, law, target_s in asked
        if found is not None and found.p95.value * law.factor(promised.confidence) / law.scale > target_s
    )


def whole_requests(law: ServingLaw) -> LatencyLaw:
    """Return the law of the time of a whole request: the constant of its first token, and the shift of all others."""
    return replace(law.tpot, outside_s=law.ttft.outside_s)


def _distribution(times_s: np.ndarray, percentile_of: Callable[[np.ndarray, float], Percentile] = percentile) -> Distribution:
    spread_s = np.percentile(times_s, SPREAD) if len(times_s) else ()
    return Distribution(
        float(np.mean(times_s)), tuple(percentile_of(times_s, p) for p in PROBABILITIES), tuple(map(float, spread_s))
    )


def _answered_tokens(result: SimulationResult) -> float:
    times = result.requests
    return float(times.output_tokens[np.isfinite(times.last_s)].sum())
