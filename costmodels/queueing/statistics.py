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


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile and its two-sided confidence interval (CONFIDENCE)."""

    value: float
    low: float
    high: float


def percentile(observations: FloatArray, probability: float) -> Percentile:
    """Percentile of observations in order of time, by sectioning (Asmussen and Glynn 2007, section III.5a).

    The run is cut into sections; how far their percentiles lie from that of the whole run says how certain it is, also
    when neighbours are correlated, as in a queue. With too few observations for sections the interval is unbounded.
    """
    if len(observations) == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    value = _order_statistic(observations, probability)
    size = len(observations) // SECTIONS
    if size * (1.0 - probability) < 1.0:
        return Percentile(value, -math.inf, math.inf)
    sections = np.sort(observations[: size * SECTIONS].reshape(SECTIONS, size), axis=1)
    rank = min(size - 1, math.ceil(probability * size) - 1)
    deviation = math.sqrt(float(np.sum((sections[:, rank] - value) ** 2)) / (SECTIONS - 1))
    half = float(student_t.ppf((1.0 + CONFIDENCE) / 2.0, SECTIONS - 1)) * deviation / math.sqrt(SECTIONS)
    return Percentile(value, value - half, value + half)


def _order_statistic(observations: FloatArray, probability: float) -> float:
    """Smallest observation that at least the given share does not exceed."""
    rank = max(0, math.ceil(probability * len(observations)) - 1)
    return float(np.partition(observations, rank)[rank])
