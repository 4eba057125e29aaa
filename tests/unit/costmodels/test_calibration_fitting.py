"""Fits find the constants that made the measurements, and score themselves on rows that they have not seen."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.calibration.collectives import Collective, read_collectives
from meshwright.costmodels.calibration.kernel_file import kernel_calibration, read_calibration
from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.fitting.board import board_of
from meshwright.costmodels.fitting.calibration import fit_kernels, fit_memory
from meshwright.costmodels.fitting.check import fold_numbers, held_out_ratios
from meshwright.costmodels.fitting.collectives import fit_collectives
from meshwright.costmodels.fitting.samples import SampleError, SampleKind, Samples, samples_of
from meshwright.costmodels.network.collectives import curve_s
from meshwright.costmodels.units import DType
from tests.unit.costmodels.measurements import (
    LINK_BYTES_PER_S,
    all_reduce_s,
    collective_rows,
    product_rows,
    row,
    stream_s,
    toy_samples,
    vector_rows,
)


def quiet(done: int, total: int, name: str) -> None:
    pass


def test_vector_kernels_get_back_their_constants() -> None:
    samples = samples_of([*vector_rows(), *product_rows()])
    board = board_of(samples, key="toy", node=None, cores=1)
    assert board.peak_flops[DType.FP32] == pytest.approx(5e11, rel=0.02)
    document, scores = fit_kernels(samples, board, folds=4, on_curve=quiet)
    curve = read_calibration(document | {"provenance": {}}).memory_bound[VectorKernel.STREAM].curve
    times = [curve.launch_s + moved / (curve.efficiency * board.memory_bytes_per_s) for moved in (2e4, 3e6, 5e8)]
    assert times == pytest.approx([stream_s(moved) for moved in (2e4, 3e6, 5e8)], rel=3e-3)
    assert {score.name for score in scores} == {"gemm/fp32", "stream", "norm", "activation", "gather"}
    assert next(score for score in scores if score.name == "stream").p95 < 5e-3


def test_progress_is_told_in_rows_of_all_fits() -> None:
    samples = samples_of([*vector_rows(), *product_rows()])
    told: list[tuple[int, int, str]] = []
    board = board_of(samples, key="toy", node=None, cores=1)
    fit_kernels(samples, board, folds=3, on_curve=lambda done, total, name: told.append((done, total, name)))
    done = [step[0] for step in told]
    assert done == sorted(set(done))
    assert (done[0], len({step[1] for step in told})) == (0, 1)
    # Three folds, one part of the weight matrices, and all.
    assert [step[2] for step in told].count("gemm/fp32") == 5
    assert told[-1][0] + len(samples.of_kind(SampleKind.GATHER)) == told[-1][1]


def test_collectives_get_back_their_times() -> None:
    samples = samples_of([*vector_rows(), *product_rows(), *collective_rows()])
    board = board_of(samples, key="toy", node=None, cores=1)
    document, score = fit_collectives(samples, board)
    assert score is not None
    assert score.p95 < 0.01
    curves = read_collectives(document | {"provenance": {}}).curves[Collective.ALL_REDUCE]
    assert set(curves) == {2, 4}
    sizes = np.array([3e3, 5e5, 9e7])
    for ranks, curve in curves.items():
        sent = 2 * (ranks - 1) / ranks * sizes
        assert curve_s(curve, sent, board.link_bytes_per_s) == pytest.approx(all_reduce_s(sizes, ranks), rel=0.01)  # type: ignore[arg-type]
    assert board.link_bytes_per_s < LINK_BYTES_PER_S


def test_rows_of_one_shape_are_held_out_together() -> None:
    keys = np.array([[1.0, 2.0], [3.0, 4.0]] * 20 + [[float(i), 0.0] for i in range(30)])
    folds = fold_numbers(keys, folds=5)
    assert len(set(folds[0:40:2])) == len(set(folds[1:40:2])) == 1
    assert set(folds.tolist()) == {0, 1, 2, 3, 4}
    assert (folds == fold_numbers(keys, folds=5)).all()


def test_no_row_is_predicted_by_a_fit_that_saw_it() -> None:
    seconds = np.arange(1.0, 21.0)
    folds = fold_numbers(seconds[:, None], folds=4)
    seen: list[set[float]] = []

    def predict(fitted: set[float], rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        assert not fitted & set(seconds[rows].tolist())
        seen.append(set(seconds[rows].tolist()))
        return 2 * seconds[rows]

    ratios = held_out_ratios(folds, seconds, lambda rows: set(seconds[rows].tolist()), predict)
    assert (ratios == 2.0).all()
    assert sorted(value for part in seen for value in part) == seconds.tolist()


def test_a_device_of_the_catalogue_keeps_its_shipped_curves_for_the_rest() -> None:
    rows = [{**one, "device": "h100_sxm"} for one in vector_rows() if one["kind"] == "stream"]
    samples = samples_of(rows)
    board = board_of(samples, key="h100_sxm", node=None, cores=1)
    document, _ = fit_kernels(samples, board, folds=2, on_curve=quiet)
    mine, shipped = read_calibration(document | {"provenance": {}}), kernel_calibration("h100_sxm")
    assert repr(mine.gemm[DType.BF16].curve) == repr(shipped.gemm[DType.BF16].curve)
    assert mine.gemm[DType.BF16].error == shipped.gemm[DType.BF16].error
    assert mine.memory_bound[VectorKernel.NORM].curve == shipped.memory_bound[VectorKernel.NORM].curve
    assert mine.memory_bound[VectorKernel.STREAM].curve != shipped.memory_bound[VectorKernel.STREAM].curve
    assert mine.host_launch_s == shipped.host_launch_s


def test_attention_backward_is_a_ratio_to_forward() -> None:
    sizes = [
        {"batch": b, "q_tokens": t, "kv_tokens": t, "heads": 4, "kv_heads": 4, "head_dim": 64}
        for b in (1, 2, 3)
        for t in (64, 128, 256, 512)
    ]
    forward = [row(SampleKind.PREFILL_ATTENTION, 1e-5 * one["batch"] * one["q_tokens"], **one) for one in sizes]
    backward = [row(SampleKind.ATTENTION_BACKWARD, 3e-5 * one["batch"] * one["q_tokens"], **one) for one in sizes]
    samples = samples_of([*vector_rows(), *product_rows(), *forward, *backward])
    board = board_of(samples, key="toy", node=None, cores=1)
    document, _ = fit_kernels(samples, board, folds=2, on_curve=quiet)
    assert read_calibration(document | {"provenance": {}}).attention_backward.curve == pytest.approx(3.0, rel=1e-3)


def without(kind: SampleKind) -> Samples:
    samples = toy_samples()
    return samples.where(samples.kind != kind.value)


def test_what_can_not_be_fitted_is_refused() -> None:
    with pytest.raises(SampleError, match="would tell its peak"):
        board_of(without(SampleKind.GEMM), key="toy", node=None, cores=1)
    samples = without(SampleKind.NORM)
    with pytest.raises(SampleError, match="norm"):
        fit_kernels(samples, board_of(samples, key="toy", node=None, cores=1), folds=2, on_curve=quiet)
    few = samples_of([*vector_rows(), *product_rows()[:6]])
    with pytest.raises(SampleError, match="too few shapes of gemm"):
        fit_kernels(few, board_of(few, key="toy", node=None, cores=1), folds=2, on_curve=quiet)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "gem"}, "unknown kind"),
        ({"dtype": "fp7"}, "unknown dtype"),
        ({"time_s": 0.0}, "time_s"),
        ({"time_s": float("nan")}, "time_s"),
        ({"moved_bytes": -1}, "moved_bytes"),
        ({"device": ""}, "no device"),
    ],
)
def test_bad_rows_are_named(change: dict[str, object], said: str) -> None:
    rows = vector_rows()[:3]
    rows[1] |= change
    with pytest.raises(SampleError, match=said) as raised:
        samples_of(rows)
    assert "row 2" in str(raised.value)


def test_a_cache_is_found_where_there_is_one_and_only_there() -> None:
    moved = 2.0 ** np.arange(12, 28)
    plain = 3e-6 + moved / 8e10
    assert fit_memory(moved, plain, bytes_per_s=1e11).cache_bytes == 0.0
    cached = np.minimum(moved, 2e6)
    seconds = 3e-6 + cached / 9e10 + (moved - cached) / 1e10
    curve = fit_memory(moved, seconds, bytes_per_s=1e11)
    assert curve.cache_bytes == pytest.approx(2e6, rel=0.05)
    assert curve.seconds(moved, bytes_per_s=1e11) == pytest.approx(seconds, rel=0.02)
    assert (np.diff(curve.seconds(moved, bytes_per_s=1e11)) > 0).all()
