"""Errors that all runs share, and how far each scatters around them, learned from runs.

A prediction's error, as a logarithm, is a shift that all runs of a framework on a cluster share and what each run has of its
own. How far the latter scatters differs by source more than either does by run: peaks of one source lie within 1% of their
mean, of another within 25%. So the scatter is not known beforehand either. It is lognormal around what all sources say, and
runs tell it together with the shift: those that agree narrow both, those that do not widen what is said of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

_STANDARD = NormalDist()

QUANTILE = 0.95
"""The quantile of a run to come that the spreads keep: that of the default risk, and the upper end of bands."""

OWN_NODES = 13
OWN_REACH = 2.5
"""Scatters that are summed over, to so many of their spreads on either side."""

SHIFT_NODES = 65
SHIFT_REACH = 8.0
"""Shifts that are summed over, to so many posterior spreads on either side of the likeliest."""

LEAST_SIGMA = 1e-6
"""Stands for a spread of 0, by which nothing can be divided."""

_STEPS = 60
"""Halvings and thirds of an interval: to its 2^-60, or a 10^-10 of it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An error of which only one side is known: it was above, or else below."""

    error: float
    above: bool


@dataclass(frozen=True, slots=True)
class SharedError:
    """An error as the sum of a shift that runs share and of what each has of its own, with the spreads of both."""

    shift: float
    shared_sigma: float
    own_sigma: float


def learned_error(
    shared_sigma: float, own_sigma: float, *, scatter: float, seen: Sequence[float], bounds: Sequence[Bound] = ()
) -> SharedError:
    """Return the error to expect of the next run after some were measured, each of another plan.

    ``scatter`` is the spread of the logarithm of ``own_sigma`` from one source to another, 0 where it is known. ``seen`` are
    errors, by normal regression; ``bounds`` those of which one side is known (Tobit's model). The spreads are such that the
    QUANTILE of the next run is that of all shifts and scatters that the runs leave possible, each with its chance.
    """
    shared = max(shared_sigma, LEAST_SIGMA)
    parts = [_given_scatter(own, log_chance, shared, seen, bounds) for own, log_chance in _scatters(shared, own_sigma, scatter)]
    most = max(part.log_chance for part in parts)
    chances = [math.exp(part.log_chance - most) for part in parts]
    whole = math.fsum(chances)
    weighed = [(chance / whole, part) for chance, part in zip(chances, parts, strict=True)]
    mean = math.fsum(chance * part.mean for chance, part in weighed)
    variance = math.fsum(chance * (part.sigma**2 + (part.mean - mean) ** 2) for chance, part in weighed)
    components = [(chance, part.mean - mean, math.hypot(part.sigma, part.own)) for chance, part in weighed]
    log_sigma = max(0.0, _mixed_quantile(components)) / _STANDARD.inv_cdf(QUANTILE)
    spread = min(math.sqrt(variance), log_sigma)
    return SharedError(mean, spread, math.sqrt(max(0.0, log_sigma**2 - spread**2)))


@lru_cache(maxsize=64)
def _scatters(shared: float, own_sigma: float, scatter: float) -> tuple[tuple[float, float], ...]:
    """Scatters and logarithms of their chances, so that before any run the QUANTILE is that of ``own_sigma`` alone."""
    own = max(own_sigma, LEAST_SIGMA)
    if scatter <= 0.0 or own_sigma <= 0.0:
        return ((own, 0.0),)
    nodes = [OWN_REACH * (2.0 * place / (OWN_NODES - 1) - 1.0) for place in range(OWN_NODES)]
    whole = math.fsum(math.exp(-0.5 * node**2) for node in nodes)
    wanted = _STANDARD.inv_cdf(QUANTILE) * math.hypot(shared, own)
    low, high = -OWN_REACH * scatter, OWN_REACH * scatter
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        components = [
            (math.exp(-0.5 * node**2) / whole, 0.0, math.hypot(shared, own * math.exp(middle + scatter * node)))
            for node in nodes
        ]
        low, high = (middle, high) if _mixed_quantile(components) < wanted else (low, middle)
    return tuple((own * math.exp(low + scatter * node), -0.5 * node**2) for node in nodes)


@dataclass(frozen=True, slots=True)
class _Part:
    """The shift for one scatter: its mean and spread, and the logarithm of the chance of the scatter with all that was told."""

    own: float
    log_chance: float
    mean: float
    sigma: float


def _given_scatter(own: float, log_chance: float, shared: float, seen: Sequence[float], bounds: Sequence[Bound]) -> _Part:
    variance = 1.0 / (1.0 / shared**2 + len(seen) / own**2)
    mean = variance * math.fsum(seen) / own**2
    squares = math.fsum(error**2 for error in seen) / own**2 - mean**2 / variance
    log_chance -= 0.5 * squares + len(seen) * math.log(own) - 0.5 * math.log(variance / shared**2)
    if not bounds:
        return _Part(own, log_chance, mean, math.sqrt(variance))

    def log_weight(shift: float) -> float:
        sides = ((each.error - shift) / own * (-1.0 if each.above else 1.0) for each in bounds)
        return math.fsum(map(_log_cdf, sides)) - 0.5 * (shift - mean) ** 2 / variance

    likeliest = _highest(log_weight, mean, bounds, own)
    curved = 1.0 / variance + math.fsum(_curvature((each.error - likeliest) / own, each.above) for each in bounds) / own**2
    step = 2.0 * SHIFT_REACH / math.sqrt(curved) / (SHIFT_NODES - 1)
    shifts = [likeliest + step * (place - SHIFT_NODES // 2) for place in range(SHIFT_NODES)]
    top = log_weight(likeliest)
    weights = [math.exp(log_weight(shift) - top) for shift in shifts]
    whole = math.fsum(weights)
    found = math.fsum(weight * shift for weight, shift in zip(weights, shifts, strict=True)) / whole
    spread = math.fsum(weight * (shift - found) ** 2 for weight, shift in zip(weights, shifts, strict=True)) / whole
    log_chance += top + math.log(whole * step / math.sqrt(2.0 * math.pi * variance))
    return _Part(own, log_chance, found, math.sqrt(spread))


def _highest(log_weight: Callable[[float], float], mean: float, bounds: Sequence[Bound], own: float) -> float:
    """Where a concave function is highest: between what peaks say and far beyond all bounds, by thirds."""
    errors = [each.error for each in bounds]
    low, high = min(mean, *errors) - SHIFT_REACH * own, max(mean, *errors) + SHIFT_REACH * own
    for _ in range(_STEPS):
        third = (high - low) / 3.0
        if log_weight(low + third) < log_weight(high - third):
            low += third
        else:
            high -= third
    return 0.5 * (low + high)


def _curvature(away: float, above: bool) -> float:
    """Minus the second derivative of the logarithm of the chance of one side, in own spreads."""
    x = -away if above else away
    ratio = math.exp(-0.5 * x * x - 0.5 * math.log(2.0 * math.pi) - _log_cdf(x))
    return max(0.0, ratio * (ratio + x))


def _mixed_quantile(components: Sequence[tuple[float, float, float]]) -> float:
    """The QUANTILE of a mixture of normal distributions: chance, mean and spread of each."""
    z = _STANDARD.inv_cdf(QUANTILE)
    # The quantile of a mixture lies between those of its components.
    ends = [mean + z * sigma for _, mean, sigma in components]
    low, high = min(ends), max(ends)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        below = math.fsum(chance * _cdf((middle - mean) / sigma) for chance, mean, sigma in components)
        low, high = (middle, high) if below < QUANTILE else (low, middle)
    return 0.5 * (low + high)


def _cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _log_cdf(x: float) -> float:
    """Logarithm of the standard normal distribution; far below its mean by the first term of its asymptotic series."""
    if x > -30.0:
        return math.log(_cdf(x))
    return -0.5 * x * x - math.log(-x * math.sqrt(2.0 * math.pi))
