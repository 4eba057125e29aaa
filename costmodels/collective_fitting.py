"""Fits of collective curves to measured times, each message size left out in turn to score them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.collective_calibration import Collective, GroupCurve
from costmodels.collectives import bytes_per_rank, curve_s

Floats = NDArray[np.float64]

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
