"""Robust fit of device rates and link speeds to measured step times.

A step time is nearly linear in how much slower each constant makes its part of the step, so the parts are found by moving
each constant a little, and fits to other rows need no more predictions. The parts change where another term of a maximum
becomes the larger, so they are found again at the first fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.app.evidence.training.clusters import cluster_of
from meshwright.app.evidence.training.prediction import (
    LINKS,
    Constant,
    ConstantOf,
    Constants,
    cluster_name,
    predict_run,
    silicon_name,
)
from meshwright.app.evidence.training.rows import ValidationRun

Floats = NDArray[np.float64]

STEP = 0.02
"""Relative change of a constant by which its part of a step is found."""

OUTLIER = 0.1
"""Relative error from which a row counts by its size and no longer by its square."""

PRIOR = 0.1
"""Weight of a constant's distance from what is expected of it (natural logarithm) over that of a source's mean error. Of a
cluster's link the catalogue's speed is expected. Of a chip's rate the mean over chips is, which a chip takes that no row tells
of; of that mean, 1."""

OF_CLOCK = (Constant.MATRIX, Constant.LOW_PRECISION_MATRIX)
"""Rates that follow the clock."""

CLOCK_BY_POWER = 1 / 3
"""Power of the power limit that the clock of a chip follows: switching takes C V^2 f, and the voltage V is lowered with the
frequency f (Hennessy and Patterson, Computer Architecture, section 1.5). So a chip under a lower limit than another one of the
same silicon is expected to be slower."""

NO_FASTER_THAN_ALONE = (Constant.MATRIX, Constant.MEMORY)
"""Kernels of a run are no faster than the same timed one by one. Those of fp8 and fp4 may be: their tables hold a quantisation
that training does elsewhere."""

INSIDE = 0.05
"""Distance from its bound at which the search for a constant starts: it hardly moves away from the bound itself."""

ITERATIONS = 2
"""Times that the parts of steps are found: at no slow-down, and at the first fit."""

RUNS_OF_SOURCE = 120
"""Runs of a source that a fit looks at: since every source counts alike, more would only take longer."""


@dataclass(frozen=True)
class Parts:
    """Step times of runs at some constants, and the seconds of them that each constant is behind.

    step_s   [runs]
    part_s   [runs, constants], the columns being ``columns``
    """

    at: Constants
    columns: tuple[ConstantOf, ...]
    step_s: Floats
    part_s: Floats


def fitted_runs(runs: Sequence[ValidationRun], *, of_source: int = RUNS_OF_SOURCE) -> list[ValidationRun]:
    """At most so many runs of each source, evenly spaced in the order given."""
    by_source: dict[str, list[ValidationRun]] = {}
    for measured in runs:
        by_source.setdefault(measured.run.source, []).append(measured)
    return [run for members in by_source.values() for run in members[:: -(-len(members) // of_source)]]


def fit_constants(runs: Sequence[ValidationRun]) -> tuple[Constants, Parts]:
    """The constants that fit all runs best, and the parts of the runs from which other fits can start.

    Every run must be one that is predicted, and have a step time.
    """
    constants = Constants()
    for _ in range(ITERATIONS):
        parts = parts_of(runs, constants)
        constants = refit(parts, runs, np.ones(len(runs), np.bool_))
    return constants, parts


def parts_of(runs: Sequence[ValidationRun], at: Constants) -> Parts:
    """Parts of every run at the given constants."""
    chips = [silicon_name(cluster_of(measured.run).groups[0].node.device) for measured in runs]
    clusters = [cluster_name(measured.run) for measured in runs]
    columns: list[ConstantOf] = []
    parts: list[Floats] = []
    step_s = _step_times_s(runs, at)
    for constant in Constant:
        owners = clusters if constant in LINKS else chips
        distinct = tuple(sorted(set(owners)))
        # Each run has one chip and one cluster, so one pass over the runs gives the parts of all owners.
        slower_s = _step_times_s(runs, at.scaled(constant, 1 / (1 + STEP), distinct))
        part_s = np.maximum(0.0, (slower_s - step_s) / STEP)
        for owner in distinct:
            columns.append((constant, owner))
            parts.append(np.where([other == owner for other in owners], part_s, 0.0))
    return Parts(at, tuple(columns), step_s, np.stack(parts, axis=1))


def refit(parts: Parts, runs: Sequence[ValidationRun], chosen: NDArray[np.bool_]) -> Constants:
    """The constants that fit the chosen runs best; every source counts alike."""
    weights = _weights(runs, chosen)
    start = np.array([-np.log(parts.at.rate(*column)) for column in parts.columns])
    part_s, rest_s = parts.part_s[chosen], (parts.step_s - parts.part_s.sum(axis=1))[chosen]
    measured_s = np.array([measured.outcome.step_time_s for measured in runs])[chosen]
    expected, by_power = PRIOR * _distances([constant for constant, _ in parts.columns]), _slower_by_power(parts.columns)

    def residuals(slowdown: Floats) -> Floats:
        predicted_s = rest_s + part_s @ np.exp(slowdown - start)
        return np.concatenate([weights * np.log(predicted_s / measured_s), expected @ (slowdown - by_power)])

    def jacobian(slowdown: Floats) -> Floats:
        scaled_s = part_s * np.exp(slowdown - start)
        predicted_s = rest_s + scaled_s.sum(axis=1)
        return np.concatenate([(weights / predicted_s)[:, None] * scaled_s, expected])

    fastest = np.array([0.0 if constant in NO_FASTER_THAN_ALONE else -np.inf for constant, _ in parts.columns])
    solved = least_squares(
        residuals, np.maximum(start, fastest + INSIDE), jac=jacobian, bounds=(fastest, np.inf), loss=_robust(weights)
    )
    rates = {column: float(np.exp(-x)) for column, x in zip(parts.columns, solved.x, strict=True)}
    told = frozenset(
        owner for (constant, owner), s in zip(parts.columns, part_s.T, strict=True) if constant not in LINKS and s.any()
    )
    return Constants({column: rate for column, rate in rates.items() if abs(rate - 1.0) > 1e-6}, told=told)


def _distances(constants: Sequence[Constant]) -> Floats:
    """The matrix that takes slow-downs to their distances from what is expected: for each link its own; for each rate that from
    the mean over the chips; and the means themselves."""
    rows = [np.eye(len(constants))]
    for constant in dict.fromkeys(constants):
        if constant not in LINKS:
            of_kind = np.array([other is constant for other in constants], np.float64)
            mean = of_kind / of_kind.sum()
            rows[0] = rows[0] - np.outer(of_kind, mean)
            rows.append(mean[None, :])
    return np.concatenate(rows)


def _slower_by_power(columns: Sequence[ConstantOf]) -> Floats:
    """Slow-downs (natural logarithm) that are expected of chips under a lower power limit than others of their calibration."""
    watts = {owner: float(owner.rpartition("/")[2].removesuffix("W")) for constant, owner in columns if constant not in LINKS}
    most: dict[str, float] = {}
    for owner, power_w in watts.items():
        silicon = owner.rpartition("/")[0]
        most[silicon] = max(power_w, most.get(silicon, 0.0))
    return np.array(
        [
            CLOCK_BY_POWER * np.log(most[owner.rpartition("/")[0]] / watts[owner]) if constant in OF_CLOCK else 0.0
            for constant, owner in columns
        ]
    )


def _weights(runs: Sequence[ValidationRun], chosen: NDArray[np.bool_]) -> Floats:
    sources = [measured.run.source for measured, taken in zip(runs, chosen, strict=True) if taken]
    counts = Counter(sources)
    return np.array([counts[source] ** -0.5 for source in sources])


def _robust(weights: Floats) -> Callable[[Floats], Floats]:
    """Loss of squared residuals: a run's grows with its error from `OUTLIER` on, whatever its weight; priors stay squares."""
    scales = (OUTLIER * weights) ** 2

    def loss(squares: Floats) -> Floats:
        runs = squares[: len(scales)]
        root = np.sqrt(1 + runs / scales)
        values, slopes, bends = squares.copy(), np.ones_like(squares), np.zeros_like(squares)
        values[: len(scales)] = 2 * scales * (root - 1)
        slopes[: len(scales)] = 1 / root
        bends[: len(scales)] = -1 / (2 * scales * root**3)
        return np.stack([values, slopes, bends])

    return loss


def _step_times_s(runs: Sequence[ValidationRun], constants: Constants) -> Floats:
    return np.array([predict_run(measured.run, constants).step_time_s for measured in runs])
