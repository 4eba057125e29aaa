"""From measured times to a calibration's documents: curves of every kind of kernel and collective, each with its error.

Errors are those of cross-validation: rows of one shape are held out together, each once. What was not measured comes from
the device's shipped calibration, where there is one.

The law of times comes from measured steps: of many clusters, and of one after some of its runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize_scalar
from scipy.sparse import csr_matrix, hstack

from meshwright.costmodels.calibration.from_runs import TimeLaw
from meshwright.costmodels.calibration.kernel_file import write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError, MemoryCurve
from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve, decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import TILES, WAVE_TILES, GemmCurve, Silicon, fit_lattice, gemms_s, stencil
from meshwright.costmodels.fitting.board import Board
from meshwright.costmodels.fitting.check import Score, error_quantiles, fold_numbers, held_out_ratios
from meshwright.costmodels.fitting.samples import VECTOR_KINDS, SampleError, SampleKind, Samples
from meshwright.costmodels.serving.latency_law import LatencyLaw
from meshwright.costmodels.shared_error import QUANTILE, learned_error
from meshwright.costmodels.units import DType

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

KERNEL_SCHEMA = "meshwright.kernel-calibration/1"

FEWEST_SHAPES = 10
"""Distinct shapes that a curve is fitted to at least; with fewer there is nothing to hold out."""


OnCurve = Callable[[int, int, str], None]
"""Told before each fit of a curve: rows that are fitted, of how many over all folds, and the curve's name."""


@dataclass(frozen=True, eq=False)
class CurveTask:
    """One curve to fit: its rows, what tells their shapes apart, and how to fit and predict from a part of them."""

    name: str
    place: tuple[str, ...]
    samples: Samples
    shapes: Floats
    fit: Callable[[Rows], Any]
    predict: Callable[[Any, Rows], Floats]


def fit_kernels(samples: Samples, board: Board, *, folds: int, on_curve: OnCurve) -> tuple[dict[str, Any], tuple[Score, ...]]:
    """The kernel calibration document of a board's samples, and the scores of its curves.

    Raises SampleError when a kind has too few shapes, or vector kernels were not measured and the board has no base.
    """
    document: dict[str, Any] = {"schema": KERNEL_SCHEMA, "key": board.key, "cores": board.cores}
    launches = samples.of_kind(SampleKind.LAUNCH)
    if len(launches):
        document["host_launch_s"] = float(f"{np.median(launches.time_s):.4g}")
    if board.base is not None:
        document["base"] = dict(board.base)
    scores = []
    tasks = tuple(_tasks(samples, board))
    done, total = 0, sum(_n_fits(task, folds) * len(task.samples) for task in tasks)
    for task in tasks:
        entry, score = _fitted(_counted(task, folds, done=done, total=total, on_curve=on_curve), folds)
        done += _n_fits(task, folds) * len(task.samples)
        _place(document, task.place, entry)
        scores.append(score)
    backward = samples.of_kind(SampleKind.ATTENTION_BACKWARD)
    if len(backward):
        document["attention_backward"], score = _fitted_backward(samples.of_kind(SampleKind.PREFILL_ATTENTION), backward)
        scores.append(score)
    if board.base is None:
        missing = sorted(kind.value for kind in VECTOR_KINDS if not (samples.kind == kind.value).any())
        if missing:
            raise SampleError(
                "kernels that only move memory were not measured, and no shipped calibration of this device has them",
                given=board.key,
                allowed=f"rows of each of {', '.join(missing)}",
                remedy="measure them ('meshwright calibrate profile' does), or use the key of a device of the catalogue",
            )
    return document, tuple(scores)


def _n_fits(task: CurveTask, folds: int) -> int:
    """Times that a curve is fitted: without each fold, without some weight matrices (products only), and to all."""
    return folds + 1 + (task.place[0] == "gemm")


