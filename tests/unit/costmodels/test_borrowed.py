"""Borrowed calibrations: the nearest measured device's curves, at the rates and with the errors of leaving devices out."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from benchmarks.borrowed_calibrations import KINDS, measure
from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.kernel_file import (
    ACROSS_GENERATIONS,
    ATTENTION_SHARE,
    MATRIX_SHARE,
    WITHIN_GENERATION,
    borrowed_name,
    borrowed_source,
    differs_from_its_calibration,
    errors_of,
    key_of_device,
    nearest_measured,
)
from meshwright.costmodels.calibration.kernels import KernelKind, VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import device, devices
from meshwright.costmodels.kernels.compute import kernel_error, matmul_s
from meshwright.costmodels.units import DType


def test_shares_and_errors_are_those_of_leaving_devices_out():
    measured = measure()
    assert measured.shares["matrix"] == pytest.approx(MATRIX_SHARE, abs=0.001)
    assert measured.shares["attention"] == pytest.approx(ATTENTION_SHARE, abs=0.001)
    for found, shipped in ((measured.within, WITHIN_GENERATION), (measured.across, ACROSS_GENERATIONS)):
        assert {kind: found[kind] for kind in KINDS} == {kind: asdict(shipped)[kind] for kind in KINDS}


def test_name_holds_key_and_source():
    name = borrowed_name("t4", "a100_sxm")
    assert (calibration_key(name), borrowed_source(name)) == ("t4", "a100_sxm")
    assert borrowed_source("a100_sxm") is None
    assert key_of_device("NVIDIA RTX 4070 (laptop)") == "nvidia_rtx_4070_laptop"


def test_nearest_is_by_peak_and_bandwidth():
    assert nearest_measured(device("t4")) == "a100_sxm"
    assert nearest_measured(device("tpu-v7")) == "b200_sxm"
    assert nearest_measured(device("h100")) == "h100_sxm"


def test_only_a_sister_board_of_the_catalogue_has_the_errors_within_a_generation():
    assert errors_of(device("gh200").calibration) is WITHIN_GENERATION
    assert errors_of(device("l40s").calibration) is ACROSS_GENERATIONS
    assert errors_of("own_board~h100_sxm") is ACROSS_GENERATIONS
    assert errors_of("h100_sxm~h100_sxm") is ACROSS_GENERATIONS


@pytest.mark.parametrize("borrower", [found for found in devices() if borrowed_source(found.calibration)], ids=lambda d: d.name)
def test_every_kernel_of_a_borrowing_device_says_whose_it_is_and_is_less_sure_than_its_source(borrower):
    source = replace(borrower, calibration=borrowed_source(borrower.calibration))
    dtype = DType.BF16 if DType.BF16 in borrower.peak_flops else DType.FP16
    for kind in (*KernelKind, *VectorKernel):
        error, measured = kernel_error(borrower, dtype, kind), kernel_error(source, dtype, kind)
        assert error.basis.startswith(f"borrowed from {source.calibration}")
        assert error.median >= measured.median and error.p95 >= measured.p95


def test_another_generation_runs_products_slower_than_the_source_at_the_same_data_sheet():
    h100 = device("h100")
    stranger = replace(h100, calibration=borrowed_name("stranger", "h100_sxm"))
    ratio = matmul_s(h100, DType.BF16, 8192, 8192, 8192) / matmul_s(stranger, DType.BF16, 8192, 8192, 8192)
    assert ratio == pytest.approx(MATRIX_SHARE, rel=0.15)


def test_device_whose_sheet_is_anothers_differs_from_its_calibration():
    h100 = device("h100")
    assert not differs_from_its_calibration(h100)
    assert not differs_from_its_calibration(replace(h100, memory_bytes_per_s=1.05 * h100.memory_bytes_per_s))
    assert differs_from_its_calibration(replace(h100, peak_flops={DType.BF16: 459e12}))


def test_idle_power_left_out_is_never_above_full_power():
    board = {"name": "t4", "memory_bytes": 2**34, "peak_flops": {DType.FP16: 65e12}, "memory_bytes_per_s": 320e9}
    assert Device(**board, power_w=70.0).idle_power_w == pytest.approx(14.0)
    assert Device(**board, power_w=400.0).idle_power_w == 80.0
    with pytest.raises(ClusterError, match="more power idle"):
        Device(**board, power_w=70.0, idle_power_w=90.0)
