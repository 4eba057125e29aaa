"""The error of simulated latencies by measured points: fitted, each deployment left out, and how many points stay below."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from benchmarks.serving_regimes import regime
from meshwright.app.evidence.serving.calibration import figures
from meshwright.app.evidence.serving.deployment import Deployment, Drafts, deployment
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import default_constants
from meshwright.app.evidence.serving.report import ScoredPoint
from meshwright.app.evidence.serving.rows import MeasuredPoint
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.costmodels.fitting.calibration import FEWEST_POINTS, LatencyPoint, fitted_outside_s, fitted_spreads
from meshwright.costmodels.serving.latency_law import HOST_STEP_SIGMA_S, OUTSIDE_SIGMA_S, LatencyLaw

TRIED_S = tuple(0.01 * step for step in range(31))
"""Constants outside of the simulation that are tried, 0 to 300 ms."""

HOST_STEP_S = tuple(0.05e-3 * step for step in range(-60, 101))
"""Host times of a step beside the profile's that are tried, 3 ms less to 5 ms more."""

CONFIDENCES = (0.5, 0.75, 0.9, 0.95)

Key = tuple[str, str, str]
"""Engine, model and node type: a deployment, left out as one."""


class Time(StrEnum):
    """The times that targets are of."""

    TTFT = "ttft"
    TPOT = "tpot"

    @property
    def words(self) -> str:
        """The time in words."""
        return "to the first token" if self is Time.TTFT else "per output token"

    @property
    def constant_sigma_s(self) -> float:
        """The spread of the constant that points of one's own tell."""
        return OUTSIDE_SIGMA_S if self is Time.TTFT else HOST_STEP_SIGMA_S


@dataclass(frozen=True)
class MeasuredLatency:
    """A measured point beside what the search simulates of it: the engine's profile as it stands."""

    scored: ScoredPoint
    deployed: Deployment
    ttft: LatencyPoint
    tpot: LatencyPoint

    @property
    def key(self) -> Key:
        """The deployment it is of."""
        return self.deployed.engine.value, *self.deployed.hardware

    @property
    def pools(self) -> bool:
        """True of prefill and decode pools."""
        return self.deployed.prefill is not None

    def of(self, time: Time) -> LatencyPoint:
        """Return the point of one of the times."""
        return self.ttft if time is Time.TTFT else self.tpot


def simulated_points(points: Iterable[MeasuredPoint]) -> list[ScoredPoint]:
    """Points as the search simulates them, the engine's profile as it stands: those that state their configuration, without
    drafts."""
    found = []
    for point in points:
        try:
            deployed = deployment(point.run)
            constants = replace(default_constants(deployed.engine), request_s=0.0)
            ran = regime(deployed)
            if ran.stated and ran.drafts is Drafts.NONE:
                found.append(ScoredPoint(point, deployed, simulated=figures(deployed, constants)))
        except NotPredictedError:
            continue
    return found


def measured_latencies(points: Iterable[ScoredPoint]) -> list[MeasuredLatency]:
    """Points with both times."""
    found = []
    for point in points:
        said, outcome, deployed = point.simulated, point.measured.outcome, point.deployed
        if said is None or said.tpot_ms is None or deployed is None or not outcome.ttft_ms or not outcome.tpot_ms:
            continue
        layout = f"line {point.measured.run.line}"
        ttft = LatencyPoint(layout, said.ttft_mean_ms / 1e3, outcome.ttft_ms / 1e3)
        tpot = LatencyPoint(layout, said.tpot_ms / 1e3, outcome.tpot_ms / 1e3)
        found.append(MeasuredLatency(point, deployed, ttft, tpot))
    return found


@dataclass(frozen=True)
class Laws:
    """The laws of both times, of one engine and one kind of workers."""

    ttft: LatencyLaw
    tpot: LatencyLaw

    def of(self, time: Time) -> LatencyLaw:
        """Return the law of one of the times."""
        return self.ttft if time is Time.TTFT else self.tpot


