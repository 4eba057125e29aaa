"""The targets of a request as they bind: what simulated percentiles may be, so that measured ones hold with its confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.costmodels.queueing.results import Percentile
from meshwright.costmodels.queueing.simulation.replica import Targets
from meshwright.costmodels.serving.latency_law import (
    OPEN_LOOPS,
    LatencyLaw,
    OpenLoopLaw,
    ServingLaw,
    latency_law,
    learned_latencies,
)
from meshwright.solver.answer.predicted import Band, Predicted
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals

LOW, HIGH = 0.05, 0.95
"""The quantiles of the bands: nine of ten measured figures fall between them."""

_ROUNDING = 1e-9
"""A hair, so that rounding refuses nobody who takes just what is allowed."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """An open loop whose steps take what is promised of them: ``slowdown`` times as long, and first tokens ``ttft_factor``
    times as late."""

    slowdown: float
    ttft_factor: float


@dataclass(frozen=True, slots=True)
class Promised:
    """P95 targets of measured times in seconds, infinite where there is none, to be kept with a chance of ``confidence`` by the
    law of measured over simulated times. In an open loop they are to be kept with slower steps too, ``slowed``."""

    ttft_s: float
    tpot_s: float
    law: ServingLaw
    confidence: float
    slowed: Slowed | None = None

    @property
    def simulated(self) -> Targets:
        """The most that simulated percentiles may be; below 0 where none is low enough."""
        return Targets(*(law.simulated_s(target_s, self.confidence) for law, target_s in self._asked))

    def tightened(self, within: float) -> Targets:
        """The same where only a share of each target may be taken: a hair more."""
        if within >= 1.0:
            return self.simulated
        share = within * (1.0 + _ROUNDING)
        ttft_s, tpot_s = (math.inf if target_s == math.inf else target_s * share for _, target_s in self._asked)
        return replace(self, ttft_s=ttft_s, tpot_s=tpot_s).simulated

    def shares(self, *, ttft_s: float, tpot_s: float) -> tuple[float, float]:
        """Return the shares of both targets that simulated percentiles take by what they promise; 0 of one that is not set."""
        simulated = (ttft_s, tpot_s)
        first, later = (
            0.0 if target_s == math.inf else law.promised_s(time_s, self.confidence) / target_s
            for (law, target_s), time_s in zip(self._asked, simulated, strict=True)
        )
        return first, later

    def slowed_targets(self, allowed: Targets) -> Targets:
        """Return the most that percentiles may be which are simulated under ``slowdown`` times the load, so that what they
        promise is no more than what is promised by the ``allowed`` ones."""
        assert self.slowed is not None
        law, by = self.law.ttft, self.slowed.slowdown
        first_s = law.promised_s(allowed.ttft_s, self.confidence) if allowed.ttft_s > 0.0 else 0.0
        later_s = allowed.tpot_s * self.law.tpot.factor(self.confidence)
        return Targets((first_s / self.slowed.ttft_factor - law.outside_s) / by, later_s / by)

    def _as_simulated(self, *, ttft_s: float, tpot_s: float) -> tuple[float, float]:
        """Return the times that promise as much as these do, which were simulated under ``slowdown`` times the load."""
        assert self.slowed is not None
        law, by = self.law.ttft, self.slowed.slowdown
        first_s = (by * ttft_s + law.outside_s) * self.slowed.ttft_factor if ttft_s > 0.0 else 0.0
        return law.simulated_s(first_s, self.confidence), by * tpot_s / self.law.tpot.factor(self.confidence)

    def with_slowed(
        self, ttft: Percentile, tpot: Percentile, *, slower: tuple[Percentile, Percentile]
    ) -> tuple[Percentile, Percentile]:
        """Return percentiles whose upper ends promise no less than those that were simulated under ``slowdown`` times the
        load."""
        first_s, later_s = self._as_simulated(ttft_s=slower[0].high, tpot_s=slower[1].high)
        return replace(ttft, high=max(ttft.high, first_s)), replace(tpot, high=max(tpot.high, later_s))

    def of_prompts(self) -> Promised:
        """The same without a target of the time per token."""
        return replace(self, tpot_s=math.inf)

    @property
    def _asked(self) -> tuple[tuple[LatencyLaw, float], tuple[LatencyLaw, float]]:
        return (self.law.ttft, self.ttft_s), (self.law.tpot, self.tpot_s)


def promised_of(request: ServingRequest, *, pools: bool = False) -> Promised:
    """Return what a request's targets ask of simulated percentiles, of workers that do both phases or of two pools."""
    slo = request.slo
    devices = [group.node.device for group in request.cluster.groups]
    learned = learned_latencies(request.calibrations)
    law = latency_law(request.search.engine, pools=pools, devices=devices, learned=learned)
    is_open = not isinstance(request.workload.arrivals, ClosedArrivals)
    slowed = _slowed(law, OPEN_LOOPS[request.workload.router], slo.confidence) if is_open else None
    return Promised(_target_s(slo.p95_ttft_ms), _target_s(slo.p95_tpot_ms), law, slo.confidence, slowed)


