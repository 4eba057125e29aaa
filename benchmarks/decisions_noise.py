"""The noise of ranking, fitted to pairs of measured plans that competed, and what it says of sources left out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

import numpy as np
from scipy.optimize import minimize

from benchmarks.decisions_rules import Group
from meshwright.solver.training.report.equals import RANKING_NOISE, RankingNoise

START = (math.log(0.08), math.log(0.2))
BOUNDS = ((-7.0, 1.0), (-7.0, 1.0))
FEWEST_PAIRS = 5
ONE_SPREAD = 2.0 * NormalDist().cdf(1.0) - 1.0


@dataclass(frozen=True)
class Pair:
    """Two measured plans of a group.

    error      difference of the logarithms of measured over predicted time
    apart      how differently they spend their steps
    predicted  logarithm of the predicted times' quotient, the first plan's over the second's
    """

    source: str
    error: float
    apart: float
    predicted: float

    @property
    def turned(self) -> bool:
        """True if the measured order is not the predicted one."""
        return self.predicted * (self.predicted + self.error) < 0.0


def pairs_of(groups: Sequence[Group]) -> list[Pair]:
    """Every pair of plans that ran, but for those that are predicted as one."""
    found = []
    for group in groups:
        for one, other in itertools.combinations([plan for plan in group.plans if plan.step_s is not None], 2):
            assert one.step_s is not None and other.step_s is not None, "plans that ran"
            if one.predicted_s != other.predicted_s:
                predicted = math.log(one.predicted_s / other.predicted_s)
                error = math.log(one.step_s / other.step_s) - predicted
                found.append(Pair(group.source, error, math.dist(one.shares, other.shares), predicted))
    return found


def fitted_noise(pairs: Sequence[Pair]) -> RankingNoise:
    """The likeliest noise; every source counts as one.

    Errors of pairs have long tails: rows that a mapping reads wrongly. The likelihood is Laplace's, whose spread is the mean
    distance, not the root mean square, so that a few such pairs do not decide.
    """
    of_source = Counter(pair.source for pair in pairs)
    weights = np.array([1.0 / of_source[pair.source] for pair in pairs])
    errors, apart = (np.array([getattr(pair, name) for pair in pairs]) for name in ("error", "apart"))

    def loss(x: np.ndarray) -> float:
        own, part = np.exp(x)
        spread = np.sqrt(2.0 * own**2 + (part * apart) ** 2)
        return float(np.sum(weights * (np.log(spread) + math.sqrt(2.0) * np.abs(errors) / spread)))

    own, part = np.exp(minimize(loss, np.array(START), method="L-BFGS-B", bounds=BOUNDS).x)
    return RankingNoise(float(own), float(part), f"{len(pairs):,} pairs of {len(of_source)} sources")


def noise_table(pairs: Sequence[Pair]) -> str:
    """The fit, and for each source the share of its pairs within the spread that all others tell, in Markdown."""
    whole = fitted_noise(pairs)
    lines = [
        f"Fitted to {len(pairs):,} pairs of {len({pair.source for pair in pairs})} sources, every source as one: a spread of "
        f"{whole.own:.1%} that each plan has of its own, and {whole.part:.0%} of each part of a step, by its share. Shipped: "
        f"{RANKING_NOISE.own:.1%} and {RANKING_NOISE.part:.0%}. Plans that are predicted alike and spend their steps alike are "
        f"equal within {RANKING_NOISE.within:.0%}.",
        "",
        f"| source left out | pairs | own | of parts | spread, median | pairs within it ({ONE_SPREAD:.0%} if normal) | "
        "order turned: predicted within the class | beyond it |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    inside: list[float] = []
    for source in dict.fromkeys(pair.source for pair in pairs):
        noise = fitted_noise([pair for pair in pairs if pair.source != source])
        own = [pair for pair in pairs if pair.source == source]
        if len(own) < FEWEST_PAIRS:
            continue
        spreads = [math.hypot(math.sqrt(2.0) * noise.own, noise.part * pair.apart) for pair in own]
        inside.append(fmean(abs(pair.error) <= spread for pair, spread in zip(own, spreads, strict=True)))
        reach = math.log1p(noise.within)
        near, far = ([pair.turned for pair in own if (abs(pair.predicted) <= reach) is is_near] for is_near in (True, False))
        lines.append(
            f"| {source} | {len(own):,} | {noise.own:.1%} | {noise.part:.0%} | {median(spreads):.1%} | {inside[-1]:.0%} | "
            f"{_share(near)} | {_share(far)} |"
        )
    lines.append(f"| mean over sources | | | | | {fmean(inside):.0%} | | |")
    return "\n".join(lines)


def _share(turned: Sequence[bool]) -> str:
    return f"{fmean(turned):.0%} of {len(turned):,}" if turned else "–"
