"""Kernel calibrations: fitted curves of a device's kernels, with the error and the provenance of each.

A device without measured tables takes the curves of the nearest measured one, scaled by a stated factor, without the
corrections of another kernel library, and states a larger error; `Fitted.derived_from` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.curves.attention import DecodeCurve, PrefillCurve
from meshwright.costmodels.curves.gemm import GemmCurve
from meshwright.costmodels.units import DType

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


BACKWARD_FLOPS_RATIO = 2.5
"""Backward over forward FLOPs of flash attention: five matrix products against two (FlashAttention-2, section 4.1)."""

BACKWARD_SLOWDOWN = 0.73 / 0.63
"""Forward over backward share of an A100's peak that FlashAttention-2 reaches (its section 4.1: up to 73% forward, 63%
backward)."""

NOT_MEASURED_BACKWARD = Fitted(
    BACKWARD_FLOPS_RATIO * BACKWARD_SLOWDOWN,
    KernelError(0.15, 0.35, "no measured table of attention backward: forward curve and FlashAttention-2's ratios"),
)
"""Of a device whose backward kernels were not measured: no public table holds them."""


class MemoryCurve(NamedTuple):
    """Time of a kernel that only moves memory: launch_s + bytes / (efficiency x bandwidth of the data sheet).

    The first ``cache_bytes`` stay in the last-level cache and move at ``cached_efficiency`` instead; 0 where no cache shows.
    """

    launch_s: float
    efficiency: float
    cache_bytes: float = 0.0
    cached_efficiency: float = 1.0

    def seconds(self, moved_bytes: NDArray[np.float64] | float, *, bytes_per_s: float) -> NDArray[np.float64]:
        """Seconds for bytes moved, at the data sheet's bandwidth; the shape of what is given."""
        moved = np.asarray(moved_bytes, np.float64)
        cached = np.minimum(moved, self.cache_bytes)
        cached_s = cached / (self.cached_efficiency * bytes_per_s)
        return np.asarray(self.launch_s + cached_s + (moved - cached) / (self.efficiency * bytes_per_s))


@dataclass(frozen=True, slots=True)
class KernelCalibration:
    """Curves of one device.

    cores              compute units (SMs, CUs, AI cores)
    host_launch_s      time the host takes to launch one kernel from eager PyTorch
    gemm               by input format
    prefill, decode    by input (prefill) or cache (decode) format, then head dimension
    attention_backward time of attention's backward pass over that of its forward pass
    """

    key: str
    cores: int
    host_launch_s: float
    gemm: Mapping[DType, Fitted[GemmCurve]]
    prefill: Mapping[DType, Mapping[int, Fitted[PrefillCurve]]]
    decode: Mapping[DType, Mapping[int, Fitted[DecodeCurve]]]
    memory_bound: Mapping[VectorKernel, Fitted[MemoryCurve]]
    provenance: Mapping[str, str]
    attention_backward: Fitted[float] = NOT_MEASURED_BACKWARD
