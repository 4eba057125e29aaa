"""Which kernel calibrations a serving prediction rests on, and how wrong they can be."""

from __future__ import annotations

from costmodels.cluster import Device
from costmodels.compute import kernel_error
from costmodels.kernel_calibration import KernelError, KernelKind, VectorKernel
from costmodels.units import DType
from solver.plan import CalibrationUse
from solver.request import PlanRequest, ServingWorkload
from solver.serving.layouts import serving_precision


def calibrations_used(request: PlanRequest, device: Device) -> tuple[CalibrationUse, ...]:
    """The device's kernel calibration with its error, one entry a kind of kernel and format that a step runs."""
    return tuple(
        CalibrationUse(
            id=f"{device.calibration}/{kind.value}/{dtype.value}",
            device=device.name,
            median_error=error.median,
            p95_error=error.p95,
            basis=error.basis,
        )
        for kind, dtype, error in _errors(request, device)
    )


def worst_error(request: PlanRequest, device: Device) -> tuple[float, str]:
    """Largest 95th-percentile error among the kernels used, and what it rests on."""
    _, _, error = max(_errors(request, device), key=lambda entry: entry[2].p95)
    return error.p95, error.basis


def _errors(request: PlanRequest, device: Device) -> list[tuple[KernelKind | VectorKernel, DType, KernelError]]:
    assert isinstance(request.workload, ServingWorkload)
    precision = serving_precision(request.workload)
    head_dim = request.model.dims.get("head_dim", 128)
    used: list[tuple[KernelKind | VectorKernel, DType]] = [
        (KernelKind.GEMM, precision.weights.computed_in(device)),
        (KernelKind.GEMM, precision.activations),
        (KernelKind.PREFILL_ATTENTION, precision.activations),
        (KernelKind.DECODE_ATTENTION, precision.kv),
        (VectorKernel.NORM, precision.activations),
    ]
    return [(kind, dtype, kernel_error(device, dtype, kind, head_dim=head_dim)) for kind, dtype in dict.fromkeys(used)]