def _counted(task: CurveTask, folds: int, *, done: int, total: int, on_curve: OnCurve) -> CurveTask:
    """The task, telling of each of its fits."""
    fits = itertools.count()

    def fit(chosen: Rows) -> Any:
        on_curve(done + min(next(fits), _n_fits(task, folds)) * len(task.samples), total, task.name)
        return task.fit(chosen)

    return replace(task, fit=fit)


def _tasks(samples: Samples, board: Board) -> Iterator[CurveTask]:
    for dtype in _dtypes(samples, SampleKind.GEMM):
        yield _gemm_task(_chosen(samples, SampleKind.GEMM, dtype), board, DType(dtype))
    for kind in (SampleKind.PREFILL_ATTENTION, SampleKind.DECODE_ATTENTION):
        for dtype in _dtypes(samples, kind):
            rows = _chosen(samples, kind, dtype)
            for head_dim in np.unique(rows.head_dim):
                yield _attention_task(kind, rows.where(rows.head_dim == head_dim), board, DType(dtype))
    for kind in VECTOR_KINDS:
        rows = samples.of_kind(kind)
        if len(rows):
            yield _memory_task(kind, rows, board)


def _gemm_task(rows: Samples, board: Board, dtype: DType) -> CurveTask:
    silicon = Silicon(_peak(board, dtype), board.memory_bytes_per_s, dtype.size_bytes)
    if (rows.batch != 1).any():
        raise SampleError("batched products are not fitted", given=f"{int((rows.batch != 1).sum())} rows", allowed="batch 1")

    def fit(chosen: Rows) -> Any:
        return fit_gemm(rows.m[chosen], rows.n[chosen], rows.k[chosen], rows.time_s[chosen], silicon=silicon, cores=board.cores)

    def predict(curve: Any, chosen: Rows) -> Floats:
        return np.asarray(gemms_s(rows.m[chosen], rows.n[chosen], rows.k[chosen], rows.batch[chosen], curve, silicon))

    shapes = np.stack([rows.m, rows.n, rows.k], axis=1)
    return CurveTask(f"gemm/{dtype.value}", ("gemm", dtype.value), rows, shapes, fit, predict)


def _attention_task(kind: SampleKind, rows: Samples, board: Board, dtype: DType) -> CurveTask:
    prefill = kind is SampleKind.PREFILL_ATTENTION
    # Decode computes in the model's 16 bits (or what the device has nearest) whatever the format of its cache.
    computed = dtype if prefill or DType.BF16 not in board.peak_flops else DType.BF16
    silicon = Silicon(_peak(board, computed), board.memory_bytes_per_s, dtype.size_bytes)
    shapes = attention_shapes(kind, rows)

    def fit(chosen: Rows) -> Any:
        return (fit_prefill if prefill else fit_decode)(shapes[chosen], rows.time_s[chosen], silicon=silicon, cores=board.cores)

    def predict(curve: Any, chosen: Rows) -> Floats:
        return np.asarray((prefills_s if prefill else decodes_s)(shapes[chosen], curve, silicon))

    head_dim = str(int(rows.head_dim[0]))
    place = (kind.value, dtype.value, head_dim)
    return CurveTask("/".join(place), place, rows, shapes, fit, predict)


def _memory_task(kind: SampleKind, rows: Samples, board: Board) -> CurveTask:
    def fit(chosen: Rows) -> MemoryCurve:
        return fit_memory(rows.moved_bytes[chosen], rows.time_s[chosen], bytes_per_s=board.memory_bytes_per_s)

    def predict(curve: MemoryCurve, chosen: Rows) -> Floats:
        return np.asarray(curve.seconds(rows.moved_bytes[chosen], bytes_per_s=board.memory_bytes_per_s))

    place = ("memory_bound", VECTOR_KINDS[kind].value)
    return CurveTask(kind.value, place, rows, rows.moved_bytes[:, None], fit, predict)


