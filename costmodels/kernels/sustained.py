"""Kernel times in the steps of a long run: those of kernels timed alone, at the rates that the device sustains."""

from __future__ import annotations

from meshwright.costmodels.calibration.kernels import VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import launch_s, matmul_s, memory_bound_s
from meshwright.costmodels.units import DType

LOW_PRECISION = (DType.FP8, DType.INT8, DType.FP4, DType.INT4)


def sustained_matmul_s(device: Device, dtype: DType, m: int, n: int, k: int, *, batch: int = 1) -> float:
    """Seconds of ``batch`` products (m, k) x (k, n) among others like them."""
    rates = device.sustained
    rate = rates.low_precision_matrix if dtype in LOW_PRECISION else rates.matrix
    return float(matmul_s(device, dtype, m, n, k, batch=batch)) / rate


def sustained_memory_s(device: Device, bytes_moved: float, *, kernel: VectorKernel = VectorKernel.STREAM) -> float:
    """Seconds of a kernel that only moves memory."""
    return float(memory_bound_s(device, bytes_moved, kernel=kernel)) / device.sustained.memory


def sustained_launch_s(device: Device) -> float:
    """Seconds of one launch, the unit of host work (`costmodels.kernels.host_work`)."""
    return launch_s(device) / device.sustained.host
