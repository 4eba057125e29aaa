"""Calibration files: reading (with a device's base, if it has one) and writing of fitted curves.

Correction tables are stored as base64 of signed bytes in units of the table's ``step``, their last coordinate fastest.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.calibration import BORROWS, calibration_key, document_in_force, is_measured
from meshwright.costmodels.calibration.kernels import Curve, Fitted, KernelCalibration, KernelError, MemoryCurve, VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve
from meshwright.costmodels.curves.gemm import GemmCurve
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import devices
from meshwright.costmodels.hardware.generations import OTHER, generation_of
from meshwright.costmodels.units import DType

# Calibrations of devices that have none of their own: the nearest measured device's curves, with a wider error.
#
# A name is ``<key>~<source>``: the key that a calibration of the device's own would have, and the shipped calibration that it
# borrows from. Curves are shares of a data sheet's peak and bandwidth, so they stand for another device through its own sheet.
# What is tied to one chip's size or kernel library, the corrections of measured sizes, is left out. Outside the source's
# generation products and attention take `MATRIX_SHARE` and `ATTENTION_SHARE` of the source's rates.

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


def is_own(name: str) -> bool:
    """Return True of a calibration that a device names itself, whose figures are not those of its data sheet: other memory on
    the same chip, say. Its curves hold, so that no figure of the device is a border beyond which all kernels are slower; what
    they err by is not known any more."""
    return borrowed_source(name) == calibration_key(name)


def borrowed_kernels(name: str, source: KernelCalibration) -> KernelCalibration:
    """Kernels of a device that borrows a source's, each with the error of borrowing where that is larger."""
    errors = errors_of(name)
    share = (1.0, 1.0) if errors is WITHIN_GENERATION or is_own(name) else (MATRIX_SHARE, ATTENTION_SHARE)
    kept = 1.0 if is_own(name) else 0.0
    basis = f"borrowed from {source.key}: {errors.basis}"

    def widened(fitted: Fitted[Any], error: tuple[float, float]) -> Fitted[Any]:
        larger = KernelError(max(error[0], fitted.error.median), max(error[1], fitted.error.p95), basis)
        return Fitted(fitted.curve, larger, source.key)

    def gemm(fitted: Fitted[Any]) -> Fitted[Any]:
        curve = fitted.curve
        plain = {field: kept * getattr(curve, field) for field in ("size_correction", "wave_correction", "measured_correction")}
        slower = curve._replace(tile_efficiency=curve.tile_efficiency * share[0], **plain)
        return widened(replace(fitted, curve=slower), errors.matrix)

    def prefill(fitted: Fitted[Any]) -> Fitted[Any]:
        curve = fitted.curve
        slower = curve._replace(peak_efficiency=curve.peak_efficiency * share[1], correction=kept * curve.correction)
        return widened(replace(fitted, curve=slower), errors.attention)

    def decode(fitted: Fitted[Any]) -> Fitted[Any]:
        plain = fitted.curve._replace(correction=kept * fitted.curve.correction)
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


Floats = NDArray[np.float64]

FINEST_STEP = 0.005
"""Least unit of a stored log-ratio: half a per cent is below the noise of every measured table."""

CURVE_FIELDS = frozenset({"gemm", "prefill", "decode", "memory_bound"})

TABLE_FIELDS = frozenset({"size_correction", "wave_correction", "measured_correction", "correction"})


def kernel_calibration(key: str) -> KernelCalibration:
    """The shipped calibration of a key, or the measured or borrowed one of a name; raises ClusterError when there is none."""
    if is_measured(key):
        return _measured(key)
    return _shipped(key) if borrowed_source(key) is None else _borrowed(key)


@lru_cache(maxsize=64)
def _measured(name: str) -> KernelCalibration:
    return read_calibration(document_in_force(name)["kernels"])


@lru_cache(maxsize=64)
def _borrowed(name: str) -> KernelCalibration:
    return borrowed_kernels(name, _shipped(borrowed_source(name) or ""))


@cache
def _shipped(key: str) -> KernelCalibration:
    folder = files("meshwright.costmodels.hardware").joinpath("calibrations", "kernels")
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    if key not in known:
        raise ClusterError(
            "no kernel calibration of this name",
            given=key,
            allowed=", ".join(known),
            remedy="name the nearest device's calibration, or calibrate this one",
        )
    return read_calibration(json.loads(folder.joinpath(f"{key}.json").read_text(encoding="utf-8")))


def read_calibration(document: Mapping[str, Any]) -> KernelCalibration:
    """The calibration that a decoded file describes: its own curves, and its base's for the kinds and formats it has none of.

    Kernels that only move memory and have no curve of their own run as streams do, with twice the error.
    """
    inherited = _inherited(document) if "base" in document else None
    own: dict[str, Any] = {}
    if "gemm" in document:
        own["gemm"] = {DType(dtype): read_fitted(entry, GemmCurve) for dtype, entry in document["gemm"].items()}
    for field, name, record in (("prefill", "prefill_attention", PrefillCurve), ("decode", "decode_attention", DecodeCurve)):
        if name in document:
            own[field] = {
                DType(dtype): {int(head_dim): read_fitted(entry, record) for head_dim, entry in by_head_dim.items()}
                for dtype, by_head_dim in document[name].items()
            }
    if "memory_bound" in document:
        entries = document["memory_bound"].items()
        own["memory_bound"] = {VectorKernel(kernel): read_fitted(entry, MemoryCurve) for kernel, entry in entries}
    if "attention_backward" in document:
        backward = document["attention_backward"]
        own["attention_backward"] = Fitted(backward["ratio"], KernelError(**backward["error"]))
    own |= {field: document[field] for field in ("key", "cores", "provenance")}
    if inherited is None:
        launch_s = document.get("host_launch_s", 0.0)
        measured = KernelCalibration(**{"gemm": {}, "prefill": {}, "decode": {}, "host_launch_s": launch_s, **own})
        return replace(measured, memory_bound=_all_vector_kernels(measured.memory_bound))
    for field in CURVE_FIELDS & own.keys():
        own[field] = {**getattr(inherited, field), **own[field]}
    if "host_launch_s" in document:
        own["host_launch_s"] = document["host_launch_s"]
    return replace(inherited, **own)


