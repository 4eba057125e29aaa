"""Percentiles of correlated observations, with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

FloatArray = npt.NDArray[np.float64]

_SECTIONS = 400
"""Sections of a run whose means make the spectrum; more change nothing at the low end (Heidelberger and Welch 1981)."""

_PAIRS = 25
"""Pairs of low frequencies that the spectrum at zero is fitted to, and the degree of the fit, both as they advise."""

_DEGREE = 2

_FEWEST_PAIRS = 4

_LOG_VARIANCE = math.pi**2 / 6.0 - 1.0
"""Variance of the log of a mean of two periodogram ordinates, each chi-squared with two degrees of freedom: trigamma(2)."""

_LOG_BIAS = math.log(2.0) - (1.0 - float(np.euler_gamma))
"""The amount by which the mean of the log is too low: log 2 - digamma(2)."""

CONFIDENCE = 0.90

_ALIKE = 1e-6
"""Relative difference below which two times are one: each is the difference of two moments of a run, so that equal ones differ
by rounding, late in a long run most."""


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile and its two-sided confidence interval (CONFIDENCE)."""

    value: float
    low: float
    high: float


def percentile(observations: FloatArray, probability: float) -> Percentile:
    """Percentile of observations in order of time, with a confidence interval that holds for correlated ones.

    The spectrum at zero of "does not exceed the percentile" (Heidelberger and Welch 1981) gives the error of the probability,
    also when neighbours are correlated over much of a run, as in a busy queue; the percentiles at the probability more or less
    that error are the interval (Conover 1999, section 3.2). This needs no density, so it holds where many requests see the same
    time. Where correlation lets the error reach beyond all observations, the smallest or the largest of a run of several per
    section is the end; of a shorter run it is infinite.
    """
    n = len(observations)
    if n == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    ordered = np.sort(observations)
    value = float(ordered[_rank(n, probability)])
    half = share_error(observations, value, share=probability)
    if math.isinf(half):
        return Percentile(value, -math.inf, math.inf)
    low, high = probability - half, probability + half
    several = n >= 2 * _SECTIONS
    return Percentile(
        value,
        float(ordered[_rank(n, low)]) if low > 0.0 or several else -math.inf,
        float(ordered[_rank(n, high)]) if high < 1.0 or several else math.inf,
    )


def run_percentile(observations: FloatArray, probability: float) -> Percentile:
    """Percentile of all observations of one run, which is what is asked about: no interval around it."""
    if len(observations) == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    value = float(np.sort(observations)[_rank(len(observations), probability)])
    return Percentile(value, value, value)


def share_error(observations: FloatArray, value: float, *, share: float | None = None) -> float:
    """Half the confidence interval of the share of observations, in order of time, that do not exceed a value; infinite for
    too few of them. ``share`` is what it is about, by default their own."""
    n = len(observations)
    sections = min(_SECTIONS, n)
    fit = _fit(sections)
    if fit is None:
        return math.inf
    size = n // sections
    shares = np.mean(observations[: size * sections].reshape(sections, size) <= value * (1.0 + _ALIKE), axis=1)
    about = float(np.mean(observations <= value * (1.0 + _ALIKE))) if share is None else share
    # Where no section differs, the error of independent observations is the least that is credible.
    variance = max(fit.variance_of_mean(shares), about * (1.0 - about) / n)
    return fit.quantile * math.sqrt(variance)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A parabola through the log of the spectrum, at zero: ``weights`` of its points, what makes up for their error, and
    ``quantile`` of Student's t for an interval."""

    weights: FloatArray
    unbiased: float
    quantile: float

    def variance_of_mean(self, means: FloatArray) -> float:
        """Variance of the mean of all sections."""
        spectrum = np.abs(np.fft.rfft(means)[1 : 2 * len(self.weights) + 1]) ** 2 / len(means)
        pairs = (spectrum[0::2] + spectrum[1::2]) / 2.0
        if float(pairs.max()) <= 0.0:
            return 0.0
        # A pair that is zero but for rounding says little: it counts as a millionth of the largest.
        level = float(self.weights @ (np.log(np.maximum(pairs, 1e-6 * float(pairs.max()))) + _LOG_BIAS))
        return self.unbiased * math.exp(level) / len(means)


@cache
def _fit(sections: int) -> _Fit | None:
    """The fit for a number of sections; None for too few."""
    pairs = min(_PAIRS, (sections - 1) // 4)
    if pairs < _FEWEST_PAIRS:
        return None
    frequency = (4.0 * np.arange(1, pairs + 1) - 1.0) / (2.0 * sections)
    weights = np.linalg.pinv(np.vander(frequency, _DEGREE + 1, increasing=True))[0]
    variance = _LOG_VARIANCE * float(weights @ weights)
    # Degrees of freedom of a chi-squared variable whose variation is that of the level.
    freedom = 2.0 / math.expm1(variance)
    return _Fit(weights, math.exp(-variance / 2.0), float(stdtrit(freedom, (1.0 + CONFIDENCE) / 2.0)))


def _rank(n: int, probability: float) -> int:
    """Index of the smallest of n ordered observations that at least the given share does not exceed."""
    return min(n - 1, max(0, math.ceil(probability * n - 1e-9) - 1))
