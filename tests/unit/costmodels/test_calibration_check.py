"""Calibrations from outside are refused before anything computes on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from meshwright.costmodels.calibration.calibration import CALIBRATION_SCHEMA, Calibration, calibrations_in_force
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.fitting.board import board_of
from meshwright.costmodels.fitting.calibration import fit_kernels
from meshwright.costmodels.fitting.check import check_calibration
from meshwright.costmodels.fitting.collectives import fit_collectives
from meshwright.costmodels.kernels.compute import matmul_s, memory_bound_s
from meshwright.costmodels.units import DType
from tests.unit.costmodels.measurements import stream_s, toy_samples

Json = dict[str, Any]


@pytest.fixture(scope="module")
def toy() -> Json:
    """A calibration document of the made-up device."""
    samples = toy_samples()
    board = board_of(samples, key="toy", node=None, cores=2)
    kernels, _ = fit_kernels(samples, board, folds=2, on_curve=lambda done, total, name: None)
    collectives, _ = fit_collectives(samples, board)
    whole = {
        "schema": CALIBRATION_SCHEMA,
        "key": "toy",
        "kernels": kernels | {"provenance": {}},
        "collectives": collectives | {"provenance": {}},
    }
    decoded: Json = json.loads(json.dumps(whole))
    return decoded


def test_a_fitted_calibration_passes(toy: Json) -> None:
    kernels, collectives = check_calibration(toy)
    assert kernels.key == collectives.key == "toy"


CHANGES: list[tuple[Callable[[Json], object], str]] = [
    (lambda d: d.update(schema="x"), "no calibration"),
    (lambda d: d.update(key="a@b"), "key"),
    (lambda d: d.update(key=7), "key"),
    (lambda d: d.pop("kernels"), "KeyError"),
    (lambda d: d.update(kernels=[]), "can't be read"),
    (lambda d: d["kernels"].update(cores=0), "cores"),
    (lambda d: d["kernels"]["gemm"].update(bf7=d["kernels"]["gemm"]["fp32"]), "bf7"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"].update(launch_s=-1.0), "launch_s"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"].update(launch_s=float("nan")), "launch_s"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"].update(cache_bytes_per_s=0), "cache_bytes_per_s"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"].update(launch_s=[1.0, 2.0, 3.0]), "launch_s"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"].update(surprise=1.0), "surprise"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"]["tile_efficiency"].pop(), "tile_efficiency"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"]["log2_rows"].pop(), "size_correction"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"]["log2_k"].reverse(), "log2_k must rise"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"]["size_correction"].update(step=9.0), "corrects by more"),
    (lambda d: d["kernels"]["gemm"]["fp32"]["curve"]["size_correction"].update(steps="AAAA"), "can't be read"),
    (lambda d: d["kernels"]["memory_bound"].pop("stream"), "stream"),
    (lambda d: d["collectives"].update(link_share=0), "link_share"),
    (lambda d: d["collectives"]["curves"]["all_reduce"]["2"].update(root_s=-1e-9), "all_reduce of 2"),
    (lambda d: d["collectives"]["curves"]["all_reduce"]["2"]["shares"].pop(), "all_reduce of 2"),
    (lambda d: d["collectives"]["curves"].update(all_reduce=3), "can't be read"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_damaged_calibration_is_refused(toy: Json, number: int) -> None:
    change, said = CHANGES[number]
    damaged = copy.deepcopy(toy)
    change(damaged)
    with pytest.raises(ClusterError, match=said):
        check_calibration(damaged)


def test_devices_use_a_calibration_only_while_it_is_in_force(toy: Json) -> None:
    peak = 2.0 * 512**3 / (4e-6 + 2.0 * 512**3 / 5e11)
    name = "toy@sha256:1"
    device = Device("toy", 2**34, {DType.FP32: peak}, 0.8e11, name)
    with pytest.raises(ClusterError, match="not given with the request"):
        memory_bound_s(device, 1e6)
    with calibrations_in_force([Calibration(name, toy)]):
        assert memory_bound_s(device, 2.0**20) == pytest.approx(stream_s(2.0**20), rel=0.05)
        assert matmul_s(device, DType.FP32, 256, 256, 256) == pytest.approx(4e-6 + 2.0 * 256**3 / 5e11, rel=0.1)
