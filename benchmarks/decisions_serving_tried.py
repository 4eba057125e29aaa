"""Other rules of choosing a serving layout that were tried, each told by other deployments alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from benchmarks.decisions_serving_rules import Choice, Decisions, LawOf, decided, order
from benchmarks.serving_laws import Key, Laws, MeasuredLatency, Time
from meshwright.costmodels.fitting.calibration import FEWEST_POINTS, quantile
from meshwright.costmodels.serving.latency_law import LatencyLaw

CONFIDENCE = 0.9
MOST_BROKEN = 0.1
"""The share of picks that may miss their target: an aim of this project."""

MARGINS = tuple(0.8 + 0.01 * step for step in range(71))
"""Times the median that a layout may be promised to take, of which a share of picks is to choose."""

CLIENTS = (0, 8, 32, 128, math.inf)
FEWEST_DEPLOYMENTS = 2

Regime = Callable[[MeasuredLatency], object]

TRIED = """Tried for the first pick, each told by all other deployments: the quantile at 0.9 of measured over simulated times
itself instead of two normal spreads, of all points and by regimes that a request states; and one margin on the median, the
least with which picks of other deployments miss in at most 10%. An error that points of a deployment share does not cancel
between layouts that compete: their target is a time, not one another.
"""


def tried_rules(
    time: Time, choices: Sequence[Choice], points: Sequence[MeasuredLatency], laws: Mapping[tuple[Key, bool], Laws]
) -> list[Decisions]:
    """The outcomes of the rules that were tried."""
    regimes: dict[str, Regime] = {
        "of all points": lambda point: point.pools,
        "by engine": lambda point: (point.pools, point.key[0]),
        "by clients (8, 32, 128 and more)": lambda point: (point.pools, _clients(point)),
        "by engine and clients": lambda point: (point.pools, point.key[0], _clients(point)),
    }
    found = []
    for name, regime in regimes.items():
        law_of = _by_regime(time, points, laws, regime)
        found.append(decided(f"measured quantile at {CONFIDENCE:g} {name}", choices, law_of, 0.5))
    margin_of = _told_by_picks(time, choices, laws)
    found.append(decided(f"the margin with which {MOST_BROKEN:.0%} of other picks miss", choices, margin_of, 0.5))
    return found


def _clients(point: MeasuredLatency) -> int:
    """The regime of a closed loop by its clients."""
    given = point.scored.measured.run.concurrency
    clients = int(given) if given.isdigit() else 0
    return next(n for n, (low, high) in enumerate(pairwise(CLIENTS)) if low <= clients <= high)


def _by_regime(time: Time, points: Sequence[MeasuredLatency], laws: Mapping[tuple[Key, bool], Laws], regime: Regime) -> LawOf:
    """The law whose median is the measured quantile of the regime, without the deployment; of all points where fewer than
    FEWEST_DEPLOYMENTS tell the regime's."""

    @cache
    def quantile_of(key: Key, pools: bool, wanted: object) -> float:
        errors: dict[Key, list[float]] = defaultdict(list)
        outside_s = laws[key, pools].of(time).outside_s
        for point in points:
            if point.key != key and point.pools is pools and (wanted is None or regime(point) == wanted):
                errors[point.key].append(point.of(time).log_error(outside_s))
        told = [each for each in errors.values() if len(each) >= FEWEST_POINTS]
        if len(told) < FEWEST_DEPLOYMENTS and wanted is not None:
            return quantile_of(key, pools, None)
        return math.exp(quantile(told, CONFIDENCE))

    def law_of(choice: Choice) -> LatencyLaw:
        key, pools = choice.key
        return replace(laws[key, pools].of(time), scale=quantile_of(key, pools, regime(choice.layouts[0].latency)))

    return law_of


def _told_by_picks(time: Time, choices: Sequence[Choice], laws: Mapping[tuple[Key, bool], Laws]) -> LawOf:
    """The law with the least margin that lets no more than MOST_BROKEN of the picks of all other deployments miss, else the one
    with which fewest do."""

    def law_at(choice: Choice, margin: float) -> LatencyLaw:
        return replace(laws[choice.key].of(time), scale=margin)

    def misses(choice: Choice, margin: float) -> bool:
        return order(choice.layouts, choice.target_s, law_at(choice, margin), 0.5)[0].measured_s > choice.target_s

    missed = {margin: [(choice.key[0], misses(choice, margin)) for choice in choices] for margin in MARGINS}

    @cache
    def margin_of(key: Key) -> float:
        shares = {}
        for margin, picks in missed.items():
            others = [broken for other, broken in picks if other != key]
            shares[margin] = sum(others) / len(others)
        low_enough = [margin for margin in MARGINS if shares[margin] <= MOST_BROKEN]
        return low_enough[0] if low_enough else min(MARGINS, key=lambda margin: shares[margin])

    return lambda choice: law_at(choice, margin_of(choice.key[0]))
