"""Calibrations learned from measured runs: of training how long steps take over what the cost model says, and what memory runs
took; of serving what measured latencies are over simulated ones.

Such a calibration belongs to the hardware of a cluster and to what runs the model on it, and stands in a request beside those
of devices. What it says of times is the same for all plans: it moves none before another, but says when a target holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any

from annotated_types import Ge, Le

from meshwright.costmodels.calibration.calibration import Calibration, calibration_key
from meshwright.costmodels.errors import ClusterError

RUN_CALIBRATION_SCHEMA = "meshwright.run-calibration/1"

RUN_KEY_PREFIX = "runs."
"""The start of keys of calibrations that were learned from runs; no device's key begins so."""

DEFAULT_CONFIDENCE = 0.9
"""The chance with which a target is to hold, where a request names none: of ten plans nine."""

MAX_CONFIDENCE = 0.99
"""Beyond it the tails of the laws decide, of which too few runs tell."""

Confidence = Annotated[float, Ge(0.5), Le(MAX_CONFIDENCE)]

LARGEST_SCALE = 100.0
"""Runs farther from what was predicted are refused when they are reported."""

LONGEST_ORIGIN = 200

LATENCY = "latency"
"""The part of a serving engine's document, in the place of the time and memory of a training framework's."""

LONGEST_OUTSIDE_S = 100.0
"""Seconds outside of a simulation that a document may tell of."""


@dataclass(frozen=True, slots=True)
class TimeLaw:
    """The time of a step over what the cost model says, lognormal.

    scale          median
    shared_sigma   spread (natural logarithm) of what all runs of a framework on a cluster share
    own_sigma      spread of what each model and plan has of its own
    runs           measured runs that say so
    """

    scale: float
    shared_sigma: float
    own_sigma: float
    runs: int = 0

    @property
    def log_sigma(self) -> float:
        """Spread of a run of which nothing was measured yet."""
        return math.hypot(self.shared_sigma, self.own_sigma)

    def factor(self, quantile: float) -> float:
        """Return how many times the predicted time it is that a share of runs stays below."""
        return self.scale * math.exp(NormalDist().inv_cdf(quantile) * self.log_sigma)


UNMEASURED_TIME = TimeLaw(scale=1.0, shared_sigma=0.229, own_sigma=0.175)
"""Before any run. Measured over predicted steps of 2,607 runs, each predicted by rates that have not seen its source: the root
mean square of the means of 36 pairs of source and device, and the spread inside a pair of which 95% of runs stay below the P95
that it tells. Made by benchmarks/decisions.py (docs/decisions-accuracy.md)."""


def is_run_key(key: str) -> bool:
    """Return True if a calibration of this key was learned from runs."""
    return key.startswith(RUN_KEY_PREFIX)


def run_calibration(calibrations: Iterable[Calibration]) -> Calibration | None:
    """Return the calibration that was learned from runs; None when a request has none."""
    return next((each for each in calibrations if is_run_key(calibration_key(each.name))), None)


def time_law(calibration: Calibration) -> TimeLaw:
    """Return the law of times of a calibration that was learned from runs."""
    time = calibration.document["time"]
    return TimeLaw(time["scale"], time["shared_sigma"], time["own_sigma"], time["runs"])


def check_run_calibration(document: Mapping[str, Any]) -> None:
    """Refuse a document that nothing can be computed with; raises ClusterError."""
    if LATENCY in document:
        _check_latencies(document)
        return
    try:
        time, outcomes = document["time"], document["memory"]
        numbers = (time["scale"], time["shared_sigma"], time["own_sigma"])
        good = (
            isinstance(document["key"], str)
            and isinstance(document["cluster"], str)
            and is_run_key(document["key"])
            and all(_is_number(each) for each in numbers)
            and 1.0 / LARGEST_SCALE <= time["scale"] <= LARGEST_SCALE
            and all(0.0 <= each <= LARGEST_SCALE for each in numbers)
            and isinstance(time["runs"], int)
            and all(_is_outcome(each) for each in outcomes)
        )
    except (KeyError, TypeError) as error:
        raise _unusable(f"nothing usable under {error}") from None
    if not good:
        raise _unusable(str(document.get("time"))[:LONGEST_ORIGIN])


def _check_latencies(document: Mapping[str, Any]) -> None:
    try:
        latency = document[LATENCY]
        laws = (latency["ttft"], latency["tpot"])
        good = (
            isinstance(document["key"], str)
            and isinstance(document["cluster"], str)
            and is_run_key(document["key"])
            and isinstance(latency["runs"], int)
            and all(_is_law(law) for law in laws)
        )
    except (KeyError, TypeError) as error:
        raise _unusable(f"nothing usable under {error}") from None
    if not good:
        raise _unusable(str(latency)[:LONGEST_ORIGIN])


def _is_law(law: Mapping[str, Any]) -> bool:
    numbers = (law["outside_s"], law["scale"], law["shared_sigma"], law["own_sigma"])
    if not all(_is_number(each) for each in numbers):
        return False
    outside_s, scale, *sigmas = numbers
    within = 0.0 <= outside_s <= LONGEST_OUTSIDE_S and 1.0 / LARGEST_SCALE <= scale <= LARGEST_SCALE
    return within and all(0.0 < each <= LARGEST_SCALE for each in sigmas)


def _is_outcome(value: Any) -> bool:
    sizes = (value["median_bytes"], value["told_bytes"])
    return value["outcome"] in ("peak", "fitted", "ran-out") and all(_is_number(each) and 0.0 < each < 1e18 for each in sizes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _unusable(given: str) -> ClusterError:
    return ClusterError(
        "this is no calibration learned from runs",
        given=given,
        allowed="key, cluster, and time and memory or latency, as 'meshwright calibrate show --json' prints",
    )
