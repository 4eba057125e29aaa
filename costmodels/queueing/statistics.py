"""Percentiles of correlated observations, with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student_t

FloatArray = npt.NDArray[np.float64]

SECTIONS = 20
"""Sections of a run whose percentiles are compared: 10 to 30 are advised (Schmeiser 1982, batch size effects)."""

CONFIDENCE = 0.90

_STUDENT_T = float(student_t.ppf((1.0 + CONFIDENCE) / 2.0, SECTIONS - 1))
"""Quantile of Student's distribution for that confidence and so many sections."""

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

    Batch means (Schmeiser 1982) of "does not exceed the percentile" give the error of the probability, also when neighbours
    are correlated, as in a queue; the percentiles at the probability more or less that error are the interval (Conover 1999,
    section 3.2). This needs no density, so it holds where many requests see the same time. An end is infinite where the
    run is too short to bound it.
    """
    n = len(observations)
    if n == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    ordered = np.sort(observations)
    value = float(ordered[_rank(n, probability)])
    size = n // SECTIONS
    if size == 0:
        return Percentile(value, -math.inf, math.inf)
    shares = np.mean(observations[: size * SECTIONS].reshape(SECTIONS, size) <= value * (1.0 + _ALIKE), axis=1)
    spread = math.sqrt(float(np.var(shares, ddof=1)) / SECTIONS)
    # Where no section differs, the error of independent observations is the least that is credible.
    spread = max(spread, math.sqrt(probability * (1.0 - probability) / n))
    half = _STUDENT_T * spread
    low, high = probability - half, probability + half
    return Percentile(
        value,
        float(ordered[_rank(n, low)]) if low > 0.0 else -math.inf,
        float(ordered[_rank(n, high)]) if high < 1.0 else math.inf,
    )


def _rank(n: int, probability: float) -> int:
    """Index of the smallest of n ordered observations that at least the given share does not exceed."""
    return min(n - 1, max(0, math.ceil(probability * n - 1e-9) - 1))
