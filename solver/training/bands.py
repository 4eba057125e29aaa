"""What a training prediction rests on: the calibrations used, and the error bands that follow from their measured errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from costmodels.cluster import Device
from costmodels.compute import kernel_error
from costmodels.kernel_calibration import KernelError, KernelKind, VectorKernel
from costmodels.operators import OperatorKind
from solver.plan import Band, CalibrationUse
from solver.request import PlanRequest, TrainingWorkload


def calibrations_used(request: PlanRequest) -> tuple[CalibrationUse, ...]:
    """Each device's kernel calibration with its error, one entry a kind of kernel that the model runs."""
    return tuple(
        CalibrationUse(
            id=f"{device.calibration}/{kind}", device=device.name, median_error=e.median, p95_error=e.p95, basis=e.basis
        )
        for device in _devices(request)
        for kind, e in _errors(request, device)
    )


def step_time_bands(request: PlanRequest, *, step_time_s: float, tokens_per_s: float, mfu: float) -> Mapping[str, Band]:
    """Bands of the figures that follow from kernel times: the worst 95th-percentile error among the kernels used.

    Errors of single kernels partly cancel in a step, and what is not a kernel (overlap, stragglers, data loading) is not in
    them: the band says how sure the parts are, not yet the whole.
    """
    error, basis = max(
        ((e.p95, f"95th percentile of held-out {kind} kernels of {device.calibration}: {e.basis}")
         for device in _devices(request) for kind, e in _errors(request, device)),
        key=lambda item: item[0],
    )  # fmt: skip
    return {
        "step_time_s": Band(step_time_s / (1 + error), step_time_s * (1 + error), basis),
        "tokens_per_s": Band(tokens_per_s / (1 + error), tokens_per_s * (1 + error), basis),
        "mfu": Band(mfu / (1 + error), mfu * (1 + error), basis),
    }


def _devices(request: PlanRequest) -> list[Device]:
    by_name = {group.node.device.name: group.node.device for group in request.cluster.groups}
    return [by_name[name] for name in sorted(by_name)]


def _errors(request: PlanRequest, device: Device) -> Iterator[tuple[str, KernelError]]:
    workload = request.workload
    assert isinstance(workload, TrainingWorkload)
    present = {operator.kind for block in request.model.blocks for operator in block.operators}
    head_dim = request.model.dims.get("head_dim", 128)
    kinds: list[KernelKind | VectorKernel] = []
    if OperatorKind.MATMUL in present:
        kinds.append(KernelKind.GEMM)
    if OperatorKind.ATTENTION in present:
        kinds += [KernelKind.PREFILL_ATTENTION, KernelKind.ATTENTION_BACKWARD]
    kinds.append(VectorKernel.STREAM)
    for kind in kinds:
        yield kind.value, kernel_error(device, workload.precision, kind, head_dim=head_dim)