def attention_shapes(kind: SampleKind, rows: Samples) -> Floats:
    """Rows as the fields of AttentionShape; causal pairs of whole sequences, or every cached pair of one new token."""
    causal = rows.q_tokens * (rows.kv_tokens - (rows.q_tokens - 1) / 2)
    pairs = rows.kv_tokens if kind is SampleKind.DECODE_ATTENTION else causal
    flops = 4 * pairs * rows.batch * rows.heads * rows.head_dim
    return np.stack([flops, rows.q_tokens, rows.kv_tokens, rows.batch, rows.heads, rows.kv_heads, rows.head_dim], axis=1)


def _fitted(task: CurveTask, folds: int) -> tuple[dict[str, Any], Score]:
    n_shapes = len(np.unique(task.shapes, axis=0))
    if n_shapes < FEWEST_SHAPES:
        raise SampleError(f"too few shapes of {task.name} to fit", given=n_shapes, allowed=f"at least {FEWEST_SHAPES}")
    seconds = task.samples.time_s
    ratios = held_out_ratios(fold_numbers(task.shapes, folds=folds), seconds, task.fit, task.predict)
    median, p95 = error_quantiles(ratios)
    unseen = _unseen_matrices(task, folds)
    basis = f"{len(seconds)} rows, each held out once in {folds} folds by shape"
    if unseen is not None:
        basis += f"; {unseen[0]:.1%} and {unseen[1]:.1%} on unseen (n, k)"
    entry = write_fitted(Fitted(task.fit(np.ones(len(seconds), bool)), KernelError(median, p95, basis)))
    return entry, Score(task.name, len(seconds), median, p95, unseen)


def _unseen_matrices(task: CurveTask, folds: int) -> tuple[float, float] | None:
    """Error on weight matrices (n, k) of which the fit has seen no row, one fold of them; only products have such."""
    if task.place[0] != "gemm":
        return None
    held_out = fold_numbers(task.shapes[:, 1:], folds=folds) == 0
    if not held_out.any() or held_out.all():
        return None
    return error_quantiles(task.predict(task.fit(~held_out), held_out) / task.samples.time_s[held_out])


def _fitted_backward(forward: Samples, backward: Samples) -> tuple[dict[str, Any], Score]:
    """Backward over forward time of attention, by the shapes that were measured both ways."""
    forward_s = {_shape_key(forward, row): forward.time_s[row] for row in range(len(forward))}
    pairs = [
        backward.time_s[row] / forward_s[_shape_key(backward, row)]
        for row in range(len(backward))
        if _shape_key(backward, row) in forward_s
    ]
    if len(pairs) < FEWEST_SHAPES:
        raise SampleError(
            "too few shapes of attention_backward were measured forward as well",
            given=len(pairs),
            allowed=f"at least {FEWEST_SHAPES}",
        )
    ratios = np.array(pairs)
    # The median of the others predicts each: nothing of a row is in its own prediction.
    predicted = np.array([np.median(np.delete(ratios, row)) for row in range(len(ratios))])
    median, p95 = error_quantiles(predicted / ratios)
    error = {"median": round(median, 4), "p95": round(p95, 4), "basis": f"{len(pairs)} shapes, each left out once"}
    entry = {"ratio": float(f"{np.median(ratios):.4g}"), "error": error}
    return entry, Score("attention_backward", len(pairs), median, p95)


def _shape_key(rows: Samples, row: int) -> tuple[Any, ...]:
    return tuple(
        getattr(rows, name)[row] for name in ("dtype", "batch", "q_tokens", "kv_tokens", "heads", "kv_heads", "head_dim")
    )


def _place(document: dict[str, Any], place: tuple[str, ...], entry: dict[str, Any]) -> None:
    for name in place[:-1]:
        document = document.setdefault(name, {})
    document[place[-1]] = entry


def _dtypes(samples: Samples, kind: SampleKind) -> list[str]:
    return sorted(set(samples.dtype[samples.kind == kind.value].tolist()))


def _chosen(samples: Samples, kind: SampleKind, dtype: str) -> Samples:
    return samples.where((samples.kind == kind.value) & (samples.dtype == dtype))


