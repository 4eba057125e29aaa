"""The remainder that a curve leaves unexplained at the measured sizes, where these form a lattice: a smooth field over it.

The field is the mean of a Gaussian process whose covariance is a product over axes and falls by nodes, not by sizes: measured
sizes lie closer where kernels change. Products over axes make it cheap: a lattice of 36,000 nodes takes a tenth of a
second (Saatci, "Scalable inference for structured Gaussian process models", 2011, chapter 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REACH_NODES = (2.0, 1.5, 1.5)
"""Nodes over which the covariance falls to 1/e: rows, columns and depth of a product."""

VARIANCE = 6e-3
"""Of the field, a log-ratio: the tables of five devices leave 6 to 9%, as a root mean square."""

NOISE = 2e-3
"""Variance of a row about the field: kernels that a library chooses otherwise than for the neighbouring sizes."""

OUTLIER = 0.03
"""Log-ratio beyond which a row's noise grows with its distance from the field."""

REWEIGHTINGS = 3
MOST_STEPS = 40
SOLVED_TO = 1e-3

LEAST_FILLED = 0.5
"""Share of a lattice's nodes that are measured at least; of fewer it says nothing."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """Sizes along each axis, and the field's log-ratio at their crossings."""

    axes: tuple[Floats, Floats, Floats]
    field: Floats


def fit_lattice(sizes: tuple[Floats, Floats, Floats], residual: Floats) -> Lattice | None:
    """The field of log-ratios measured at sizes (three arrays of the residual's length); None where these form no lattice."""
    axes = (np.unique(sizes[0]), np.unique(sizes[1]), np.unique(sizes[2]))
    shape = tuple(len(axis) for axis in axes)
    if min(shape) < 2 or len(residual) < LEAST_FILLED * np.prod(shape):
        return None
    at = np.ravel_multi_index([np.searchsorted(axis, size) for axis, size in zip(axes, sizes, strict=True)], shape)
    covariances = [_covariance(count, reach) for count, reach in zip(shape, REACH_NODES, strict=True)]
    noise = np.full(len(residual), NOISE)
    amounts = np.zeros(len(residual))
    field = np.zeros(shape)
    for _ in range(REWEIGHTINGS):
        amounts = _solved(covariances, at, noise, residual, amounts)
        field = _spread(covariances, at, amounts)
        noise = NOISE * np.maximum(np.abs(residual - field.reshape(-1)[at]) / OUTLIER, 1.0)
    return Lattice(axes, field)


def _covariance(count: int, reach: float) -> Floats:
    nodes = np.arange(float(count))
    return np.asarray(np.exp(-np.abs(nodes[:, None] - nodes) / reach))


def _spread(covariances: list[Floats], at: Ints, amounts: Floats) -> Floats:
    """Amounts at some nodes, spread over the whole lattice by the covariance."""
    shape = tuple(len(covariance) for covariance in covariances)
    # Rows of one node add up.
    field: Floats = np.bincount(at, weights=amounts, minlength=int(np.prod(shape))).astype(np.float64).reshape(shape)
    for covariance in covariances:
        # Each turn handles the first axis and moves it to the end.
        field = np.asarray(np.tensordot(field, covariance, axes=(0, 0)), np.float64)
    return np.asarray(VARIANCE * field)


def _solved(covariances: list[Floats], at: Ints, noise: Floats, wanted: Floats, start: Floats) -> Floats:
    """Amounts whose spread, with each row's own noise, gives what is wanted, by conjugate gradients."""
    amounts = start
    left = wanted - _spread(covariances, at, amounts).reshape(-1)[at] - noise * amounts
    direction, size = left, float(left @ left)
    for _ in range(MOST_STEPS):
        if size <= SOLVED_TO**2 * float(wanted @ wanted):
            break
        image = _spread(covariances, at, direction).reshape(-1)[at] + noise * direction
        step = size / float(direction @ image)
        amounts, left = amounts + step * direction, left - step * image
        size, before = float(left @ left), size
        direction = left + size / before * direction
    return amounts
