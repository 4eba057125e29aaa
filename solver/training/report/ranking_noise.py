"""The noise of ranking: how far the measured order of two plans may be from the predicted one.

What two plans of one model and cluster share of a prediction's error moves neither before the other. Left are the errors of
the parts of a step, in so far as the plans spend it differently, and what each plan has of its own: the logarithm of measured
over predicted time is taken as a sum of errors of parts, each by its share of the step, and an own one, all of them normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from meshwright.solver.answer.predicted import TimeBreakdown

Shares = tuple[float, ...]
"""Shares of a step, together 1, by the fields of `TimeBreakdown`."""


@dataclass(frozen=True, slots=True)
class RankingNoise:
    """Spreads (natural logarithm) of measured over predicted time among plans that compete.

    own     of what each plan has of its own
    part    of the error of a part of a step, compute or communication of a kind, which plans have by its share
    basis   where it was measured
    """

    own: float
    part: float
    basis: str

    @property
    def within(self) -> float:
        """The share of a step that two plans may differ by in truth where they are predicted alike and spend it alike."""
        return math.expm1(math.sqrt(2.0) * self.own)

    def spread(self, one: Shares, other: Shares) -> float:
        """Spread of the difference of two plans' errors."""
        return math.hypot(math.sqrt(2.0) * self.own, self.part * distance(one, other))

    def error(self, shares: Shares, of_parts: Sequence[float], own: float) -> float:
        """Return the error of a plan where standard normal errors of all parts and its own one have these values."""
        parts = math.fsum(share * drawn for share, drawn in zip(shares, of_parts, strict=True))
        return self.part * parts + self.own * own


RANKING_NOISE = RankingNoise(
    own=0.078,
    part=0.37,
    basis="pairs of measured plans that competed on one model and cluster, of 12 sources",
)
"""benchmarks/decisions.py fits it to 10,630 pairs of measured plans, every source as one (docs/decisions-accuracy.md)."""


def shares_of(breakdown: TimeBreakdown, weights: Sequence[float] | None = None) -> Shares:
    """Return the shares of a step that its parts take, or of another sum in which their seconds have these weights."""
    seconds = astuple(breakdown)
    parts = seconds if weights is None else [weight * each for weight, each in zip(weights, seconds, strict=True)]
    whole = math.fsum(parts)
    return tuple(part / whole for part in parts)


def distance(one: Shares, other: Shares) -> float:
    """Return how differently two plans spend their steps: the Euclidean distance of their shares, 0 to the root of 2."""
    return math.dist(one, other)