def _peak(board: Board, dtype: DType) -> float:
    if dtype not in board.peak_flops:
        raise SampleError(
            f"the peak of {board.key} in {dtype.value} is not known",
            allowed=", ".join(sorted(known.value for known in board.peak_flops)) or "formats of measured products",
            remedy="measure products in this format as well",
        )
    return board.peak_flops[dtype]


# From measured and simulated latencies to the law of an engine's errors: of many deployments, and of a few points of one.

COVERED = 0.9
"""The share of points that stay below what is promised with this confidence, by which the spread of each point is set."""

FEWEST_POINTS = 5
"""Points of a deployment whose spread among themselves is told from them."""

OUTSIDE_WITHIN_S = 1e-9
"""How near the search for the time outside of a simulation ends: a token takes milliseconds, of which ten microseconds, scipy's
own tolerance, are as much as a run may tell."""

OUTSIDE_STEPS = 60
"""Constants outside of the simulation that are tried, up to three of their spreads above what was expected."""


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """A measured time of a layout beside the simulated one, in seconds. Points of one layout count as one."""

    layout: str
    simulated_s: float
    measured_s: float

    def log_error(self, outside_s: float) -> float:
        """Logarithm of measured over simulated time with what is outside of it."""
        return math.log(self.measured_s / (self.simulated_s + outside_s))


def fitted_outside_s(deployments: Iterable[Sequence[LatencyPoint]], tried_s: Iterable[float]) -> float:
    """Return the constant outside of the simulation with the least mean error, deployments counting alike."""
    points = [each for each in deployments if each]

    def error(outside_s: float) -> float:
        return fmean(fmean(abs(point.log_error(outside_s)) for point in each) for each in points)

    return min(tried_s, key=error)


