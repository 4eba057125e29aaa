"""Kernel calibrations: fitted curves of a device's kernels, with the error and the provenance of each.

A device without measured tables takes the curves of the nearest measured one, scaled by a stated factor, without the
corrections of another kernel library, and states a larger error; `Fitted.derived_from` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from costmodels.attention_curve import DecodeCurve, PrefillCurve
from costmodels.gemm_curve import GemmCurve
from costmodels.units import DType

Curve = TypeVar("Curve")


class KernelKind(StrEnum):
    """Kinds of kernels that compute; those that only move memory are VectorKernel."""

    GEMM = "gemm"
    PREFILL_ATTENTION = "prefill_attention"
    ATTENTION_BACKWARD = "attention_backward"
    DECODE_ATTENTION = "decode_attention"


class VectorKernel(StrEnum):
    """Kernels that only move memory, by how well they use its bandwidth."""

    STREAM = "stream"
    """Reads and writes whole arrays: residual additions, copies, optimizer steps."""
    NORM = "norm"
    """Reduces rows: layer and RMS normalisation, softmax."""
    ACTIVATION = "activation"
    """Gated and plain activation functions."""
    GATHER = "gather"
    """Reads rows by index: embeddings."""


@dataclass(frozen=True, slots=True)
class KernelError:
    """Relative error of a curve's time: median and 95th percentile, and what they rest on."""

    median: float
    p95: float
    basis: str


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Curve]):
    """A curve and its error; ``derived_from`` names the device or format it was taken from, if it was not measured."""

    curve: Curve
    error: KernelError
    derived_from: str | None = None


class MemoryCurve(NamedTuple):
    """Time of a kernel that only moves memory: launch_s + bytes / (efficiency x bandwidth of the data sheet)."""

    launch_s: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class KernelCalibration:
    """Curves of one device.

    cores              compute units (SMs, CUs, AI cores)
    host_launch_s      time the host spends to launch one kernel from an eager training framework
    gemm               by input format
    prefill, decode    by input (prefill) or cache (decode) format, then head dimension
    """

    key: str
    cores: int
    host_launch_s: float
    gemm: Mapping[DType, Fitted[GemmCurve]]
    prefill: Mapping[DType, Mapping[int, Fitted[PrefillCurve]]]
    decode: Mapping[DType, Mapping[int, Fitted[DecodeCurve]]]
    memory_bound: Mapping[VectorKernel, Fitted[MemoryCurve]]
    provenance: Mapping[str, str]