def _slowed(law: ServingLaw, loops: OpenLoopLaw, confidence: float) -> Slowed | None:
    """Return the steps of an open loop as they are promised: by measured runs of one's own where there are some, else by open
    loops that were measured, and no less than by the law of times per token, which borrowed kernels widen; None where they are
    no slower."""
    told = law.tpot.factor(confidence)
    slowdown = told if law.runs else max(told, loops.slowdown(confidence))
    return Slowed(slowdown, loops.ttft_factor(confidence)) if slowdown > 1.0 else None


def _target_s(milliseconds: float | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1e3


def with_latencies(predicted: Predicted, promised: Promised, *, ttft: Percentile, tpot: Percentile) -> Predicted:
    """Return the figures with those of both times, from simulated percentiles.

    What is promised, and the high ends of the bands, count from the upper ends of the simulation's intervals.
    """
    law, confidence = promised.law, promised.confidence
    return replace(
        predicted,
        ttft_p95_s=law.ttft.median_s(ttft.value),
        tpot_p95_s=law.tpot.median_s(tpot.value),
        ttft_promised_s=law.ttft.promised_s(ttft.high, confidence),
        tpot_promised_s=law.tpot.promised_s(tpot.high, confidence),
        chance_ttft_missed=_chance(law.ttft, ttft, promised.ttft_s),
        chance_tpot_missed=_chance(law.tpot, tpot, promised.tpot_s),
        bands={
            **predicted.bands,
            "ttft_p95_s": _band(law.ttft, ttft, law.basis),
            "tpot_p95_s": _band(law.tpot, tpot, law.basis),
        },
    )


def _chance(law: LatencyLaw, simulated: Percentile, target_s: float) -> float | None:
    return None if target_s == math.inf else law.chance_above(simulated.value, target_s)


def _band(law: LatencyLaw, simulated: Percentile, basis: str) -> Band:
    """Where nine of ten measured figures fall, from both ends of the simulation's interval."""
    low = law.promised_s(max(0.0, simulated.low), LOW)
    return Band(low, law.promised_s(simulated.high, HIGH), f"{basis}; 90% confidence interval of the simulation")


# Plans that a search met and that keep the promise, as they are compared with its answer.


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan that keeps the promise; plans of one name that differ in batch limits count as one.

    objective   the figure that the request's objective minimises
    splits      ways in which its workers split the model, and one for workers that are not replicas alike
    missed      chance that a target is missed, None where there is none
    """

    name: str
    objective: float
    splits: int
    ttft_s: float
    tpot_s: float
    peak_memory_bytes: float
    missed: float | None


def kept_plan(
    name: str,
    *,
    objective: float,
    splits: int,
    promised: Promised,
    ttft: Percentile,
    tpot: Percentile,
    peak_memory_bytes: float,
) -> KeptPlan:
    """Return a plan from its simulated percentiles, by the law of their errors."""
    law = promised.law
    chances = (law.ttft.chance_above(ttft.value, promised.ttft_s), law.tpot.chance_above(tpot.value, promised.tpot_s))
    ttft_s, tpot_s = law.ttft.median_s(ttft.value), law.tpot.median_s(tpot.value)
    has_target = promised.ttft_s < float("inf") or promised.tpot_s < float("inf")
    return KeptPlan(name, objective, splits, ttft_s, tpot_s, peak_memory_bytes, max(chances) if has_target else None)
