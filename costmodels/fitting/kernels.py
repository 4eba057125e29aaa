"""Fits of kernel curves to measured times: physical constants first, then a coarse table of what they leave.

Constants are fitted by robust least squares on log-ratios, within bounds that keep each one physical. Tables are fitted
by ridge-regularised, iteratively reweighted least squares (towards least absolute error) on the nodes' stencils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix, hstack

from meshwright.costmodels.calibration.kernels import MemoryCurve
from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve, decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import TILES, WAVE_TILES, GemmCurve, Silicon, fit_lattice, gemms_s, stencil

Floats = NDArray[np.float64]

ROW_NODES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)
SIDE_NODES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
# Dense where the number of waves is small and a part-filled one shows.
LOG2_WAVE_NODES = (
    -8, -6, -4, -3, -2, -1.5, -1, -0.75, -0.5, -0.35, -0.2, -0.1, -0.03, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
    0.97, 1.03, 1.1, 1.2, 1.3, 1.4, 1.5, 1.55, 1.62, 1.7, 1.8, 1.9, 1.97, 2.03, 2.1, 2.2, 2.35, 2.5, 2.7, 2.9, 3.1, 3.4, 3.7, 4,
    4.5, 5, 6, 8, 12,
)  # fmt: skip
WAVE_K_NODES = (64, 256, 1024, 4096, 16384)
QUERY_NODES = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
KEY_NODES = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LOG2_HEAD_NODES = tuple(range(15))
LOG2_GROUP_NODES = tuple(range(7))

RIDGE = 0.3
"""Damping of a table's nodes, in the units of one measured row: a node that few rows see stays near no correction."""

REWEIGHTINGS = 5
"""Rounds in which rows far off lose weight."""

SOLVED_TO = 1e-4
"""Share of the right-hand side that a table's normal equations are solved to; a table is stored to half a per cent."""

MOST_SOLVER_STEPS = 200
"""Steps of conjugate gradients at most; they take 30 to 100."""

ROBUST_SCALE = 0.05
"""Log-ratio beyond which a row counts as an outlier in the fit of the constants."""

LEAST_BANDWIDTH_SHARE = 0.02
"""Bound of the share of bandwidth: on a CPU the reference is a cache's rate, tens of times its memory's."""

CACHE_SHOWS = 0.7
"""Mean log-error with a cache over that without, below which the cache is believed."""

FEWEST_SIZES_FOR_A_CACHE = 8
"""Sizes that two more constants need."""

ROWS_FOR_CONSTANTS = 4000
"""Rows that the constants are fitted to; more change no constant by more than a few per cent."""

MOST_STEPS = 40
"""Steps of a fit of constants at most."""

COARSE = 8
"""Every so many of them say where the constants of products, of which there are 18, are about."""

FINE_STEPS = 6
"""Steps from there to the fit to all."""


