"""From measured and simulated latencies to the law of an engine's errors: of many deployments, and of a few points of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median, pstdev

from meshwright.costmodels.serving.latency_law import LatencyLaw

COVERED = 0.9
"""The share of points that stay below what is promised with this confidence, by which the spread of each point is set."""

FEWEST_POINTS = 5
"""Points of a deployment whose spread among themselves is told from them."""

OUTSIDE_STEPS = 60
"""Constants outside of the simulation that are tried, up to three of their spreads above what was expected."""


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """A measured time of a layout beside the simulated one, in seconds. Points of one layout count as one."""

    layout: str
    simulated_s: float
    measured_s: float

    def log_error(self, outside_s: float) -> float:
        """Logarithm of measured over simulated time with what is outside of it."""
        return math.log(self.measured_s / (self.simulated_s + outside_s))


def fitted_outside_s(deployments: Iterable[Sequence[LatencyPoint]], tried_s: Iterable[float]) -> float:
    """Return the constant outside of the simulation with the least mean error, deployments counting alike."""
    points = [each for each in deployments if each]

    def error(outside_s: float) -> float:
        return fmean(fmean(abs(point.log_error(outside_s)) for point in each) for each in points)

    return min(tried_s, key=error)


def fitted_spreads(deployments: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Return the shared and the own spread of logarithms of measured over predicted times, deployments counting alike.

    Shared is the root mean square of their means. The own one makes COVERED of all points stay below what is promised with
    that confidence, and is no less than the median spread inside a deployment.
    """
    errors = [tuple(each) for each in deployments if each]
    shared = math.sqrt(fmean(fmean(each) ** 2 for each in errors))
    inside = [pstdev(each) for each in errors if len(each) >= FEWEST_POINTS]
    whole = quantile(errors, COVERED) / NormalDist().inv_cdf(COVERED)
    own = math.sqrt(max(0.0, whole**2 - shared**2)) if whole > 0.0 else 0.0
    return shared, max(own, median(inside) if inside else 0.0)


def quantile(errors: Sequence[Sequence[float]], share: float) -> float:
    """Return the least error that a share of points has not more than, deployments counting alike."""
    weighed = sorted((error, 1.0 / (len(errors) * len(each))) for each in errors for error in each)
    below = 0.0
    for error, weight in weighed:
        below += weight
        if below >= share - 1e-12:
            return error
    return weighed[-1][0]


def learned_latency(law: LatencyLaw, points: Sequence[LatencyPoint], *, outside_sigma_s: float) -> LatencyLaw:
    """Return the law after points of one's own: what is outside of the simulation, and the shift that all points share.

    The constant is the most likely one, normal around the law's and not below 0, with the shift summed up; the shift follows by
    normal regression. A layout counts once, by the mean of its points.
    """
    if not points:
        return law
    by_layout: dict[str, list[LatencyPoint]] = {}
    for point in points:
        by_layout.setdefault(point.layout, []).append(point)
    most_s = law.outside_s + 3.0 * outside_sigma_s
    tried = sorted({law.outside_s, *(most_s * step / OUTSIDE_STEPS for step in range(OUTSIDE_STEPS + 1))})
    outside_s = max(tried, key=lambda each: _log_chance(law, by_layout, each, outside_sigma_s))
    errors = _errors(by_layout, outside_s)
    weight = 1.0 / law.shared_sigma**2 + len(errors) / law.own_sigma**2
    shift = math.fsum(errors) / law.own_sigma**2 / weight
    scale = law.scale * math.exp(shift)
    return replace(law, outside_s=outside_s, scale=scale, shared_sigma=math.sqrt(1.0 / weight))


def _errors(by_layout: Mapping[str, Sequence[LatencyPoint]], outside_s: float) -> list[float]:
    return [fmean(point.log_error(outside_s) for point in each) for each in by_layout.values()]


def _log_chance(
    law: LatencyLaw, by_layout: Mapping[str, Sequence[LatencyPoint]], outside_s: float, outside_sigma_s: float
) -> float:
    """Logarithm of the chance of a constant and of the points under it, all shifts summed up; without a constant."""
    errors = _errors(by_layout, outside_s)
    shared, own, n = law.shared_sigma**2, law.own_sigma**2, len(errors)
    # Errors are jointly normal, own on the diagonal and shared everywhere (Sherman and Morrison's inverse).
    squares = math.fsum(error**2 for error in errors) - shared * math.fsum(errors) ** 2 / (own + n * shared)
    return -0.5 * (squares / own + ((outside_s - law.outside_s) / outside_sigma_s) ** 2)