def _all_vector_kernels(measured: Mapping[VectorKernel, Fitted[MemoryCurve]]) -> dict[VectorKernel, Fitted[MemoryCurve]]:
    stream = measured[VectorKernel.STREAM]
    error = KernelError(2 * stream.error.median, 2 * stream.error.p95, f"not measured: as streams; {stream.error.basis}")
    return {kernel: measured.get(kernel, Fitted(stream.curve, error, VectorKernel.STREAM.value)) for kernel in VectorKernel}


def read_fitted(entry: Mapping[str, Any], record: type[Curve]) -> Fitted[Curve]:
    """A curve of the given record type, with its error."""
    constants: dict[str, Any] = {}
    for field, value in entry["curve"].items():
        if field not in TABLE_FIELDS:
            constants[field] = np.array(value, np.float64) if isinstance(value, list) else float(value)
    for field in TABLE_FIELDS & entry["curve"].keys():
        table = entry["curve"][field]
        steps = np.frombuffer(base64.b64decode(table["steps"]), np.int8)
        constants[field] = steps.reshape(table["shape"]) * float(table["step"])
    return Fitted(record(**constants), KernelError(**entry["error"]), entry.get("derived_from"))


def write_fitted(fitted: Fitted[Any]) -> dict[str, Any]:
    """The document of a fitted curve, such that `read_fitted` gives it back up to rounding."""
    fields = fitted.curve._asdict()
    curve: dict[str, Any] = {}
    for field, value in fields.items():
        if field in TABLE_FIELDS:
            step = float(f"{max(FINEST_STEP, np.abs(value).max() / 127):.3g}")
            steps = np.clip(np.round(value / step), -127, 127).astype(np.int8)
            curve[field] = {
                "shape": list(value.shape), "step": step, "steps": base64.b64encode(steps.tobytes()).decode("ascii")
            }  # fmt: skip
        elif isinstance(value, np.ndarray):
            # Measured sizes lie as near as 3840 and 3841: five digits of their logarithms would not tell them apart.
            digits = 9 if field.startswith("log2_") else 5
            curve[field] = [float(f"{x:.{digits}g}") for x in value]
        else:
            curve[field] = float(f"{value:.5g}")
    error = {"median": round(fitted.error.median, 4), "p95": round(fitted.error.p95, 4), "basis": fitted.error.basis}
    return {"curve": curve, "error": error}


def _inherited(document: Mapping[str, Any]) -> KernelCalibration:
    """The base's calibration as it stands for another device: scaled, its corrections kept only on the same silicon."""
    base = document["base"]
    source = kernel_calibration(base["key"])
    error = KernelError(**base["error"]) if "error" in base else None
    cores = float(document["cores"])
    keep = base["corrections"] == "kept"

    def error_of(fitted: Fitted[Any]) -> KernelError:
        return fitted.error if error is None else error

    def gemm(fitted: Fitted[GemmCurve]) -> Fitted[GemmCurve]:
        curve = fitted.curve._replace(
            cores=cores,
            tile_efficiency=fitted.curve.tile_efficiency * base["gemm_efficiency"],
            cache_bytes_per_s=fitted.curve.cache_bytes_per_s * base["cache_bandwidth"],
            ramp_k=base.get("gemm_ramp_k", fitted.curve.ramp_k),
        )
        if not keep:
            curve = curve._replace(
                size_correction=np.zeros_like(curve.size_correction),
                wave_correction=np.zeros_like(curve.wave_correction),
                measured_correction=np.zeros_like(curve.measured_correction),
            )
        return Fitted(curve, error_of(fitted), base["key"])

    def prefill(fitted: Fitted[PrefillCurve]) -> Fitted[PrefillCurve]:
        efficiency = fitted.curve.peak_efficiency * base["attention_efficiency"]
        curve = fitted.curve._replace(cores=cores, peak_efficiency=efficiency)
        curve = curve if keep else curve._replace(correction=np.zeros_like(curve.correction))
        return Fitted(curve, error_of(fitted), base["key"])

    def decode(fitted: Fitted[DecodeCurve]) -> Fitted[DecodeCurve]:
        curve = fitted.curve._replace(cores=cores)
        curve = curve if keep else curve._replace(correction=np.zeros_like(curve.correction))
        return Fitted(curve, error_of(fitted), base["key"])

    return KernelCalibration(
        key=document["key"],
        cores=document["cores"],
        host_launch_s=source.host_launch_s,
        gemm={dtype: gemm(fitted) for dtype, fitted in source.gemm.items()},
        prefill={dtype: {d: prefill(fitted) for d, fitted in curves.items()} for dtype, curves in source.prefill.items()},
        decode={dtype: {d: decode(fitted) for d, fitted in curves.items()} for dtype, curves in source.decode.items()},
        memory_bound={
            kernel: Fitted(fitted.curve, error_of(fitted), base["key"]) for kernel, fitted in source.memory_bound.items()
        },
        provenance=document["provenance"],
        attention_backward=source.attention_backward,
    )