def fitted_spreads(deployments: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Return the shared and the own spread of logarithms of measured over predicted times, deployments counting alike.

    Shared is the root mean square of their means. The own one makes COVERED of all points stay below what is promised with
    that confidence, and is no less than the median spread inside a deployment.
    """
    errors = [tuple(each) for each in deployments if each]
    shared = math.sqrt(fmean(fmean(each) ** 2 for each in errors))
    inside = [pstdev(each) for each in errors if len(each) >= FEWEST_POINTS]
    whole = quantile(errors, COVERED) / NormalDist().inv_cdf(COVERED)
    own = math.sqrt(max(0.0, whole**2 - shared**2)) if whole > 0.0 else 0.0
    return shared, max(own, median(inside) if inside else 0.0)


def quantile(errors: Sequence[Sequence[float]], share: float) -> float:
    """Return the least error that a share of points has not more than, deployments counting alike."""
    weighed = sorted((error, 1.0 / (len(errors) * len(each))) for each in errors for error in each)
    below = 0.0
    for error, weight in weighed:
        below += weight
        if below >= share - 1e-12:
            return error
    return weighed[-1][0]


def learned_latency(law: LatencyLaw, points: Sequence[LatencyPoint], *, outside_sigma_s: float) -> LatencyLaw:
    """Return the law after points of one's own: what is outside of the simulation, and the shift that all points share.

    The constant is the most likely one, normal around the law's and not below 0, with the shift summed up; the shift follows by
    normal regression. So after one point what is predicted of it lies between what was and what was measured. A layout counts
    once, by the mean of its points.
    """
    if not points:
        return law
    by_layout: dict[str, list[LatencyPoint]] = {}
    for point in points:
        by_layout.setdefault(point.layout, []).append(point)
    most_s = law.outside_s + 3.0 * outside_sigma_s
    tried = sorted({law.outside_s, *(most_s * step / OUTSIDE_STEPS for step in range(OUTSIDE_STEPS + 1))})
    nearest = max(range(len(tried)), key=lambda at: _log_chance(law, by_layout, tried[at], outside_sigma_s))
    # Between its neighbours: rounded to the grid, one point alone could take more than all of its error.
    around = (tried[max(0, nearest - 1)], tried[min(len(tried) - 1, nearest + 1)])
    found = minimize_scalar(
        lambda each: -_log_chance(law, by_layout, each, outside_sigma_s),
        bounds=around,
        method="bounded",
        options={"xatol": OUTSIDE_WITHIN_S},
    )
    outside_s = max((tried[nearest], float(found.x)), key=lambda each: _log_chance(law, by_layout, each, outside_sigma_s))
    errors = _errors(by_layout, outside_s)
    weight = 1.0 / law.shared_sigma**2 + len(errors) / law.own_sigma**2
    shift = math.fsum(errors) / law.own_sigma**2 / weight
    scale = law.scale * math.exp(shift)
    return replace(law, outside_s=outside_s, scale=scale, shared_sigma=math.sqrt(1.0 / weight))


def _errors(by_layout: Mapping[str, Sequence[LatencyPoint]], outside_s: float) -> list[float]:
    return [fmean(point.log_error(outside_s) for point in each) for each in by_layout.values()]


def _log_chance(
    law: LatencyLaw, by_layout: Mapping[str, Sequence[LatencyPoint]], outside_s: float, outside_sigma_s: float
) -> float:
    """Logarithm of the chance of a constant and of the points under it, all shifts summed up; without a constant."""
    errors = _errors(by_layout, outside_s)
    shared, own, n = law.shared_sigma**2, law.own_sigma**2, len(errors)
    # Errors are jointly normal, own on the diagonal and shared everywhere (Sherman and Morrison's inverse).
    squares = math.fsum(error**2 for error in errors) - shared * math.fsum(errors) ** 2 / (own + n * shared)
    return -0.5 * (squares / own + ((outside_s - law.outside_s) / outside_sigma_s) ** 2)


OWN_SCATTER = 0.845
"""Spread of the logarithm of ``own_sigma`` from source to source: of 28 sources and devices with eight steps or more, less what
their number leaves uncertain (docs/decisions-accuracy.md)."""


def fitted_time(clusters: Iterable[Sequence[float]]) -> TimeLaw:
    """Return the law before any run, from logarithms of measured over predicted steps of clusters, which count alike.

    Shared is the root mean square of their means. The own spread is the one whose QUANTILE as many runs stay below, each seen
    from the mean of its cluster. The median stays what was predicted: what clusters have in common is for the rates to tell.
    """
    errors = [tuple(each) for each in clusters if each]
    means = [fmean(each) for each in errors]
    shared = math.sqrt(fmean(mean**2 for mean in means))
    inside = [[error - mean for error in each] for each, mean in zip(errors, means, strict=True) if len(each) > 1]
    own = quantile(inside, QUANTILE) / NormalDist().inv_cdf(QUANTILE) if inside else 0.0
    return TimeLaw(scale=1.0, shared_sigma=shared, own_sigma=max(0.0, own))


def learned_time(prior: TimeLaw, log_ratios: Mapping[str, Sequence[float]], *, scatter: float = OWN_SCATTER) -> TimeLaw:
    """Return the law after runs: by layout, logarithms of measured over predicted steps.

    They tell the shared shift and how far layouts scatter around it (`costmodels.shared_error`). Runs of one layout share what
    it has of its own, so they count as one of their mean: measuring a layout again says little of the next one.
    """
    means = [fmean(ratios) for ratios in log_ratios.values() if ratios]
    if not means:
        return prior
    told = learned_error(prior.shared_sigma, prior.own_sigma, scatter=scatter, seen=means)
    runs = sum(map(len, log_ratios.values()))
    scale = prior.scale * math.exp(told.shift)
    return replace(prior, scale=scale, shared_sigma=told.shared_sigma, own_sigma=told.own_sigma, runs=runs)


# Fits of kernel curves to measured times: physical constants first, then a coarse table of what they leave.
#
# Constants are fitted by robust least squares on log-ratios, within bounds that keep each one physical. Tables are fitted
# by ridge-regularised, iteratively reweighted least squares (towards least absolute error) on the nodes' stencils.

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
