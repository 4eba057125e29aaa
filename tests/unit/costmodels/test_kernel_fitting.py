"""Fits find constants that made synthetic times; files give back what was written; tables interpolate linearly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.calibration.kernel_file import kernel_calibration, read_calibration, read_fitted, write_fitted
from meshwright.costmodels.calibration.kernels import Fitted, KernelError, VectorKernel
from meshwright.costmodels.curves.attention import decodes_s, prefills_s
from meshwright.costmodels.curves.gemm import GemmCurve, Silicon, bilinear, gemms_s, stencil, trilinear
from meshwright.costmodels.fitting.calibration import fit_decode, fit_gemm, fit_memory, fit_prefill
from meshwright.costmodels.units import DType

H100 = Silicon(peak_flops=989.4e12, memory_bytes_per_s=3.352e12, element_bytes=2.0)


def random_sizes(rows: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    return tuple(np.round(2.0 ** generator.uniform(5, 14, rows)) for _ in range(3))


def test_a_gemm_fit_meets_times_it_has_not_seen_ripple_included():
    truth = kernel_calibration("h100_sxm").gemm[DType.BF16].curve
    m, n, k = random_sizes(700)
    seconds = gemms_s(m, n, k, np.ones_like(m), truth, H100) * np.where(k > 1024, 1.1, 1.0)
    seen, unseen = slice(0, 500), slice(500, 700)
    curve = fit_gemm(m[seen], n[seen], k[seen], seconds[seen], silicon=H100, cores=132)
    ratio = gemms_s(m[unseen], n[unseen], k[unseen], np.ones(200), curve, H100) / seconds[unseen]
    assert np.median(np.abs(ratio - 1)) < 0.05
    assert curve.launch_s == pytest.approx(truth.launch_s, rel=0.3)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_attention_fits_meet_their_own_curves(kind):
    generator = np.random.default_rng(0)
    batch, heads, group = (2.0 ** generator.integers(0, top, 1500) for top in (6, 6, 4))
    heads, ones = heads * group, np.ones(1500)
    tokens = np.round(2.0 ** generator.uniform(5, 14, 1500))
    if kind == "prefill":
        shapes = np.stack([256 * batch * heads * tokens**2, tokens, tokens, batch, heads, heads / group, 128 * ones], 1)
        truth, times, fit = kernel_calibration("h100_sxm").prefill[DType.BF16][128].curve, prefills_s, fit_prefill
    else:
        shapes = np.stack([512 * batch * heads * tokens, ones, tokens, batch, heads, heads / group, 128 * ones], 1)
        truth, times, fit = kernel_calibration("h100_sxm").decode[DType.BF16][128].curve, decodes_s, fit_decode
    seconds = times(shapes, truth, H100)
    curve = fit(shapes[:1200], seconds[:1200], silicon=H100, cores=132)
    assert np.median(np.abs(times(shapes[1200:], curve, H100) / seconds[1200:] - 1)) < 0.03


def test_a_memory_fit_finds_its_constants():
    moved = np.logspace(4, 9, 50)
    curve = fit_memory(moved, 3e-6 + moved / (0.8 * 2e12), bytes_per_s=2e12)
    assert curve.launch_s == pytest.approx(3e-6, rel=1e-3)
    assert curve.efficiency == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("key", ["h100_sxm", "a100_sxm", "b200_sxm"])
def test_a_written_curve_reads_back(key):
    fitted = kernel_calibration(key).gemm[DType.BF16]
    entry = json.loads(json.dumps(write_fitted(fitted)))
    again = read_fitted(entry, GemmCurve)
    m, n, k = random_sizes(200)
    silicon = H100
    times = [gemms_s(m, n, k, np.ones_like(m), curve, silicon) for curve in (fitted.curve, again.curve)]
    np.testing.assert_allclose(times[0], times[1], rtol=0.01)
    assert again.error == fitted.error


def test_a_derived_calibration_scales_its_base_and_says_so():
    base, derived = kernel_calibration("h100_sxm"), kernel_calibration("mi300x")
    curve, source = derived.gemm[DType.BF16], base.gemm[DType.BF16]
    assert curve.derived_from == "h100_sxm"
    assert source.derived_from is None
    np.testing.assert_allclose(curve.curve.tile_efficiency, 0.65 * source.curve.tile_efficiency)
    assert curve.curve.cores == 304
    assert not curve.curve.size_correction.any()
    assert kernel_calibration("h800_sxm").gemm[DType.BF16].curve.size_correction.any()


def test_kinds_without_tables_come_from_the_base():
    gb200 = kernel_calibration("gb200")
    assert gb200.gemm[DType.BF16].derived_from is None
    assert gb200.prefill[DType.BF16][128].derived_from == "b200_sxm"
    assert gb200.memory_bound[VectorKernel.STREAM].derived_from == "h100_sxm"


def test_a_document_of_its_own_is_read():
    constants = {"launch_s": 1e-6, "efficiency": 0.5}
    error = {"median": 0.1, "p95": 0.2, "basis": "made up"}
    memory = {kernel.value: {"curve": constants, "error": error} for kernel in VectorKernel}
    document = {"key": "x", "cores": 4, "host_launch_s": 1e-6, "provenance": {}, "memory_bound": memory}
    document |= {"gemm": {}, "prefill_attention": {}, "decode_attention": {}}
    calibration = read_calibration(document)
    assert calibration.memory_bound[VectorKernel.NORM].curve.efficiency == 0.5
    assert calibration.memory_bound[VectorKernel.NORM].error == KernelError(0.1, 0.2, "made up")


def test_every_shipped_curve_names_its_error_and_provenance():
    for key in ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200"):
        calibration = kernel_calibration(key)
        assert any("sha256" in source and "Apache-2.0" in source for source in calibration.provenance.values())
        fitted: list[Fitted] = [*calibration.gemm.values(), *calibration.memory_bound.values()]
        for curves in (calibration.prefill, calibration.decode):
            fitted += [entry for by_head_dim in curves.values() for entry in by_head_dim.values()]
        assert all(0 < entry.error.median < entry.error.p95 for entry in fitted)


@settings(deadline=None)
@given(st.floats(-2, 5), st.floats(-2, 5), st.floats(-2, 5))
def test_tables_are_exact_on_functions_linear_in_each_coordinate_and_held_outside(x, y, z):
    nodes = np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0]), np.array([0.0, 0.5, 1.0, 3.0])
    grid = np.meshgrid(*nodes, indexing="ij")
    held = [min(max(value, 0.0), axis[-1]) for value, axis in zip((x, y, z), nodes, strict=True)]
    expected = (1 + held[0]) * (2 - held[1]) * (3 + held[2])
    values = (1 + grid[0]) * (2 - grid[1]) * (3 + grid[2])
    assert trilinear(x, y, z, *nodes, values) == pytest.approx(expected)
    assert bilinear(x, y, nodes[0], nodes[1], values[:, :, 0]) == pytest.approx((1 + held[0]) * (2 - held[1]) * 3)
    index, weight = stencil((np.array([x]), np.array([y]), np.array([z])), nodes)
    assert (values.ravel()[index] * weight).sum() == pytest.approx(expected)
    assert weight.sum() == pytest.approx(1.0)


def test_part_filled_query_tiles_may_cost_whole_ones():
    truth = kernel_calibration("h100_sxm").prefill[DType.BF16][128].curve
    truth = truth._replace(correction=np.zeros_like(truth.correction), tile_padding=1.0)
    ones, tokens = np.ones(3), np.array([1.0, 64.0, 128.0])

    def seconds(curve):
        shapes = np.stack([512.0 * 4096 * tokens * 4096, tokens, 4096 * ones, 64 * ones, 64 * ones, ones, 128 * ones], 1)
        return prefills_s(shapes, curve, H100)

    # 4096 keys to each query: whole tiles cost the same however many of their rows are filled.
    assert seconds(truth) == pytest.approx(seconds(truth)[2])
    assert (np.diff(seconds(truth._replace(tile_padding=0.0))) > 0).all()


def test_a_fit_finds_that_part_filled_tiles_cost():
    generator = np.random.default_rng(0)
    ones, batch = np.ones(600), 2.0 ** generator.integers(0, 9, 600)
    tokens = np.round(2.0 ** generator.uniform(0, 12, 600))
    shapes = np.stack([256 * batch * 32 * tokens * (tokens + 1), tokens, tokens, batch, 32 * ones, 8 * ones, 128 * ones], 1)
    truth = kernel_calibration("h100_sxm").prefill[DType.BF16][128].curve
    truth = truth._replace(correction=np.zeros_like(truth.correction), tile_padding=0.4)
    curve = fit_prefill(shapes, prefills_s(shapes, truth, H100), silicon=H100, cores=132)
    assert curve.tile_padding == pytest.approx(0.4, abs=0.1)
