"""Compiled linear interpolation in small tables, and its transpose: the stencil that a least-squares fit needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled_once_it_pays(pays_after=200_000)
def cell(x: float, nodes: Floats) -> tuple[int, float]:
    """Index of the node below x and the share of the way to the next one, held to the table's ends."""
    last = nodes.shape[0] - 2
    if x <= nodes[0]:
        return 0, 0.0
    if x >= nodes[last + 1]:
        return last, 1.0
    index = int(np.searchsorted(nodes, x, side="right")) - 1
    return index, float((x - nodes[index]) / (nodes[index + 1] - nodes[index]))


@compiled_once_it_pays(pays_after=60_000)
def bilinear(x: float, y: float, x_nodes: Floats, y_nodes: Floats, values: Floats) -> float:
    """Interpolated value at (x, y) of a table of shape (len(x_nodes), len(y_nodes))."""
    i, u = cell(x, x_nodes)
    j, v = cell(y, y_nodes)
    low = (1.0 - v) * values[i, j] + v * values[i, j + 1]
    high = (1.0 - v) * values[i + 1, j] + v * values[i + 1, j + 1]
    return float((1.0 - u) * low + u * high)


@compiled_once_it_pays(pays_after=20_000)
def trilinear(x: float, y: float, z: float, x_nodes: Floats, y_nodes: Floats, z_nodes: Floats, values: Floats) -> float:
    """Interpolated value at (x, y, z) of a table of shape (len(x_nodes), len(y_nodes), len(z_nodes))."""
    i, u = cell(x, x_nodes)
    low = bilinear(y, z, y_nodes, z_nodes, values[i])
    high = bilinear(y, z, y_nodes, z_nodes, values[i + 1])
    return float((1.0 - u) * low + u * high)


def stencil(points: tuple[Floats, ...], nodes: tuple[Floats, ...]) -> tuple[Ints, Floats]:
    """Flat indices of the 2**d nodes around each point, and their weights: shapes (points, 2**d)."""
    index = np.zeros((points[0].size, 1), np.int64)
    weight = np.ones((points[0].size, 1))
    for coordinate, axis in zip(points, nodes, strict=True):
        position = np.interp(coordinate, axis, np.arange(float(axis.size)))
        below = np.minimum(position.astype(np.int64), axis.size - 2)
        share = position - below
        index = (index[:, :, None] * axis.size + np.stack([below, below + 1], axis=1)[:, None, :]).reshape(points[0].size, -1)
        weight = (weight[:, :, None] * np.stack([1.0 - share, share], axis=1)[:, None, :]).reshape(points[0].size, -1)
    return index, weight
