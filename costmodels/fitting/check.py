"""Calibrations that come from outside are checked before compiled code, which checks no bounds, may run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.calibration import CALIBRATION_SCHEMA, SEPARATOR
from meshwright.costmodels.calibration.collectives import CollectiveCalibration, read_collectives
from meshwright.costmodels.calibration.kernel_file import TABLE_FIELDS, read_calibration
from meshwright.costmodels.calibration.kernels import Fitted, KernelCalibration
from meshwright.costmodels.curves.gemm import TILES, WAVE_TILES
from meshwright.costmodels.errors import ClusterError

DIVISORS = frozenset(
    {
        "cores",
        "tile_efficiency",
        "cache_bytes_per_s",
        "memory_efficiency",
        "saturating_waves",
        "peak_efficiency",
        "efficiency",
        "cached_efficiency",
    }
)
"""Constants that times are divided by."""

LARGEST_CONSTANT = 1e18

LARGEST_LOG_RATIO = 5.0
"""A table that corrects a curve by more than a factor of 150 corrects nothing: the curve is wrong."""

CONSTANTS_OF_A_GROUP = 7


def check_calibration(document: Mapping[str, Any]) -> tuple[KernelCalibration, CollectiveCalibration]:
    """The parts of a decoded calibration document; raises ClusterError when it can't be computed with."""
    if document.get("schema") != CALIBRATION_SCHEMA:
        raise ClusterError("this is no calibration", given=document.get("schema"), allowed=f"schema: {CALIBRATION_SCHEMA}")
    key = document.get("key")
    if not isinstance(key, str) or not key or SEPARATOR in key:
        raise ClusterError("a calibration names its device's key", given=key, allowed=f"a text without {SEPARATOR!r}")
    try:
        # Numbers that overflow are found below, where they can be named.
        with np.errstate(over="ignore", invalid="ignore"):
            kernels, collectives = read_calibration(document["kernels"]), read_collectives(document["collectives"])
            problem = next(_problems(kernels, collectives), None)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ClusterError(
            f"the calibration can't be read: {type(error).__name__}: {error}",
            given=key,
            remedy="give a document as 'meshwright calibrate show --json' prints it",
        ) from None
    if problem is not None:
        raise ClusterError(f"the calibration can't be used: {problem}", given=key)
    return kernels, collectives


def _problems(kernels: KernelCalibration, collectives: CollectiveCalibration) -> Iterator[str]:
    if not (np.isfinite(kernels.host_launch_s) and kernels.host_launch_s >= 0 and kernels.cores > 0):
        yield "host_launch_s and cores must be numbers of at least 0 and 1"
    for where, fitted in _fitted_curves(kernels):
        yield from _curve_problems(where, fitted.curve)
    if not 0 < kernels.attention_backward.curve < LARGEST_CONSTANT:
        yield "attention_backward: the ratio must be a positive number"
    if not 0 < collectives.link_share <= 1:
        yield "collectives: link_share must be more than 0 and at most 1"
    for kind, by_size in collectives.curves.items():
        for ranks, curve in by_size.items():
            constants = (*curve.latencies_s, *curve.shares, curve.root_s)
            if ranks < 2 or len(constants) != CONSTANTS_OF_A_GROUP or not all(0 < x < LARGEST_CONSTANT for x in constants):
                yield f"collectives: {kind.value} of {ranks} ranks needs seven positive constants and two ranks"


def _fitted_curves(kernels: KernelCalibration) -> Iterator[tuple[str, Fitted[Any]]]:
    for dtype, gemm in kernels.gemm.items():
        yield f"gemm/{dtype.value}", gemm
    for name, curves in (("prefill_attention", kernels.prefill), ("decode_attention", kernels.decode)):
        for dtype, by_head_dim in curves.items():
            for head_dim, attention in by_head_dim.items():
                yield f"{name}/{dtype.value}/{head_dim}", attention
    for kernel, memory in kernels.memory_bound.items():
        yield kernel.value, memory


