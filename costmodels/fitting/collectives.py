"""Fits of collective curves to measured times, each message size left out in turn to score them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.costmodels.calibration.collectives import Collective, GroupCurve, collective_calibration
from meshwright.costmodels.fitting.board import Board
from meshwright.costmodels.fitting.check import Score
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, SampleError, Samples
from meshwright.costmodels.network.collectives import bytes_per_rank, curve_s, links_used

Floats = NDArray[np.float64]

COLLECTIVE_SCHEMA = "meshwright.collective-calibration/1"

FEWEST_SIZES = 8
"""Message sizes that a series has at least: a curve has seven constants."""

FOLDS = 5

ROBUST_SCALE = 0.05
"""Log-ratio beyond which a row counts as an outlier."""

LONGEST_LATENCY_S = 2e-4
"""Bound of a protocol's latency inside a node of accelerators; a slower series (Gloo on CPUs) bounds it itself."""

LARGEST_ROOT_S = 1e-4
"""Bound of the power term, in the same way."""


@dataclass(frozen=True, eq=False)
class Series:
    """Measured times of one collective and group size, sorted by size."""

    kind: Collective
    ranks: int
    message_bytes: Floats
    seconds: Floats

    @property
    def sent_bytes(self) -> Floats:
        """Bytes that each rank sends."""
        return np.asarray(bytes_per_rank(self.kind, self.ranks, self.message_bytes), np.float64)


def fit_collectives(samples: Samples, board: Board) -> tuple[dict[str, Any], Score | None]:
    """The collective calibration document of a board's samples, and its score; without measurements, the base's as it is.

    Raises SampleError when a series has too few sizes.
    """
    document: dict[str, Any] = {"schema": COLLECTIVE_SCHEMA, "key": board.key, "link_share": board.link_share}
    if board.collectives_base is not None:
        document["base"] = board.collectives_base
    found = series_of(samples)
    if not found:
        return document | {"error": _base_error(board)}, None
    curves: dict[str, dict[str, Any]] = {}
    errors = []
    for series in found:
        if len(series.seconds) < FEWEST_SIZES:
            raise SampleError(
                f"too few message sizes of {series.kind.value} over {series.ranks} ranks to fit",
                given=len(series.seconds),
                allowed=f"at least {FEWEST_SIZES}",
            )
        bytes_per_s = board.link_bytes_per_s * links_used(series.ranks, board.mesh_links)
        curve = fit_group(series, bytes_per_s=bytes_per_s)
        curves.setdefault(series.kind.value, {})[str(series.ranks)] = written(curve)
        errors.append(held_out_errors(series, bytes_per_s=bytes_per_s))
    error = np.concatenate(errors)
    median, p95 = float(np.median(error)), float(np.quantile(error, 0.95))
    basis = f"{len(error)} message sizes, each left out once"
    stated = {"median": round(median, 4), "p95": round(p95, 4), "basis": basis}
    return document | {"curves": curves, "error": stated}, Score("collectives", len(error), median, p95)


def series_of(samples: Samples) -> list[Series]:
    """The samples' collectives by kind and group size; sizes measured more than once by their median time."""
    found = []
    for kind, collective in sorted(COLLECTIVE_KINDS.items()):
        rows = samples.of_kind(kind)
        for ranks in np.unique(rows.ranks):
            group = rows.where(rows.ranks == ranks)
            sizes = np.unique(group.moved_bytes)
            medians = np.array([np.median(group.time_s[group.moved_bytes == size]) for size in sizes])
            found.append(Series(collective, int(ranks), sizes, medians))
    return found


def written(curve: GroupCurve) -> dict[str, Any]:
    """The entry of a calibration document, four digits of each constant."""
    return {
        "latencies_s": [_rounded(x) for x in curve.latencies_s],
        "shares": [_rounded(x) for x in curve.shares],
        "root_s": _rounded(curve.root_s),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _base_error(board: Board) -> dict[str, Any]:
    if board.collectives_base is None:
        return {"median": 0.5, "p95": 1.0, "basis": "no collectives were measured"}
    error = collective_calibration(board.collectives_base).error
    return {"median": error.median, "p95": error.p95, "basis": error.basis}


def fit_group(series: Series, *, bytes_per_s: float) -> GroupCurve:
    """Constants of a series over a fabric of the given speed, within bounds that keep each one physical."""
    return _fit(series.sent_bytes, series.seconds, bytes_per_s)


def held_out_errors(series: Series, *, bytes_per_s: float) -> Floats:
    """Relative errors on sizes left out, every fifth at a time; the ends say what no other size does and stay in."""
    sent, seconds = series.sent_bytes, series.seconds
    ends = (sent > sent.min()) & (sent < sent.max())
    errors = []
    for fold in range(FOLDS):
        left_out = (np.arange(len(sent)) % FOLDS == fold) & ends
        if left_out.any():
            curve = _fit(sent[~left_out], seconds[~left_out], bytes_per_s)
            errors.append(np.abs(curve_s(curve, sent[left_out], bytes_per_s) / seconds[left_out] - 1.0))
    return np.concatenate(errors) if errors else np.zeros(0)


def _fit(sent_bytes: Floats, seconds: Floats, bytes_per_s: float) -> GroupCurve:
    shortest_s = float(seconds.min())
    latency = (1e-6, max(LONGEST_LATENCY_S, 2 * shortest_s))
    # Latencies of LL, LL128 and Simple, their shares, the root: least, first guess, greatest.
    bounds = [
        (latency[0], shortest_s, latency[1]), (latency[0], 1.5e-5, latency[1]), (latency[0], 3e-5, latency[1]),
        (2e-3, 0.1, 1.0), (0.01, 0.4, 1.0), (0.1, 0.8, 1.2), (1e-9, 1e-6, max(LARGEST_ROOT_S, shortest_s)),
    ]  # fmt: skip
    low, start, high = np.log(np.array(bounds).T)
    found = least_squares(
        lambda x: np.log(curve_s(_curve_of(x), sent_bytes, bytes_per_s) / seconds),
        np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, max_nfev=2000,
    )  # fmt: skip
    return _curve_of(found.x)


def _curve_of(log_constants: Floats) -> GroupCurve:
    constants = [float(x) for x in np.exp(log_constants)]
    return GroupCurve((constants[0], constants[1], constants[2]), (constants[3], constants[4], constants[5]), constants[6])