def fit_gemm(m: Floats, n: Floats, k: Floats, seconds: Floats, *, silicon: Silicon, cores: int, seed: int = 0) -> GemmCurve:
    """A curve for measured products (m, k) x (k, n); arrays of one length."""
    ones = np.ones_like(m)
    nothing = GemmCurve(
        cores=float(cores), launch_s=0.0, tile_efficiency=np.ones(len(TILES)), ramp_k=0.0, wave_quantisation=0.0, split_s=0.0,
        cache_bytes_per_s=1.0, memory_efficiency=1.0, saturating_waves=1.0,
        log2_rows=np.log2(ROW_NODES), log2_columns=np.log2(SIDE_NODES), log2_k=np.log2(SIDE_NODES),
        size_correction=np.zeros((len(ROW_NODES), len(SIDE_NODES), len(SIDE_NODES))),
        log2_waves=np.array(LOG2_WAVE_NODES, float), log2_wave_k=np.log2(WAVE_K_NODES),
        wave_correction=np.zeros((len(WAVE_TILES), len(LOG2_WAVE_NODES), len(WAVE_K_NODES))),
    )  # fmt: skip

    def curve_of(x: Floats) -> GemmCurve:
        return nothing._replace(
            launch_s=x[0], ramp_k=x[1], wave_quantisation=x[2], split_s=x[3], cache_bytes_per_s=x[4], memory_efficiency=x[5],
            saturating_waves=x[6], tile_efficiency=x[7:],
        )  # fmt: skip

    tiles = [(0.02, 0.8 * np.sqrt(min(1.0, rows * columns / 32768)), 1.0) for rows, columns in TILES]
    bounds = [
        (2e-7, 2.5e-6, 3e-5), (1.0, 100.0, 2000.0), (1e-3, 0.8, 1.0), (1e-7, 2e-6, 2e-5), (1e12, 1.5e13, 6e13),
        (0.2, 0.8, 1.0), (0.01, 0.3, 4.0), *tiles,
    ]  # fmt: skip

    def constants(rows: NDArray[np.int64], around: Sequence[tuple[float, float, float]], most_steps: int) -> Floats:
        def predicted_s(x: Floats) -> Floats:
            return np.asarray(gemms_s(m[rows], n[rows], k[rows], ones[rows], curve_of(x), silicon))

        return fit_constants(predicted_s, seconds[rows], around, most_steps=most_steps)

    chosen = sample(len(m), seed)
    about = constants(chosen[::COARSE], bounds, MOST_STEPS)
    x = constants(chosen, [(low, start, high) for (low, _, high), start in zip(bounds, about, strict=True)], FINE_STEPS)
    curve = curve_of(x)
    residual = np.log(seconds / gemms_s(m, n, k, ones, curve, silicon))
    rows = np.where(m > 64, np.ceil(m / 64) * 64, np.where(m > 16, np.ceil(m / 16) * 16, m))
    designs = [_design((np.log2(rows), np.log2(n), np.log2(k)), (curve.log2_rows, curve.log2_columns, curve.log2_k))]
    for tile_rows, tile_columns in WAVE_TILES:
        waves = np.ceil(m / tile_rows) * np.ceil(n / tile_columns) / cores
        designs.append(_design((np.log2(waves), np.log2(k)), (curve.log2_waves, curve.log2_wave_k)))
    size, *by_waves = _fit_tables(designs, residual)
    curve = curve._replace(
        size_correction=size.reshape(curve.size_correction.shape),
        wave_correction=np.concatenate(by_waves).reshape(curve.wave_correction.shape),
    )
    lattice = fit_lattice((m, n, k), np.log(seconds / gemms_s(m, n, k, ones, curve, silicon)))
    if lattice is None:
        return curve
    return curve._replace(
        log2_measured_rows=np.log2(lattice.axes[0]), log2_measured_columns=np.log2(lattice.axes[1]),
        log2_measured_k=np.log2(lattice.axes[2]), measured_correction=lattice.field,
    )  # fmt: skip


def fit_prefill(shapes: Floats, seconds: Floats, *, silicon: Silicon, cores: int, seed: int = 0) -> PrefillCurve:
    """A curve for measured forward attention; columns of ``shapes`` are the fields of AttentionShape."""
    nothing = PrefillCurve(
        cores=float(cores), launch_s=0.0, peak_efficiency=1.0, ramp_keys=0.0, wave_quantisation=0.0, memory_efficiency=1.0,
        log2_queries=np.log2(QUERY_NODES), log2_heads=np.array(LOG2_HEAD_NODES, float),
        log2_group=np.array(LOG2_GROUP_NODES, float),
        correction=np.zeros((len(QUERY_NODES), len(LOG2_HEAD_NODES), len(LOG2_GROUP_NODES))),
    )  # fmt: skip

    def curve_of(x: Floats) -> PrefillCurve:
        return nothing._replace(
            launch_s=x[0], peak_efficiency=x[1], ramp_keys=x[2], wave_quantisation=x[3], memory_efficiency=x[4],
            tile_padding=x[5],
        )  # fmt: skip

    bounds = [(1e-6, 1e-5, 4e-5), (0.05, 0.6, 1.0), (1.0, 200.0, 5000.0), (1e-3, 0.5, 1.0), (0.1, 0.6, 1.0), (1e-3, 0.5, 1.0)]
    chosen = sample(len(seconds), seed)
    curve = curve_of(fit_constants(lambda x: prefills_s(shapes[chosen], curve_of(x), silicon), seconds[chosen], bounds))
    residual = np.log(seconds / prefills_s(shapes, curve, silicon))
    points = (np.log2(shapes[:, 1]), np.log2(shapes[:, 3] * shapes[:, 4]), np.log2(shapes[:, 4] / shapes[:, 5]))
    (table,) = _fit_tables([_design(points, (curve.log2_queries, curve.log2_heads, curve.log2_group))], residual)
    return curve._replace(correction=table.reshape(curve.correction.shape))