def _curve_problems(where: str, curve: Any) -> Iterator[str]:
    """Yield a problem for each constant, axis and table of one curve that is not valid."""
    fields = curve._asdict()
    for name, value in fields.items():
        array = np.asarray(value, np.float64)
        if not np.isfinite(array).all():
            yield f"{where}: {name} is not finite"
        elif name in TABLE_FIELDS:
            if np.abs(array).max() > LARGEST_LOG_RATIO:
                yield f"{where}: {name} corrects by more than exp({LARGEST_LOG_RATIO:g})"
        elif name.startswith("log2_"):
            if array.ndim != 1 or array.size < 2 or not (np.diff(array) > 0).all():
                yield f"{where}: {name} must rise"
        elif (array < 0).any() or (array > LARGEST_CONSTANT).any() or (name in DIVISORS and (array == 0).any()):
            yield f"{where}: {name} is out of range"
    yield from _shape_problems(where, fields)


def _shape_problems(where: str, fields: Mapping[str, Any]) -> Iterator[str]:
    axes = {name: np.asarray(value).size for name, value in fields.items() if name.startswith("log2_")}
    expected: dict[str, tuple[int, ...]] = {}
    if "size_correction" in fields:
        expected["tile_efficiency"] = (len(TILES),)
        expected["size_correction"] = (axes["log2_rows"], axes["log2_columns"], axes["log2_k"])
        measured = ("log2_measured_rows", "log2_measured_columns", "log2_measured_k")
        expected["measured_correction"] = tuple(axes[name] for name in measured)
        expected["wave_correction"] = (len(WAVE_TILES), axes["log2_waves"], axes["log2_wave_k"])
    elif "correction" in fields:
        expected["correction"] = tuple(axes.values())
    for name, value in fields.items():
        shape = expected.get(name, (axes[name],) if name in axes else ())
        if np.asarray(value).shape != shape:
            yield f"{where}: {name} must have the shape {shape}"


# Errors of a fit on rows that it has not seen: rows of one shape are held out together, so that none leaks into its fit.

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]
Curve = TypeVar("Curve")


@dataclass(frozen=True, slots=True)
class Score:
    """Relative error of a kind of kernel or collective on held-out rows.

    name          "gemm/bf16", "prefill_attention/bf16/128", "collectives"
    rows          rows that were held out, each once
    median, p95   of the relative error
    unseen        median and 95th percentile on weight matrices of which no row was seen (products only)
    """

    name: str
    rows: int
    median: float
    p95: float
    unseen: tuple[float, float] | None = None


def fold_numbers(keys: Floats, *, folds: int, seed: int = 1) -> NDArray[np.int64]:
    """For each row of ``keys`` (rows x columns) the fold that holds it out: the same for equal rows, else at random."""
    shapes, which = np.unique(keys, axis=0, return_inverse=True)
    numbers = np.empty(len(shapes), np.int64)
    numbers[np.random.default_rng(seed).permutation(len(shapes))] = np.arange(len(shapes)) % folds
    return np.asarray(numbers[which.ravel()])


def held_out_ratios(
    fold_of: NDArray[np.int64], seconds: Floats, fit: Callable[[Rows], Curve], predict: Callable[[Curve, Rows], Floats]
) -> Floats:
    """Predicted over measured time of every row, each predicted by the fit of the folds that it is not in."""
    ratios = np.empty(len(seconds))
    for fold in np.unique(fold_of):
        held_out = fold_of == fold
        ratios[held_out] = predict(fit(~held_out), held_out) / seconds[held_out]
    return ratios


def error_quantiles(ratios: Floats) -> tuple[float, float]:
    """Median and 95th percentile of the relative error."""
    error = np.abs(ratios - 1.0)
    return float(np.median(error)), float(np.quantile(error, 0.95))
