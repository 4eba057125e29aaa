"""Time of a matrix multiplication (m, k) x (k, n) on one device: tiles, waves, split k, caches, memory, launch.

The kernel library cuts the output into tiles of one of several shapes, may split k over several tiles, and runs the
tiles in waves over the device's cores; it mostly picks the fastest cut. A cut's time is the largest of its matrix-unit
time, its cache traffic and its memory traffic. What this leaves unexplained is held by coarse tables of log-ratios.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays

# Compiled linear interpolation in small tables, and its transpose: the stencil that a least-squares fit needs.

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


TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (16, 64)],
    np.float64,
)
"""Output tiles of tensor-core kernels, rows x columns (CUTLASS documentation, "Efficient GEMM in CUDA")."""

SPLITS = np.array([1, 2, 4, 8], np.float64)
"""Ways k is split over tiles whose partial sums are added up afterwards."""

WAVE_TILES = np.array([(128, 128), (256, 128), (128, 256), (64, 128), (64, 256)], np.float64)
"""Tiles whose number of waves is a coordinate of a correction."""

OUTPUT_BYTES = 2.0
"""Outputs are 16 bits wide in every measured table, also where inputs are fp8 or fp4."""

PARTIAL_SUM_BYTES = 8.0
"""An fp32 partial sum of a split is written once and read once."""

TWO_NODES = np.array([0.0, 1.0])
NO_CORRECTION = np.zeros((2, 2, 2))
"""Of a curve without a correction at the measured sizes."""


class GemmCurve(NamedTuple):
    """Constants of one device and number format (a NamedTuple, so that compiled code can take it).

    cores              compute units that tiles are spread over (SMs, CUs, AI cores)
    launch_s           fixed time of a kernel on the device, also when it has nothing to do
    tile_efficiency    share of the matrix units' peak that a tile of each shape of TILES reaches
    ramp_k             k-steps (elements) lost filling and draining a tile's pipeline
    wave_quantisation  0: tiles spread evenly; 1: a part-filled last wave costs a whole one
    split_s            extra synchronisation of a split along k
    cache_bytes_per_s  rate at which all cores together read operand tiles from the last-level cache
    memory_efficiency  share of the data sheet's memory bandwidth that is reached
    saturating_waves   waves of tiles in flight that it takes to reach it
    log2_rows, log2_columns, log2_k, size_correction     log-ratio of measured to modelled time by size
    log2_waves, log2_wave_k, wave_correction             and by waves of each of WAVE_TILES
    log2_measured_rows, log2_measured_columns, log2_measured_k, measured_correction
                       what these leave at the measured sizes themselves; two nodes an axis where nothing is known of it
    """

    cores: float
    launch_s: float
    tile_efficiency: Floats
    ramp_k: float
    wave_quantisation: float
    split_s: float
    cache_bytes_per_s: float
    memory_efficiency: float
    saturating_waves: float
    log2_rows: Floats
    log2_columns: Floats
    log2_k: Floats
    size_correction: Floats
    log2_waves: Floats
    log2_wave_k: Floats
    wave_correction: Floats
    log2_measured_rows: Floats = TWO_NODES
    log2_measured_columns: Floats = TWO_NODES
    log2_measured_k: Floats = TWO_NODES
    measured_correction: Floats = NO_CORRECTION


class Silicon(NamedTuple):
    """The data-sheet figures of a device that matter for matrix products, and the width of an input element."""

    peak_flops: float
    memory_bytes_per_s: float
    element_bytes: float


@compiled_once_it_pays(pays_after=3_500)
def gemm_s(m: float, n: float, k: float, batch: float, curve: GemmCurve, silicon: Silicon) -> float:
    """Seconds of ``batch`` products (m, k) x (k, n)."""
    return modelled_gemm_s(m, n, k, batch, curve, silicon) * math.exp(log_correction(m * batch, n, k, curve))


@compiled_once_it_pays(pays_after=6_000)
def modelled_gemm_s(m: float, n: float, k: float, batch: float, curve: GemmCurve, silicon: Silicon) -> float:
    """Seconds by the physical constants alone: the fastest cut and the launch."""
    bytes_per_s = curve.memory_efficiency * silicon.memory_bytes_per_s
    core_flops_per_s = silicon.peak_flops / curve.cores
    moved_bytes = batch * (silicon.element_bytes * k * (m + n) + OUTPUT_BYTES * m * n)
    fastest_s = np.inf
    for tile in range(TILES.shape[0]):
        rows, columns = TILES[tile]
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        k_step_s = 2.0 * rows * columns / (core_flops_per_s * curve.tile_efficiency[tile])
        cache_s = batch * m * n * k * (1.0 / rows + 1.0 / columns) * silicon.element_bytes / curve.cache_bytes_per_s
        for split in SPLITS:
            waves = tiles * split / curve.cores
            counted_waves = waves + curve.wave_quantisation * (math.ceil(waves) - waves)
            matrix_s = counted_waves * k_step_s * (k / split + curve.ramp_k)
            # With too few tiles in flight the memory queues run dry: bandwidth falls as the square root, fitted.
            memory_s = moved_bytes / (bytes_per_s * math.sqrt(min(1.0, waves / curve.saturating_waves)))
            cut_s = max(matrix_s, cache_s, memory_s)
            if split > 1.0:
                cut_s += curve.split_s + split * PARTIAL_SUM_BYTES * batch * m * n / bytes_per_s
            fastest_s = min(fastest_s, cut_s)
    return curve.launch_s + fastest_s


@compiled_once_it_pays(pays_after=6_000)
def log_correction(m: float, n: float, k: float, curve: GemmCurve) -> float:
    """Logarithm of measured over modelled time at a size."""
    log2_k = math.log2(k)
    total = trilinear(
        math.log2(covered_rows(m)), math.log2(n), log2_k,
        curve.log2_rows, curve.log2_columns, curve.log2_k, curve.size_correction,
    )  # fmt: skip
    for index in range(curve.wave_correction.shape[0]):
        log2_waves = math.log2(tile_waves(m, n, index, curve.cores))
        total += bilinear(log2_waves, log2_k, curve.log2_waves, curve.log2_wave_k, curve.wave_correction[index])
    if curve.measured_correction.shape[0] > 2:
        total += trilinear(
            math.log2(m), math.log2(n), log2_k,
            curve.log2_measured_rows, curve.log2_measured_columns, curve.log2_measured_k, curve.measured_correction,
        )  # fmt: skip
    return total


@compiled_once_it_pays(pays_after=500_000)
def covered_rows(m: float) -> float:
    """Rows rounded up to what the smallest tiles hold."""
    if m > 64.0:
        return math.ceil(m / 64.0) * 64.0
    return math.ceil(m / 16.0) * 16.0 if m > 16.0 else m


@compiled_once_it_pays(pays_after=300_000)
def tile_waves(m: float, n: float, index: int, cores: float) -> float:
    """Waves of tiles of WAVE_TILES[index] that cover an (m, n) output."""
    rows, columns = WAVE_TILES[index]
    return float(math.ceil(m / rows) * math.ceil(n / columns) / cores)


@compiled_once_it_pays(pays_after=12_000)
def gemms_s(m: Floats, n: Floats, k: Floats, batch: Floats, curve: GemmCurve, silicon: Silicon) -> Floats:
    """`gemm_s` of each element of four arrays of one length."""
    seconds = np.empty(m.shape[0])
    for i in range(m.shape[0]):
        seconds[i] = gemm_s(m[i], n[i], k[i], batch[i], curve, silicon)
    return seconds


# Time of the routed experts of a layer on one device: grouped products, activation and permutation, one sequence of kernels.
#
# Serving engines run them fused (CUTLASS and TensorRT-LLM grouped GEMMs, Triton fused_moe). Weights of every expert that got
# a row are read once; rows are padded to tiles; what the constants leave unexplained is held by a coarse table of log-ratios.

TILE = 128.0
"""Rows and columns of an output tile (CUTLASS grouped GEMM)."""

ACTIVATION_BYTES = 2.0
"""Rows go in and out in 16 bits, in every measured table."""


class ExpertCurve(NamedTuple):
    """Constants of one device and number format.

    cores              compute units that tiles are spread over
    launch_s           fixed time of the kernels of a layer
    local_expert_s     time each expert held by the rank costs, whether it gets rows or not (offsets, descriptors)
    memory_efficiency  share of the data sheet's bandwidth that weight reads reach
    saturating_waves   waves of tiles in flight that it takes to reach it
    peak_efficiency    share of the matrix units' peak in large groups
    padding_rows       rows that each active expert computes in vain
    row_efficiency     share of the bandwidth that permuting and activating rows reaches
    joining            how reading and computing overlap: (a^j + b^j)^(1/j), 1 adds them, large j takes the longer
    log2_rows, log2_experts, log2_width, correction   log-ratio of measured to modelled time over rows an active expert,
                       active experts, and local expert width
    """

    cores: float
    launch_s: float
    local_expert_s: float
    memory_efficiency: float
    saturating_waves: float
    peak_efficiency: float
    padding_rows: float
    row_efficiency: float
    joining: float
    log2_rows: Floats
    log2_experts: Floats
    log2_width: Floats
    correction: Floats


class ExpertWork(NamedTuple):
    """The work of a rank for a layer; arrays of one length.

    rows      routed rows (a token counts once for each of its experts here)
    active    distinct experts among them, at least one
    local     experts that the rank holds
    hidden, width   sizes of an expert's matrices on this rank
    matrices  three of a gated network, else two
    """

    rows: Floats
    active: Floats
    local: Floats
    hidden: Floats
    width: Floats
    matrices: Floats


def experts_s(work: ExpertWork, curve: ExpertCurve, silicon: Silicon) -> Floats:
    """Seconds of each entry; ``silicon.element_bytes`` is the width of a weight, scales included."""
    points = expert_points(work)
    index, weight = stencil(points, (curve.log2_rows, curve.log2_experts, curve.log2_width))
    log_ratio = np.sum(curve.correction.ravel()[index] * weight, axis=1)
    return np.asarray(modelled_experts_s(work, curve, silicon) * np.exp(log_ratio))


def expert_points(work: ExpertWork) -> tuple[Floats, Floats, Floats]:
    """Coordinates of the correction table."""
    return np.log2(np.maximum(1.0, work.rows / work.active)), np.log2(work.active), np.log2(work.width)


def modelled_experts_s(work: ExpertWork, curve: ExpertCurve, silicon: Silicon) -> Floats:
    """Seconds by the physical constants alone."""
    elements = work.matrices * work.hidden * work.width
    columns = ((work.matrices - 1.0) * work.width + work.hidden) / 2.0
    waves = work.active * (columns / TILE) * np.ceil(work.rows / work.active / TILE) / curve.cores
    # With too few tiles in flight the memory queues run dry: bandwidth falls as the square root, as for plain products.
    filled = np.sqrt(np.minimum(1.0, waves / curve.saturating_waves))
    weight_bytes = work.active * elements * silicon.element_bytes
    memory_s = weight_bytes / (silicon.memory_bytes_per_s * curve.memory_efficiency * filled)
    matrix_s = 2.0 * elements * (work.rows + work.active * curve.padding_rows) / (silicon.peak_flops * curve.peak_efficiency)
    row_bytes = work.rows * ACTIVATION_BYTES * (2.0 * work.hidden + work.matrices * work.width)
    rows_s = row_bytes / (silicon.memory_bytes_per_s * curve.row_efficiency)
    joined_s = (memory_s**curve.joining + matrix_s**curve.joining) ** (1.0 / curve.joining)
    return np.asarray(curve.launch_s + curve.local_expert_s * work.local + rows_s + joined_s)


# The remainder that a curve leaves unexplained at the measured sizes, where these form a lattice: a smooth field over it.
#
# The field is the mean of a Gaussian process whose covariance is a product over axes and falls by
# nodes, not by sizes: measured sizes lie closer where kernels change. Products over axes make it
# cheap: a lattice of 36,000 nodes takes a tenth of a second (Saatci, "Scalable inference for
# structured Gaussian process models", 2011, chapter 5).

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