def fit_decode(shapes: Floats, seconds: Floats, *, silicon: Silicon, cores: int, seed: int = 0) -> DecodeCurve:
    """A curve for measured decode attention; columns of ``shapes`` are the fields of AttentionShape."""
    nothing = DecodeCurve(
        cores=float(cores), launch_s=0.0, memory_efficiency=1.0, saturating_waves=1.0, peak_efficiency=1.0, head_s=0.0,
        log2_keys=np.log2(KEY_NODES), log2_heads=np.array(LOG2_HEAD_NODES, float), log2_group=np.array(LOG2_GROUP_NODES, float),
        correction=np.zeros((len(KEY_NODES), len(LOG2_HEAD_NODES), len(LOG2_GROUP_NODES))),
    )  # fmt: skip

    def curve_of(x: Floats) -> DecodeCurve:
        return nothing._replace(launch_s=x[0], memory_efficiency=x[1], saturating_waves=x[2], peak_efficiency=x[3], head_s=x[4])

    bounds = [(1e-6, 1e-5, 4e-5), (0.1, 0.7, 1.0), (0.01, 0.5, 10.0), (1e-3, 0.1, 1.0), (1e-11, 5e-10, 2e-8)]
    chosen = sample(len(seconds), seed)
    curve = curve_of(fit_constants(lambda x: decodes_s(shapes[chosen], curve_of(x), silicon), seconds[chosen], bounds))
    residual = np.log(seconds / decodes_s(shapes, curve, silicon))
    points = (np.log2(shapes[:, 2]), np.log2(shapes[:, 3] * shapes[:, 5]), np.log2(shapes[:, 4] / shapes[:, 5]))
    (table,) = _fit_tables([_design(points, (curve.log2_keys, curve.log2_heads, curve.log2_group))], residual)
    return curve._replace(correction=table.reshape(curve.correction.shape))


def fit_memory(moved_bytes: Floats, seconds: Floats, *, bytes_per_s: float) -> MemoryCurve:
    """Fixed time and bandwidth share of kernels that only move memory; and those of a cache, where it explains the times
    markedly better.
    """
    bounds = [(2e-7, 2e-6, 2e-5), (LEAST_BANDWIDTH_SHARE, 0.7, 1.0)]
    plain = MemoryCurve(*_floats(fit_constants(lambda x: _moved_s(x, moved_bytes, bytes_per_s), seconds, bounds)))
    if len(np.unique(moved_bytes)) < FEWEST_SIZES_FOR_A_CACHE:
        return plain
    start = float(np.median(moved_bytes))
    bounds = [*bounds, (float(moved_bytes.min()), start, float(moved_bytes.max())), (LEAST_BANDWIDTH_SHARE, 0.9, 1.0)]
    cached = MemoryCurve(*_floats(fit_constants(lambda x: _moved_s(x, moved_bytes, bytes_per_s), seconds, bounds)))
    errors = [
        np.mean(np.abs(np.log(curve.seconds(moved_bytes, bytes_per_s=bytes_per_s) / seconds))) for curve in (plain, cached)
    ]
    better = cached.cached_efficiency > cached.efficiency and errors[1] < CACHE_SHOWS * errors[0]
    return cached if better else plain


