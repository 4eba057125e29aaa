"""Calibration files: reading (with a device's base, if it has one) and writing of fitted curves.

Correction tables are stored as base64 of signed bytes in units of the table's ``step``, their last coordinate fastest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.borrowed import borrowed_kernels, borrowed_source
from meshwright.costmodels.calibration.calibration import document_in_force, is_measured
from meshwright.costmodels.calibration.kernels import Curve, Fitted, KernelCalibration, KernelError, MemoryCurve, VectorKernel
from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve
from meshwright.costmodels.curves.gemm import GemmCurve
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.units import DType

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
