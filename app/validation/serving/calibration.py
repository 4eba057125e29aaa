"""Engine constants from measured points of other models and GPUs: what a group is scored with never saw its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import fmean

from meshwright.app.validation.serving.deployment import SCHEDULING, Deployment, deployment
from meshwright.app.validation.serving.recipes import EngineName
from meshwright.app.validation.serving.replay import EngineConstants, Figures, default_constants, replay
from meshwright.app.validation.serving.rows import MeasuredPoint, ServingOutcome
from meshwright.app.validation.unpredicted import NotPredictedError

STEP_S = (0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1.0e-3, 1.5e-3, 2.0e-3)
"""Host times of a step that are tried: none (hidden by the device) to that of an engine of pure Python."""

OPERATOR_S = (0.0, 30e-6, 60e-6, 90e-6)
"""Host times of an operator that are tried: none (compiled, or in a graph) to several kernels from Python modules."""

TURNAROUND_S = (0.002, 0.010, 0.030)
"""Times from an answer to the next request that are tried."""

REQUEST_S = tuple(0.01 * n for n in range(16))
"""Times outside of steps that are tried, 0 to 150 ms."""

LEAST_ROWS = 20
"""Rows of other models and GPUs from which constants are fitted; with fewer the engine keeps its profile."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Constants of one engine for one model and GPU, from ``rows`` measured points of others."""

    engine: EngineName
    hardware: tuple[str, str]
    constants: EngineConstants
    rows: int


def figures(deployed: Deployment, constants: EngineConstants) -> Figures:
    """As ``replay``, each run kept: time outside of steps only adds to its first tokens."""
    found = _run(deployed, replace(constants, request_s=0.0))
    more_ms = constants.request_s * 1e3
    return replace(found, ttft_mean_ms=found.ttft_mean_ms + more_ms, ttft_median_ms=found.ttft_median_ms + more_ms)


@cache
def _run(deployed: Deployment, constants: EngineConstants) -> Figures:
    return replay(deployed, constants)


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Constants of every fold, and those fitted to all aggregated rows of an engine: in sample for each of them."""

    folds: tuple[Fold, ...]
    in_sample: Mapping[EngineName, EngineConstants]


def calibrate(points: Iterable[MeasuredPoint]) -> CrossValidation:
    """For every engine and every model and GPU that it ran on: constants fitted to the engine's other aggregated rows."""
    known = [(deployed, point.outcome) for point in points if (deployed := _predictable(point)) is not None]
    folds, in_sample = [], {}
    for engine in EngineName:
        ran = [(deployed, outcome) for deployed, outcome in known if deployed.engine is engine]
        usable = [(deployed, outcome) for deployed, outcome in ran if deployed.prefill is None and _has_both(outcome)]
        in_sample[engine] = _constants(engine, usable)
        for hardware in dict.fromkeys(deployed.hardware for deployed, _ in ran):
            others = [(deployed, outcome) for deployed, outcome in usable if deployed.hardware != hardware]
            rows = len(others) if len(others) >= LEAST_ROWS else 0
            same = len(others) == len(usable)
            folds.append(Fold(engine, hardware, in_sample[engine] if same else _constants(engine, others), rows))
    return CrossValidation(tuple(folds), in_sample)


def _constants(engine: EngineName, rows: Sequence[tuple[Deployment, ServingOutcome]]) -> EngineConstants:
    return fit_constants(engine, rows) if len(rows) >= LEAST_ROWS else default_constants(engine)


def fit_constants(engine: EngineName, rows: Sequence[tuple[Deployment, ServingOutcome]]) -> EngineConstants:
    """The constants with the least mean absolute percentage error, which is what is reported: of TPOT for the host time of a
    step, then of TTFT for what else there is."""

    def tpot_error(constants: EngineConstants) -> float:
        return _mape([(figures(d, constants).tpot_ms, measured.tpot_ms) for d, measured in rows])

    def ttft_error(constants: EngineConstants) -> float:
        return _mape([(figures(d, constants).ttft_mean_ms, measured.ttft_ms) for d, measured in rows])

    stepping = min((replace(default_constants(engine), step_s=step_s) for step_s in STEP_S), key=tpot_error)
    around = product(OPERATOR_S, TURNAROUND_S, REQUEST_S, SCHEDULING[engine])
    return min((EngineConstants(stepping.step_s, *choice) for choice in around), key=ttft_error)


def _has_both(outcome: ServingOutcome) -> bool:
    return outcome.ttft_ms is not None and outcome.tpot_ms is not None


def _predictable(point: MeasuredPoint) -> Deployment | None:
    """Return the deployment of a row; None if it can't be predicted."""
    try:
        deployed = deployment(point.run)
        figures(deployed, default_constants(deployed.engine))
    except NotPredictedError:
        return None
    return deployed


def _mape(pairs: Iterable[tuple[float, float | None]]) -> float:
    return fmean(abs(predicted / measured - 1.0) for predicted, measured in pairs if measured is not None)
