"""simulate_serving: what requests see of a given plan, percentile by percentile and over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.errors import InfeasibleError, WorkloadError
from costmodels.queueing.simulation import SimulationResult, pooled
from costmodels.queueing.statistics import Percentile, percentile
from costmodels.queueing.timeline import Timeline, timeline
from solver.plan import Plan
from solver.request import PlanRequest, ServingWorkload
from solver.serving.evaluation import REQUESTS, Evaluator
from solver.serving.given_pair import GivenPair
from solver.serving.prediction import given_candidate

PROBABILITIES = (0.50, 0.90, 0.95, 0.99)
"""Percentiles that are reported."""

INTERVALS = 56
"""Intervals of the timeline: as many as fit in a picture of 80 columns."""

_P95 = PROBABILITIES.index(0.95)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and PROBABILITIES of a time in seconds, each percentile with its 90% confidence interval."""

    mean_s: float
    percentiles: tuple[Percentile, ...]

    @property
    def p95(self) -> Percentile:
        """The percentile that targets are about."""
        return self.percentiles[_P95]


@dataclass(frozen=True, eq=False)
class ServingSimulation:
    """A simulated plan. ``tpot`` is None where no request has a second token; ``missed`` names the targets whose 95th
    percentile is above the target."""

    requests: int
    counted: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Distribution
    tpot: Distribution | None
    end_to_end: Distribution
    timeline: Timeline
    busy: float
    mean_batch: float
    peak_running: int
    evictions: int
    missed: tuple[str, ...]


def simulate_serving(request: PlanRequest, plan: Plan) -> ServingSimulation:
    """Simulate a plan under the request's load, to the end whatever it misses.

    Raises WorkloadError for a training request, PlanFileError when the plan does not belong to the request, InfeasibleError
    when it does not fit in memory.
    """
    if not isinstance(request.workload, ServingWorkload):
        raise WorkloadError("only serving can be simulated", given=request.workload.kind, allowed="a serving workload")
    if plan.prefill is not None:
        return _simulate_pools(request, plan)
    evaluator, candidate, share = given_candidate(request, plan)
    if candidate.limits.kv_tokens < evaluator.longest_request:
        raise InfeasibleError(
            f"the plan does not fit: its cache holds {candidate.limits.kv_tokens} tokens, the longest request has "
            f"{evaluator.longest_request}; 'meshwright predict' says what would help"
        )
    results = evaluator.simulations_of(candidate, share, requests=REQUESTS)
    streams = share.replicas * candidate.engine.layout.schedulers
    alike = 1 if len(results) > 1 else streams
    return _described(evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike=alike)


def _simulate_pools(request: PlanRequest, plan: Plan) -> ServingSimulation:
    """Both pools together. The timeline is of a mean decode worker: requests that wait are all those without a first token."""
    given = GivenPair(request, plan)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    result = given.simulated()
    line, workers = timeline([result.whole], intervals=INTERVALS), len(result.decode)
    busy = timeline(result.decode, intervals=INTERVALS).busy
    per_worker = Timeline(line.end_s, line.waiting / workers, line.decoding / workers, busy)
    return _described(given.evaluator, result.whole, per_worker, alike=1)


def _described(evaluator: Evaluator, whole: SimulationResult, line: Timeline, *, alike: int) -> ServingSimulation:
    """The figures of a run that stands for so many alike."""
    targets = evaluator.targets
    ttft, tpot = _distribution(whole.ttft_s), _distribution(whole.tpot_s) if len(whole.tpot_s) else None
    promised = (("p95_ttft", ttft, targets.ttft_s), ("p95_tpot", tpot, targets.tpot_s))
    missed = [name for name, found, target in promised if found is not None and found.p95.value > target]
    answered = int(np.count_nonzero(np.isfinite(whole.requests.last_s)))
    return ServingSimulation(
        requests=len(whole.requests.arrival_s),
        counted=len(whole.ttft_s),
        requests_per_s=alike * answered / whole.duration_s,
        output_tokens_per_s=alike * _answered_tokens(whole) / whole.duration_s,
        ttft=ttft,
        tpot=tpot,
        end_to_end=_distribution(whole.end_to_end_s),
        timeline=line,
        busy=whole.busy,
        mean_batch=whole.mean_batch,
        peak_running=whole.peak_running,
        evictions=whole.evictions,
        missed=tuple(missed),
    )


def _distribution(times_s: np.ndarray) -> Distribution:
    return Distribution(float(np.mean(times_s)), tuple(percentile(times_s, p) for p in PROBABILITIES))


def _answered_tokens(result: SimulationResult) -> float:
    times = result.requests
    return float(times.output_tokens[np.isfinite(times.last_s)].sum())
