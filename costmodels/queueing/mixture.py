"""Percentiles of requests that several simulations stand for, each for its share of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.queueing.statistics import FloatArray, Percentile, percentile, share_error


@dataclass(frozen=True, eq=False)
class WeightedObservations:
    """Observations of one simulation in order of time, and the share of all that they stand for."""

    share: float
    observations: FloatArray


def mixture_percentile(parts: Sequence[WeightedObservations], probability: float) -> Percentile:
    """Percentile of a mixture: the least value that the parts' shares of it, weighted, do not exceed.

    The error of "does not exceed" is the weighted sum of the parts' errors: simulations under one seed draw the same requests,
    so that errors may all go one way, and no correlation makes more of them. The interval thus covers at least as often as
    each part's own. Shares need not sum to 1: they are taken relative to their sum. Raises ValueError for no
    observations.
    """
    seen = [part for part in parts if part.share > 0.0 and len(part.observations)]
    if not seen:
        raise ValueError("a mixture needs observations")
    if len(seen) == 1:
        return percentile(seen[0].observations, probability)
    total = math.fsum(part.share for part in seen)
    values = np.concatenate([part.observations for part in seen])
    weights = np.concatenate([np.full(len(p.observations), p.share / total / len(p.observations)) for p in seen])
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    value = _quantile(values, reached, probability)
    half = math.fsum(part.share / total * share_error(part.observations, value) for part in seen)
    if math.isinf(half):
        return Percentile(value, -math.inf, math.inf)
    return Percentile(value, _quantile(values, reached, probability - half), _quantile(values, reached, probability + half))


def mixture_mean(parts: Sequence[WeightedObservations]) -> float:
    """Mean of a mixture."""
    seen = [part for part in parts if part.share > 0.0 and len(part.observations)]
    total = math.fsum(part.share for part in seen)
    return math.fsum(part.share / total * float(np.mean(part.observations)) for part in seen)


def _quantile(values: FloatArray, reached: FloatArray, probability: float) -> float:
    """The smallest of ordered values at which so much weight is reached; the last where all of it is not enough."""
    return float(values[min(len(values) - 1, int(np.searchsorted(reached, probability - 1e-12)))])
