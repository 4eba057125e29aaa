"""Time of a matrix multiplication (m, k) x (k, n) on one device: tiles, waves, split k, caches, memory, launch.

The kernel library cuts the output into tiles of one of several shapes, may split k over several tiles, and runs the
tiles in waves over the device's cores; it mostly picks the fastest cut. A cut's time is the largest of its matrix-unit
time, its cache traffic and its memory traffic. What this leaves unexplained is held by coarse tables of log-ratios.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.compiling import compiled_once_it_pays
from meshwright.costmodels.curves.interpolation import bilinear, trilinear

Floats = NDArray[np.float64]

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
