"""Errors of a fit on rows that it has not seen: rows of one shape are held out together, so that none leaks into its fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
