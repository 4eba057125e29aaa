"""Fits of a measured network between nodes: latency, cost per rank and bandwidth by collective and shape of the group.

Curves are relative to the line rate that the cluster's document states, shared as `group_topology` shares it: all groups of a
kind run at once. Message sizes, and the largest groups, are left out in turn to score them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.calibration.networks import FabricCurve
from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, group_topology
from meshwright.costmodels.fitting.check import Score
from meshwright.costmodels.fitting.samples import SampleError
from meshwright.costmodels.network.collectives import line_share

Floats = NDArray[np.float64]

FEWEST_SIZES = 4
"""Message sizes that a collective and shape has at least: a curve has four constants."""

FOLDS = 4

ROBUST_SCALE = 0.1
"""Log-ratio beyond which a row counts as an outlier."""

FASTER_THAN_LINE = 1.25
"""Largest messages may be so much faster than the stated line rate: switches that reduce on the way save part of a ring's
traffic, but beyond this the cluster's document understates its network."""


@dataclass(frozen=True, slots=True)
class FabricRow:
    """One measured time: groups of so many ranks, ``ranks_per_node`` of each on a node, ``groups_per_node`` sharing it."""

    collective: Collective
    ranks: int
    ranks_per_node: int
    groups_per_node: int
    message_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class FittedFabric:
    """Curves by collective and ranks of a group on each node, and the score of each on what was left out."""

    curves: dict[Collective, dict[int, FabricCurve]]
    scores: tuple[Score, ...]
    error: tuple[float, float]
    alone: dict[Collective, float]


@dataclass(frozen=True)
class _Series:
    """Rows of one collective and shape as arrays."""

    ranks: Floats
    line_s: Floats
    seconds: Floats


def fit_fabric(rows: Sequence[FabricRow], cluster: Cluster) -> FittedFabric:
    """Fit every collective and shape that was measured with all groups of a node at once.

    Raises SampleError where rows are too few, are no groups of the cluster, or are faster than its stated line rate allows.
    """
    per_node = cluster.groups[0].node.devices_per_node
    together = [row for row in rows if row.groups_per_node * row.ranks_per_node == per_node]
    kinds = sorted({(row.collective, row.ranks_per_node) for row in together})
    if not kinds:
        raise SampleError("no row has all groups of a node at once", remedy="measure with the script as it is written out")
    curves: dict[Collective, dict[int, FabricCurve]] = {}
    scores, errors = [], []
    for collective, here in kinds:
        own = [row for row in together if (row.collective, row.ranks_per_node) == (collective, here)]
        name = f"{collective.value}/{here} a node"
        series = _series(own, cluster)
        if len(np.unique(series.line_s)) < FEWEST_SIZES:
            raise SampleError(f"too few message sizes of {name} to fit", given=len(own), allowed=f"at least {FEWEST_SIZES}")
        _check_line_rate(series, name)
        curves.setdefault(collective, {})[here] = _fit(series)
        found = _held_out(series)
        errors.append(found)
        unseen = _largest_left_out(series)
        scores.append(Score(name, len(series.seconds), _quantile(found, 0.5), _quantile(found, 0.95), unseen))
    every = np.concatenate(errors)
    return FittedFabric(curves, tuple(scores), (_quantile(every, 0.5), _quantile(every, 0.95)), _alone(rows, per_node))