def fitted_laws(points: Sequence[MeasuredLatency], *, pools: bool) -> dict[str, Laws]:
    """The laws of workers of both phases, or of pools, by engine. Pools have the constants of workers of both phases."""
    outside = {}
    for engine in EngineName:
        both = [point for point in points if point.deployed.engine is engine and not point.pools]
        if both:
            outside[engine.value] = fitted_outside_s([[p.ttft for p in each] for each in by_deployment(both).values()], TRIED_S)
    kind = by_deployment(point for point in points if point.pools is pools)
    first = fitted_spreads([p.ttft.log_error(outside[p.key[0]]) for p in each] for each in kind.values())
    later = fitted_spreads([p.tpot.log_error(0.0) for p in each] for each in kind.values())
    return {engine: Laws(LatencyLaw(s, 1.0, *first), LatencyLaw(0.0, 1.0, *later)) for engine, s in outside.items()}


def constant_spreads(points: Sequence[MeasuredLatency]) -> tuple[float, float]:
    """The spreads of the best constants of deployments around their engine's, root mean squares in seconds, of workers of
    both phases: of the time outside of the simulation, and of the host time of a step."""
    both = [point for point in points if not point.pools]
    laws, outside, steps = fitted_laws(both, pools=False), [], []
    for key, each in by_deployment(both).items():
        outside.append(fitted_outside_s([[point.ttft for point in each]], TRIED_S) - laws[key[0]].ttft.outside_s)
        least_s = min(point.tpot.simulated_s for point in each)
        steps.append(fitted_outside_s([[point.tpot for point in each]], [s for s in HOST_STEP_S if least_s + s > 0.0]))
    return _root_mean_square(outside), _root_mean_square(steps)


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def by_deployment(points: Iterable[MeasuredLatency]) -> dict[Key, list[MeasuredLatency]]:
    """Points by what they are left out with, of deployments with FEWEST_POINTS or more: deployments count alike, and one point
    should not count as much as a hundred."""
    found: dict[Key, list[MeasuredLatency]] = defaultdict(list)
    for point in points:
        found[point.key].append(point)
    return {key: each for key, each in found.items() if len(each) >= FEWEST_POINTS}


def laws_left_out(points: Sequence[MeasuredLatency]) -> dict[tuple[Key, bool], Laws]:
    """The laws of each deployment and kind of workers, fitted to all other deployments."""
    kinds = sorted({(point.key, point.pools) for point in points})
    found = {}
    for key, pools in kinds:
        others = [point for point in points if point.key != key]
        found[key, pools] = fitted_laws(others, pools=pools)[key[0]]
    return found


def coverage_table(points: Sequence[MeasuredLatency], laws: Mapping[tuple[Key, bool], Laws]) -> list[str]:
    """Lines of a table: shares of points below what is promised, by confidence, and how many times the prediction that is."""
    heads = [f"{confidence:g}" for confidence in CONFIDENCES]
    lines = [
        f"| points | deployments | time | factor at 0.9 | {' | '.join(heads)} |",
        f"| --- | --- | --- | --- | {' | '.join('---' for _ in heads)} |",
    ]
    groups = {
        "workers of both phases": [point for point in points if not point.pools],
        **{f"of these, {each.value}": [p for p in points if not p.pools and p.deployed.engine is each] for each in EngineName},
        "prefill and decode pools": [point for point in points if point.pools],
    }
    for name, members in groups.items():
        deployments = by_deployment(members)
        for time in ("ttft", "tpot"):
            shares = [
                fmean(
                    fmean(_is_below(point, getattr(laws[point.key, point.pools], time), time, confidence) for point in each)
                    for each in deployments.values()
                )
                for confidence in CONFIDENCES
            ]
            factors = [getattr(laws[point.key, point.pools], time).factor(0.9) for point in members]
            cells = " | ".join(f"{share:.0%}" for share in shares)
            lines.append(f"| {name}, {len(members)} | {len(deployments)} | {time.upper()} | {fmean(factors):.2f} | {cells} |")
    return lines


def _is_below(point: MeasuredLatency, law: LatencyLaw, time: str, confidence: float) -> bool:
    told: LatencyPoint = getattr(point, time)
    return told.measured_s <= law.promised_s(told.simulated_s, confidence)
