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

from meshwright.costmodels.calibration.from_runs import TimeLaw
from meshwright.costmodels.calibration.kernel_file import write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError, MemoryCurve
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import Silicon, gemms_s
from meshwright.costmodels.fitting.board import Board
from meshwright.costmodels.fitting.check import Score, error_quantiles, fold_numbers, held_out_ratios
from meshwright.costmodels.fitting.kernels import fit_decode, fit_gemm, fit_memory, fit_prefill
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
    normal regression. A layout counts once, by the mean of its points.
    """
    if not points:
        return law
    by_layout: dict[str, list[LatencyPoint]] = {}
    for point in points:
        by_layout.setdefault(point.layout, []).append(point)
    most_s = law.outside_s + 3.0 * outside_sigma_s
    tried = sorted({law.outside_s, *(most_s * step / OUTSIDE_STEPS for step in range(OUTSIDE_STEPS + 1))})
    outside_s = max(tried, key=lambda each: _log_chance(law, by_layout, each, outside_sigma_s))
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
