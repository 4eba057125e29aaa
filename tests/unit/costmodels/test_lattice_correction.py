"""The field over measured sizes follows its rows, fills what they leave out, and is none where they form no lattice."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.calibration.kernel_file import kernel_calibration, read_fitted, write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError
from meshwright.costmodels.curves.gemm import Floats, Silicon, fit_lattice, gemms_s
from meshwright.costmodels.units import DType

AXIS = 2.0 ** np.arange(4, 12)


def lattice_rows() -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """All crossings, and a smooth log-ratio at each."""
    m, n, k = (grid.reshape(-1) for grid in np.meshgrid(AXIS, AXIS, AXIS, indexing="ij"))
    return (m, n, k), 0.1 * np.sin(np.log2(m) / 3) + 0.05 * np.cos(np.log2(n) / 4)


def test_the_field_predicts_rows_that_it_has_not_seen() -> None:
    sizes, residual = lattice_rows()
    seen = np.random.default_rng(3).random(len(residual)) < 0.8
    found = fit_lattice((sizes[0][seen], sizes[1][seen], sizes[2][seen]), residual[seen])
    assert found is not None
    error = found.field.reshape(-1)[~seen] - residual[~seen]
    assert np.abs(error).mean() < 0.1 * np.abs(residual).mean()


def test_a_row_far_off_moves_its_neighbours_little() -> None:
    sizes, residual = lattice_rows()
    plain, struck = fit_lattice(sizes, residual), fit_lattice(sizes, np.where(np.arange(len(residual)) == 219, 2.0, residual))
    assert plain is not None
    assert struck is not None
    moved = np.abs(struck.field - plain.field).reshape(-1)
    assert moved[219 + 1] < 0.1
    assert np.median(moved) < 1e-3


def test_scattered_sizes_are_no_lattice() -> None:
    sizes = np.random.default_rng(1).random((3, 50))
    assert fit_lattice((sizes[0], sizes[1], sizes[2]), np.zeros(50)) is None
    assert fit_lattice((AXIS, AXIS, np.ones(8)), np.zeros(8)) is None


def test_a_correction_at_measured_sizes_is_stored_and_applied() -> None:
    shipped = kernel_calibration("a100_sxm").gemm[DType.BF16].curve
    axis = np.log2([16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 3840.0, 3841.0])
    field = np.full((8, 8, 8), np.log(1.25))
    curve = shipped._replace(
        log2_measured_rows=axis, log2_measured_columns=axis, log2_measured_k=axis, measured_correction=field
    )
    stored = read_fitted(write_fitted(Fitted(curve, KernelError(0.0, 0.0, ""))), type(curve)).curve
    assert (np.diff(stored.log2_measured_rows) > 0).all()
    m, n, k, batch = (np.array([x]) for x in (128.0, 256.0, 512.0, 1.0))
    silicon = Silicon(312e12, 2e12, 2.0)
    assert gemms_s(m, n, k, batch, stored, silicon) / gemms_s(m, n, k, batch, shipped, silicon) == pytest.approx(1.25, rel=0.01)
