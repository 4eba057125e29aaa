"""simulate_serving: what requests see of a given plan, percentile by percentile and over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.errors import InfeasibleError
from meshwright.costmodels.queueing.mixture import WeightedObservations, mixture_mean, mixture_percentile
from meshwright.costmodels.queueing.simulation.replica import SimulationResult, pooled
from meshwright.costmodels.queueing.simulation.timeline import LoadTimeline, timeline
from meshwright.costmodels.queueing.statistics import Percentile, percentile
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, Switched, WorkerKind
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.kinds.answer import token_parts
from meshwright.solver.serving.forms.kinds.given import given_kinds
from meshwright.solver.serving.forms.pools.given import GivenPools
from meshwright.solver.serving.forms.replicas.prediction import given_candidate
from meshwright.solver.serving.forms.switched.given import GivenSwitched
from meshwright.solver.serving.given import given_layout
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator

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
    percentile is above the target. ``timeline`` is of one replica, None where there are several ``kinds`` of them."""

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


@dataclass(frozen=True, eq=False)
class KindSimulation:
    """One of several kinds of workers, under its share of the arrivals by itself."""

    name: str
    share: float
    simulated: ServingSimulation


def simulate_serving(request: ServingRequest, plan: Plan) -> ServingSimulation:
    """Simulate a plan under the request's load, to the end whatever it misses.

    Raises PlanFileError when the plan does not belong to the request, InfeasibleError
    when it does not fit in memory.
    """
    match given_layout(plan):
        case Replicas() as replicas:
            evaluator, whole, line, alike = _simulated(request, replicas)
            return _described(evaluator, whole, line, alike=alike)
        case Pools() as layout:
            return _simulate_pools(request, layout)
        case Switched() as layout:
            return _simulate_switched(request, layout)
        case Kinds() as layout:
            return _simulate_kinds(request, layout)


def _simulated(request: ServingRequest, replicas: Replicas) -> tuple[Evaluator, SimulationResult, LoadTimeline, int]:
    """Replicas that do both phases: what was simulated, over time, and how many like it there are."""
    evaluator, candidate, share = given_candidate(request, replicas.workers)
    if candidate.limits.kv_tokens < evaluator.longest_request:
        raise InfeasibleError(
            f"the plan does not fit: its cache holds {candidate.limits.kv_tokens} tokens, the longest request has "
            f"{evaluator.longest_request}; 'meshwright predict' says what would help"
        )
    results = evaluator.simulations_of(candidate, share, requests=REQUESTS)
    alike = 1 if len(results) > 1 else share.replicas
    return evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike


def _simulate_kinds(request: ServingRequest, layout: Kinds) -> ServingSimulation:
    """Each kind by itself, and percentiles of all requests: those of a kind count by its share."""
    ran, kinds = [], []
    for kind, own in given_kinds(request, layout):
        evaluator, whole, line, alike = _simulated(own, kind.replicas)
        ran.append((kind.share, whole))
        kinds.append(KindSimulation(_name(kind), kind.share, _described(evaluator, whole, line, alike=alike)))
    first = [WeightedObservations(share, run.ttft_s) for share, run in ran]
    last, later = [WeightedObservations(share, run.end_to_end_s) for share, run in ran], token_parts(ran)
    ttft, tpot = _mixed(first), _mixed(later) if later else None
    of_kinds = [kind.simulated for kind in kinds]
    replicas = [kind.replicas.load.replicas for kind in layout.kinds]
    return ServingSimulation(
        requests=sum(each.requests for each in of_kinds),
        counted=sum(each.counted for each in of_kinds),
        requests_per_s=sum(each.requests_per_s for each in of_kinds),
        output_tokens_per_s=sum(each.output_tokens_per_s for each in of_kinds),
        ttft=ttft,
        tpot=tpot,
        end_to_end=_mixed(last),
        timeline=None,
        busy=float(np.average([each.busy for each in of_kinds], weights=[kind.devices for kind in layout.kinds])),
        mean_batch=float(np.average([each.mean_batch for each in of_kinds], weights=replicas)),
        peak_running=max(each.peak_running for each in of_kinds),
        evictions=sum(each.evictions for each in of_kinds),
        missed=_missed(evaluator, ttft, tpot),
        kinds=tuple(kinds),
    )


def _name(kind: WorkerKind) -> str:
    """Words for a kind: "4 x tp 4 x pp 2"."""
    axes = kind.replicas.axes
    degrees = {"tp": axes.tp, "kvp": axes.kvp, "attention dp": axes.attention_dp, "ep": axes.ep, "pp": axes.pp}
    return f"{kind.replicas.load.replicas} x " + " x ".join(f"{n} {d}" for n, d in degrees.items() if d > 1 or n == "tp")


def _mixed(parts: list[WeightedObservations]) -> Distribution:
    return Distribution(mixture_mean(parts), tuple(mixture_percentile(parts, p) for p in PROBABILITIES))


def _simulate_pools(request: ServingRequest, layout: Pools) -> ServingSimulation:
    """Both pools together. The timeline is of a mean decode worker: requests that wait are all those without a first token."""
    given = GivenPools(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    result = given.simulated()
    line, workers = timeline([result.whole], intervals=INTERVALS), len(result.decode)
    busy = timeline(result.decode, intervals=INTERVALS).busy
    per_worker = LoadTimeline(line.end_s, line.waiting / workers, line.decoding / workers, busy)
    return _described(given.evaluator, result.whole, per_worker, alike=1)


def _simulate_switched(request: ServingRequest, layout: Switched) -> ServingSimulation:
    """Workers that switch layouts; busy is what stages of either layout do, not the changes between."""
    given = GivenSwitched(request, layout)
    shortfall = given.memory_shortfall()
    if shortfall is not None:
        raise InfeasibleError(f"the plan does not fit: {shortfall.message}")
    results = [run.whole for run in given.simulated()]
    alike = 1 if len(results) > 1 else given.share.replicas
    return _described(given.evaluator, pooled(results), timeline(results, intervals=INTERVALS), alike=alike)


def _described(evaluator: Evaluator, whole: SimulationResult, line: LoadTimeline, *, alike: int) -> ServingSimulation:
    """The figures of a run that stands for so many alike."""
    ttft, tpot = _distribution(whole.ttft_s), _distribution(whole.tpot_s) if len(whole.tpot_s) else None
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
        missed=_missed(evaluator, ttft, tpot),
    )


def _missed(evaluator: Evaluator, ttft: Distribution, tpot: Distribution | None) -> tuple[str, ...]:
    promised = (("p95_ttft", ttft, evaluator.targets.ttft_s), ("p95_tpot", tpot, evaluator.targets.tpot_s))
    return tuple(name for name, found, target in promised if found is not None and found.p95.value > target)


def _distribution(times_s: np.ndarray) -> Distribution:
    return Distribution(float(np.mean(times_s)), tuple(percentile(times_s, p) for p in PROBABILITIES))


def _answered_tokens(result: SimulationResult) -> float:
    times = result.requests
    return float(times.output_tokens[np.isfinite(times.last_s)].sum())
