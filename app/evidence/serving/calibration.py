"""Engine constants from measured points of other models and GPUs: what a group is scored with never saw its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

from meshwright.app.evidence.serving.deployment import SCHEDULING, Deployment, Drafts, deployment
from meshwright.app.evidence.serving.figures import Figures
from meshwright.app.evidence.serving.open_loops import open_figures
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import EngineConstants, default_constants, replay
from meshwright.app.evidence.serving.rows import MeasuredPoint, ServingOutcome
from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row

STEP_S = (0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1.0e-3, 1.5e-3, 2.0e-3)
"""Host times of a step that are tried: none (hidden by the device) to that of an engine of pure Python."""

OPERATOR_S = (0.0, 30e-6, 60e-6, 90e-6)
"""Host times of an operator that are tried: none (compiled, or in a graph) to several kernels from Python modules."""

REQUEST_S = tuple(0.01 * n for n in range(21))
"""Times outside of steps that are tried, 0 to 200 ms."""

Known = tuple[Deployment, ServingOutcome]
"""A row that can be predicted, and what was measured."""

LEAST_ROWS = 20
"""Rows of other models and GPUs from which constants are fitted; with fewer the engine keeps its profile."""


MOST_ROWS = 400
"""Rows of an engine that constants are fitted to at most, evenly spaced in the table: five constants need no more."""


class LeftOut(StrEnum):
    """The rows that have something in common with a row and are not seen by the constants that it is scored with."""

    HARDWARE = "model and GPU"
    MODEL = "model"
    SOURCE = "source"

    def key(self, deployed: Deployment) -> tuple[str, ...]:
        """Return the part of a deployment that the rows left out together share."""
        match self:
            case LeftOut.HARDWARE:
                return deployed.hardware
            case LeftOut.MODEL:
                return (deployed.model,)
            case LeftOut.SOURCE:
                return (deployed.source.value,)


@dataclass(frozen=True, slots=True)
class Fold:
    """Constants of one engine for rows with the same ``key`` (one model and GPU, say), from ``rows`` measured points of
    others."""

    engine: EngineName
    key: tuple[str, ...]
    constants: EngineConstants
    rows: int


def figures(deployed: Deployment, constants: EngineConstants) -> Figures:
    """As ``replay``, each run kept: time outside of steps only adds to its first tokens."""
    return _run(deployed, replace(constants, request_s=0.0)).later(constants.request_s * 1e3)


@cache
def _run(deployed: Deployment, constants: EngineConstants) -> Figures:
    return replay(deployed, constants) if deployed.requests_per_s is None else open_figures(deployed, constants)


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Constants of every fold, and those fitted to all aggregated rows of an engine: in sample for each of them."""

    folds: tuple[Fold, ...]
    in_sample: Mapping[EngineName, EngineConstants]
    left_out: LeftOut = LeftOut.HARDWARE

    def held_out(self, deployed: Deployment) -> EngineConstants:
        """The constants that no row of the deployment's kind was seen by."""
        key = self.left_out.key(deployed)
        return next(fold.constants for fold in self.folds if fold.engine is deployed.engine and fold.key == key)


def calibrate(
    points: Iterable[MeasuredPoint], *, left_out: LeftOut = LeftOut.HARDWARE, models: Path | None = None
) -> CrossValidation:
    """For every engine and every kind of rows that is left out as one: constants fitted to the engine's other aggregated rows.

    Rows with drafts, or that leave open whether there were any, are not fitted to.
    """
    known = [(deployed, point.outcome) for point in points if (deployed := _predictable(point, models)) is not None]
    folds, in_sample = [], {}
    for engine in EngineName:
        ran = [(deployed, outcome) for deployed, outcome in known if deployed.engine is engine]
        usable = _spaced([(deployed, outcome) for deployed, outcome in ran if _is_fitted_to(deployed, outcome)])
        in_sample[engine] = _constants(engine, usable)
        for key in dict.fromkeys(left_out.key(deployed) for deployed, _ in ran):
            others = [(deployed, outcome) for deployed, outcome in usable if left_out.key(deployed) != key]
            rows = len(others) if len(others) >= LEAST_ROWS else 0
            same = len(others) == len(usable)
            folds.append(Fold(engine, key, in_sample[engine] if same else _constants(engine, others), rows))
    return CrossValidation(tuple(folds), in_sample, left_out)


def _is_fitted_to(deployed: Deployment, outcome: ServingOutcome) -> bool:
    closed = deployed.requests_per_s is None
    return closed and deployed.prefill is None and deployed.stated and deployed.drafts is Drafts.NONE and _has_both(outcome)


def _spaced(rows: Sequence[Known]) -> Sequence[Known]:
    """At most ``MOST_ROWS`` rows, evenly spaced."""
    count = min(MOST_ROWS, len(rows))
    return [rows[k * len(rows) // count] for k in range(count)]


def _constants(engine: EngineName, rows: Sequence[Known]) -> EngineConstants:
    return fit_constants(engine, rows) if len(rows) >= LEAST_ROWS else default_constants(engine)


def fit_constants(engine: EngineName, rows: Sequence[Known]) -> EngineConstants:
    """The constants with the least mean absolute percentage error, which is what is reported: of TPOT for the host time of a
    step, then of TTFT for what else there is."""

    def tpot_error(constants: EngineConstants) -> float:
        pairs = ((_figures_or_none(d, constants), measured) for d, measured in rows)
        return _mape([(f.tpot_of(measured.statistic), measured.tpot_ms) for f, measured in pairs if f])

    def ttft_error(constants: EngineConstants) -> float:
        pairs = ((_figures_or_none(d, constants), measured) for d, measured in rows)
        return _mape([(f.ttft_of(measured.statistic), measured.ttft_ms) for f, measured in pairs if f])

    stepping = min((replace(default_constants(engine), step_s=step_s) for step_s in STEP_S), key=tpot_error)
    around = product(OPERATOR_S, REQUEST_S, SCHEDULING[engine])
    return min((EngineConstants(stepping.step_s, *choice) for choice in around), key=ttft_error)


def _has_both(outcome: ServingOutcome) -> bool:
    return outcome.ttft_ms is not None and outcome.tpot_ms is not None


def _predictable(point: MeasuredPoint, models: Path | None) -> Deployment | None:
    """Return the deployment of a row; None if it can't be predicted."""
    try:
        with of_one_row():
            deployed = deployment(point.run, models)
            figures(deployed, default_constants(deployed.engine))
    except NotPredictedError:
        return None
    return deployed


def _figures_or_none(deployed: Deployment, constants: EngineConstants) -> Figures | None:
    """Return the figures of a row with constants that are tried; None where these have none of it."""
    try:
        with of_one_row():
            return figures(deployed, constants)
    except NotPredictedError:
        return None


def _mape(pairs: Iterable[tuple[float | None, float | None]]) -> float:
    known = ((predicted, measured) for predicted, measured in pairs if predicted is not None and measured is not None)
    errors = [abs(predicted / measured - 1.0) for predicted, measured in known]
    return fmean(errors) if errors else math.inf
