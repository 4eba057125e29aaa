"""Lengths of requests as the distributions that the queueing model takes."""

from __future__ import annotations

import math

from meshwright.costmodels.queueing.load import TokenCount
from meshwright.solver.problem.request import Length
from meshwright.solver.problem.serving_load import EmpiricalLength, FixedLength, LognormalLength


def token_count(length: Length) -> TokenCount:
    """The distribution of a request's token count, as the queueing model takes it."""
    match length:
        case FixedLength():
            return TokenCount(float(length.fixed))
        case EmpiricalLength():
            return TokenCount.empirical(length.empirical)
        case LognormalLength():
            return TokenCount(length.mean, lognormal_sigma(length))


def lognormal_sigma(length: LognormalLength) -> float:
    """Log-scale deviation of a lognormal with this mean and 95th percentile.

    ln p95 = ln mean - sigma^2 / 2 + z sigma has two solutions; the smaller one is meant.
    """
    z = 1.6448536269514722
    spread = z * z - 2.0 * math.log(length.p95 / length.mean)
    return z - math.sqrt(max(0.0, spread))
