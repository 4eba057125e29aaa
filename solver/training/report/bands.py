"""The basis of a training prediction: the calibrations used, and the error bands that follow from their measured errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.calibration.kernels import KernelError, KernelKind, VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import kernel_error
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.dims import BATCH, HEAD_DIM, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.predicted import Band, CalibrationUse
from meshwright.solver.problem.request import TrainingRequest


@dataclass(frozen=True, slots=True)
class KernelShare:
    """A kind of kernel that the model runs: its share of the compute time of a micro-batch, and its error."""

    kind: KernelKind | VectorKernel
    share: float
    error: KernelError


def calibrations_used(request: TrainingRequest) -> tuple[CalibrationUse, ...]:
    """Each device's kernel calibration with its error, one entry a kind of kernel, the most used first."""
    return tuple(
        CalibrationUse(
            id=f"{device.calibration}/{used.kind.value}",
            device=device.name,
            median_error=used.error.median,
            p95_error=used.error.p95,
            basis=f"{used.share:.0%} of compute; {used.error.basis}",
        )
        for device in _devices(request)
        for used in kernel_shares(request, device)
    )


def step_time_bands(request: TrainingRequest, *, step_time_s: float, tokens_per_s: float, mfu: float) -> Mapping[str, Band]:
    """Bands of the figures that follow from kernel times.

    The relative width is the 95th-percentile error of each kind of kernel, weighted by its share of compute: as if all
    kernels of a kind erred the same way, which they do not. What is not a kernel (overlap, stragglers, data loading) is not
    in it: the band says how sure the parts are, not yet the whole.
    """
    widths = {
        device.calibration: sum(used.share * used.error.p95 for used in kernel_shares(request, device))
        for device in _devices(request)
    }
    key = max(widths, key=lambda name: (widths[name], name))
    error, basis = widths[key], f"95th-percentile held-out kernel errors of {key}, weighted by share of compute"
    return {
        name: Band(value / (1 + error), value * (1 + error), basis)
        for name, value in (("step_time_s", step_time_s), ("tokens_per_s", tokens_per_s), ("mfu", mfu))
    }


def kernel_shares(request: TrainingRequest, device: Device) -> list[KernelShare]:
    """Kinds of kernels by their share of one unsharded sequence's compute on a device, largest first."""
    workload, model = request.workload, request.model
    sizes = {**model.dims, BATCH: 1, SEQ: workload.seq_len}
    seconds: dict[KernelKind | VectorKernel, float] = {}
    for run in model.chain:
        for operator in model.block(run.block).operators:
            time = operator_time(operator, sizes, device=device, dtype=workload.precision)
            parts: dict[KernelKind | VectorKernel, float]
            if operator.kind is OperatorKind.ATTENTION:
                parts = {KernelKind.PREFILL_ATTENTION: time.forward_s, KernelKind.ATTENTION_BACKWARD: time.backward_s}
            else:
                kind = KernelKind.GEMM if operator.kind is OperatorKind.MATMUL else VectorKernel.STREAM
                parts = {kind: time.forward_s + time.backward_s}
            for kind, part_s in parts.items():
                seconds[kind] = seconds.get(kind, 0.0) + run.repeat * part_s
    total = sum(seconds.values())
    head_dim = model.dims.get(HEAD_DIM, 128)
    return [
        KernelShare(kind, part_s / total, kernel_error(device, workload.precision, kind, head_dim=head_dim))
        for kind, part_s in sorted(seconds.items(), key=lambda item: (-item[1], item[0].value))
    ]


def _devices(request: TrainingRequest) -> list[Device]:
    by_name = {group.node.device.name: group.node.device for group in request.cluster.groups}
    return [by_name[name] for name in sorted(by_name)]
