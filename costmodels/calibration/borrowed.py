"""Calibrations of devices that have none of their own: the nearest measured device's curves, with a wider error.

A name is ``<key>~<source>``: the key that a calibration of the device's own would have, and the shipped calibration that it
borrows from. Curves are shares of a data sheet's peak and bandwidth, so they stand for another device through its own sheet.
What is tied to one chip's size or kernel library, the corrections of measured sizes, is left out. Outside the source's
generation products and attention take `MATRIX_SHARE` and `ATTENTION_SHARE` of the source's rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.costmodels.calibration.calibration import BORROWS, calibration_key
from meshwright.costmodels.calibration.kernels import Fitted, KernelCalibration, KernelError
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.hardware import devices
from meshwright.costmodels.hardware.generations import OTHER, generation_of
from meshwright.costmodels.units import DType

MEASURED = ("a100_sxm", "b200_sxm", "gb200", "h100_sxm", "h200_sxm")
"""Shipped calibrations whose matrix products were measured on the device itself."""

MATRIX_SHARE, ATTENTION_SHARE = 0.846, 0.728
"""Rates of another generation over the source's, both as shares of their data sheets: means over seven devices
(`benchmarks/borrowed_calibrations.py`)."""


@dataclass(frozen=True, slots=True)
class BorrowedErrors:
    """Relative errors of borrowed curves, by kind of kernel: (median, 95th percentile)."""

    matrix: tuple[float, float]
    attention: tuple[float, float]
    decode: tuple[float, float]
    memory: tuple[float, float]
    basis: str


WITHIN_GENERATION = BorrowedErrors(
    matrix=(0.052, 0.132),
    attention=(0.125, 0.287),
    decode=(0.049, 0.399),
    memory=(0.0, 0.0),
    basis="four devices, each left out and predicted by its sister board",
)
"""Errors where source and device are of one generation (`benchmarks/borrowed_calibrations.py`); kernels that move memory have
the source's own."""

ACROSS_GENERATIONS = BorrowedErrors(
    matrix=(0.138, 0.413),
    attention=(0.201, 0.752),
    decode=(0.469, 0.951),
    memory=(0.095, 0.437),
    basis="seven devices, each left out and predicted by one of another generation",
)
"""Errors where they are not (`benchmarks/borrowed_calibrations.py`)."""


def borrowed_name(key: str, source: str) -> str:
    """The name of a device's borrowed calibration."""
    return f"{key}{BORROWS}{source}"


def borrowed_source(name: str) -> str | None:
    """The shipped calibration that a name borrows from; None for one of a device's own."""
    return name.partition(BORROWS)[2] or None


def key_of_device(name: str) -> str:
    """The key that a device's own calibration would have: "RTX 4070" -> "rtx_4070"."""
    return re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")[:64] or "device"


def nearest_measured(device: Device) -> str:
    """The measured calibration whose device is nearest by data sheet: least sum of the logarithms of the ratios of 16-bit peak
    and of memory bandwidth, the first by name of two equally near."""
    boards = [board for board in devices() if board.calibration in MEASURED]
    return min((_distance(device, board), board.calibration) for board in boards)[1]


def differs_from_its_calibration(device: Device, tolerance: float = 0.1) -> bool:
    """Return True if this names the calibration of the catalogue's devices, none of which has about its peak and bandwidth."""
    if borrowed_source(device.calibration) is not None:
        return False
    boards = [board for board in devices() if board.calibration == device.calibration]
    return bool(boards) and all(_distance(device, board) > math.log1p(tolerance) for board in boards)


def borrowed_kernels(name: str, source: KernelCalibration) -> KernelCalibration:
    """Kernels of a device that borrows a source's, each with the error of borrowing where that is larger."""
    errors = errors_of(name)
    share = (1.0, 1.0) if errors is WITHIN_GENERATION else (MATRIX_SHARE, ATTENTION_SHARE)
    basis = f"borrowed from {source.key}: {errors.basis}"

    def widened(fitted: Fitted[Any], error: tuple[float, float]) -> Fitted[Any]:
        larger = KernelError(max(error[0], fitted.error.median), max(error[1], fitted.error.p95), basis)
        return Fitted(fitted.curve, larger, source.key)

    def gemm(fitted: Fitted[Any]) -> Fitted[Any]:
        curve = fitted.curve
        plain = {field: 0.0 * getattr(curve, field) for field in ("size_correction", "wave_correction", "measured_correction")}
        slower = curve._replace(tile_efficiency=curve.tile_efficiency * share[0], **plain)
        return widened(replace(fitted, curve=slower), errors.matrix)

    def prefill(fitted: Fitted[Any]) -> Fitted[Any]:
        curve = fitted.curve
        slower = curve._replace(peak_efficiency=curve.peak_efficiency * share[1], correction=0.0 * curve.correction)
        return widened(replace(fitted, curve=slower), errors.attention)

    def decode(fitted: Fitted[Any]) -> Fitted[Any]:
        plain = fitted.curve._replace(correction=0.0 * fitted.curve.correction)
        return widened(replace(fitted, curve=plain), errors.decode)

    return replace(
        source,
        key=calibration_key(name),
        gemm={dtype: gemm(fitted) for dtype, fitted in source.gemm.items()},
        prefill={dtype: {d: prefill(fitted) for d, fitted in by.items()} for dtype, by in source.prefill.items()},
        decode={dtype: {d: decode(fitted) for d, fitted in by.items()} for dtype, by in source.decode.items()},
        memory_bound={kernel: widened(fitted, errors.memory) for kernel, fitted in source.memory_bound.items()},
        attention_backward=widened(source.attention_backward, errors.attention),
        provenance={"base": basis},
    )


def errors_of(name: str) -> BorrowedErrors:
    """The errors of a borrowed calibration: those within a generation only for another device of the catalogue's."""
    key, source = calibration_key(name), borrowed_source(name) or ""
    own = generation_of(key)
    is_sister = key != source and own.name != OTHER and own.name == generation_of(source).name
    return WITHIN_GENERATION if is_sister else ACROSS_GENERATIONS


def borrowed_collectives(key: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of collectives without curves: the source's share of its fabric and its links, with the error of collectives
    that were not measured."""
    kept = {field: document[field] for field in ("link_share", "mesh_links") if field in document}
    error = {"median": 0.15, "p95": 0.4, "basis": f"borrowed from {document['key']}: share of the fabric; not measured"}
    return {**kept, "key": key, "error": error, "provenance": {"base": f"borrowed from {document['key']}"}}


def _distance(one: Device, other: Device) -> float:
    peaks = abs(math.log(_peak_flops(one) / _peak_flops(other)))
    return peaks + abs(math.log(one.memory_bytes_per_s / other.memory_bytes_per_s))


def _peak_flops(device: Device) -> float:
    """16-bit peak, or that of the fastest format of a device that has none."""
    found = [device.peak_flops[dtype] for dtype in (DType.BF16, DType.FP16) if dtype in device.peak_flops]
    return found[0] if found else max(device.peak_flops.values(), default=1.0)