def _moved_s(constants: Floats, moved_bytes: Floats, bytes_per_s: float) -> Floats:
    return np.asarray(MemoryCurve(*_floats(constants)).seconds(moved_bytes, bytes_per_s=bytes_per_s))


def _floats(constants: Floats) -> list[float]:
    return [float(x) for x in constants]


def sample(rows: int, seed: int) -> NDArray[np.int64]:
    """Indices of the rows that constants are fitted to."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[:ROWS_FOR_CONSTANTS])


def fit_constants(
    predict: Callable[[Floats], Floats],
    seconds: Floats,
    bounds: Sequence[tuple[float, float, float]],
    *,
    most_steps: int = MOST_STEPS,
) -> Floats:
    """Constants within (low, start, high) that make predicted times fit, searched on a log scale."""
    low, start, high = np.log(np.array(bounds).T)

    def log_ratios(x: Floats) -> Floats:
        return np.asarray(np.log(predict(np.exp(x)) / seconds))

    found = least_squares(log_ratios, start, bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, max_nfev=most_steps)
    return np.asarray(np.exp(found.x))


def fit_table(points: tuple[Floats, ...], nodes: tuple[Floats, ...], residual: Floats) -> Floats:
    """Node values, flat, of one table whose interpolation at ``points`` fits the residual."""
    return _fit_tables([_design(points, nodes)], residual)[0]


def _design(points: tuple[Floats, ...], nodes: tuple[Floats, ...]) -> csr_matrix:
    index, weight = stencil(points, nodes)
    rows = np.repeat(np.arange(index.shape[0]), index.shape[1])
    shape = (index.shape[0], int(np.prod([len(axis) for axis in nodes])))
    return csr_matrix((weight.ravel(), (rows, index.ravel())), shape=shape)


def _fit_tables(designs: Sequence[csr_matrix], residual: Floats) -> list[Floats]:
    """Node values of tables whose interpolated sum fits the residual, one array for each design."""
    design = hstack(designs).tocsr()
    transposed = design.T.tocsr()
    squares = transposed.multiply(transposed)
    weights = np.ones(len(residual))
    values = np.zeros(design.shape[1])
    for _ in range(REWEIGHTINGS):
        diagonal = squares @ weights + RIDGE**2
        values = _weighted_ridge(design, transposed, weights, residual, values, diagonal)
        weights = 1.0 / np.maximum(np.abs(residual - design @ values) / 0.02, 1.0)
    return np.split(values, np.cumsum([part.shape[1] for part in designs])[:-1])


def _weighted_ridge(
    design: csr_matrix, transposed: csr_matrix, weights: Floats, residual: Floats, start: Floats, diagonal: Floats
) -> Floats:
    """Node values of least weighted squares and ridge, by conjugate gradients on the normal equations from ``start`` on.

    Preconditioned by their diagonal, for some nodes have a thousand rows and some have one (Saad, "Iterative Methods for Sparse
    Linear Systems", algorithm 9.1).
    """
    ridge = RIDGE**2
    inverse = 1.0 / diagonal
    wanted = transposed @ (weights * residual)
    values = start
    left = wanted - (transposed @ (weights * (design @ values)) + ridge * values)
    scaled = inverse * left
    direction, size = scaled, float(left @ scaled)
    enough = SOLVED_TO**2 * float(wanted @ (inverse * wanted))
    for _ in range(MOST_SOLVER_STEPS):
        if size <= enough:
            break
        image = transposed @ (weights * (design @ direction)) + ridge * direction
        step = size / float(direction @ image)
        values, left = values + step * direction, left - step * image
        scaled = inverse * left
        size, before = float(left @ scaled), size
        direction = scaled + size / before * direction
    return values