def topology_of(row: FabricRow, cluster: Cluster) -> GroupTopology:
    """The topology of a row's groups on the cluster; raises SampleError for groups that it does not have."""
    per_node = cluster.groups[0].node.devices_per_node
    nodes, rest = divmod(row.ranks, row.ranks_per_node)
    available = sum(group.nodes for group in cluster.groups)
    if rest or per_node % row.ranks_per_node or not 2 <= nodes <= available:
        raise SampleError(
            "a row's groups are none of the cluster",
            given=f"{row.ranks} ranks, {row.ranks_per_node} on a node",
            allowed=f"2 to {available} nodes, whole numbers of {per_node} devices on each",
            remedy="say the cluster that was measured",
        )
    if row.ranks_per_node == 1:
        return group_topology(cluster, n=row.ranks, stride=per_node)
    # Neighbours on each node: a stride that leaves as many groups on a node as were measured.
    return group_topology(cluster, n=row.ranks, stride=per_node // row.ranks_per_node)


def _series(rows: Sequence[FabricRow], cluster: Cluster) -> _Series:
    ordered = sorted(rows, key=lambda row: (row.ranks, row.message_bytes))
    line_s = [
        row.message_bytes
        * line_share(row.collective, row.ranks, row.ranks_per_node)
        / topology_of(row, cluster).inter_bytes_per_s
        for row in ordered
    ]
    return _Series(
        np.array([row.ranks for row in ordered], np.float64), np.array(line_s), np.array([row.time_s for row in ordered])
    )


def _check_line_rate(series: _Series, name: str) -> None:
    largest = series.line_s >= 0.5 * series.line_s.max()
    faster = float(np.median(series.line_s[largest] / series.seconds[largest]))
    if faster > FASTER_THAN_LINE:
        raise SampleError(
            f"{name} is faster than the network that the cluster's document states",
            given=f"{faster:.2f} times the line rate",
            allowed=f"at most {FASTER_THAN_LINE:g} times",
            remedy="correct inter.bytes_per_s of its nodes, or say the cluster that was measured",
        )


def _fit(series: _Series) -> FabricCurve:
    """Constants that fit the logarithm of times, few far-off rows counting little; a cost per rank needs two sizes of group."""
    several = len(np.unique(series.ranks)) > 1
    shortest_s = float(series.seconds.min())
    largest = int(np.argmax(series.line_s))
    share = min(1.0, max(1e-4, float(series.line_s[largest] / series.seconds[largest])))
    start = np.array([shortest_s, 0.01 * shortest_s, 1e-3 * math.sqrt(shortest_s), 1.0 / share])
    # No share above the line rate: the checker of plans takes it for the fastest that bytes can move.
    low = np.log([1e-9, 1e-12, 1e-12, 1.0])
    high = np.log([10.0, 1.0 if several else 1.1e-12, 10.0, 1e6])

    def residuals(constants: Floats) -> Floats:
        return np.asarray(np.log(_seconds(np.exp(constants), series) / series.seconds), np.float64)

    found = least_squares(
        residuals, np.clip(np.log(start), low, high), bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, max_nfev=1000
    )
    latency_s, rank_s, root, slow = (float(f"{value:.4g}") for value in np.exp(found.x))
    return FabricCurve(latency_s, rank_s if several else 0.0, root, float(f"{1.0 / slow:.4g}"))


def _seconds(constants: Floats, series: _Series) -> Floats:
    latency_s, rank_s, root, slow = constants
    return np.asarray(latency_s + rank_s * (series.ranks - 1) + root * np.sqrt(series.line_s) + slow * series.line_s)


def _errors(series: _Series, left_out: NDArray[np.bool_]) -> Floats:
    kept = ~left_out
    curve = _fit(_Series(series.ranks[kept], series.line_s[kept], series.seconds[kept]))
    predicted = np.array([curve.seconds(line_s, int(n)) for line_s, n in zip(series.line_s, series.ranks, strict=True)])
    return np.asarray(np.abs(predicted[left_out] / series.seconds[left_out] - 1.0))


def _held_out(series: _Series) -> Floats:
    """Relative errors on rows left out, every fourth at a time; the smallest and largest message stay in."""
    inside = (series.line_s > series.line_s.min()) & (series.line_s < series.line_s.max())
    place = np.arange(len(series.seconds)) % FOLDS
    return np.concatenate(
        [_errors(series, inside & (place == fold)) for fold in range(FOLDS) if (inside & (place == fold)).any()]
    )


def _largest_left_out(series: _Series) -> tuple[float, float] | None:
    """Median and 95th percentile of the error on the largest groups, left out; None where fewer than three sizes tell."""
    if len(np.unique(series.ranks)) < 3:
        return None
    found = _errors(series, series.ranks == series.ranks.max())
    return _quantile(found, 0.5), _quantile(found, 0.95)


def _alone(rows: Sequence[FabricRow], per_node: int) -> dict[Collective, float]:
    """Time of the largest messages with all groups of a node at once over that of one group alone, by collective."""
    found: dict[Collective, list[float]] = {}
    of_one_rank = (row for row in rows if row.ranks_per_node == 1)
    times = {(row.collective, row.ranks, row.groups_per_node, row.message_bytes): row.time_s for row in of_one_rank}
    for (collective, ranks, groups, size), time_s in times.items():
        together_s = times.get((collective, ranks, per_node, size))
        if groups == 1 and per_node > 1 and together_s is not None:
            found.setdefault(collective, []).append(together_s / time_s)
    return {collective: found[collective][-1] for collective in sorted(found)}


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else 0.0
