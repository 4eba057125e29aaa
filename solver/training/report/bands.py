"""The basis of a training prediction: the calibrations used, and bands from measured errors of whole steps and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.calibration.borrowed import MEASURED
from meshwright.costmodels.calibration.kernels import KernelError, KernelKind, VectorKernel
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.kernels.compute import kernel_error
from meshwright.costmodels.kernels.operator_time import operator_time
from meshwright.costmodels.model.dims import BATCH, HEAD_DIM, SEQ
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.answer.network_use import networks_used
from meshwright.solver.answer.predicted import Band, CalibrationUse
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.report.whole_steps import KNOWN_FRAMEWORK, StepErrorModel, StepTraits


@dataclass(frozen=True, slots=True)
class KernelShare:
    """A kind of kernel that the model runs: its share of the compute time of a micro-batch, and its error."""

    kind: KernelKind | VectorKernel
    share: float
    error: KernelError


def calibrations_used(request: TrainingRequest) -> tuple[CalibrationUse, ...]:
    """Each device's kernel calibration with its error, one entry a kind of kernel, the most used first; and networks between
    nodes."""
    kernels = tuple(
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
    return (*kernels, *networks_used(request.cluster))


def step_time_bands(
    request: TrainingRequest,
    traits: StepTraits,
    *,
    step_time_s: float,
    tokens_per_s: float,
    mfu: float,
    model: StepErrorModel = KNOWN_FRAMEWORK,
) -> Mapping[str, Band]:
    """Bands in which 90% of measured steps are expected, of the step time and of the figures that follow from it.

    Errors of kernels are inside the error of whole steps, which has been measured on devices with kernels of their own. Where
    a device borrows a calibration, or has one from its data sheet, the 95th-percentile errors of its kernels, weighted by
    their share of compute, come on top.
    """
    device, error = unmeasured_kernels(request)
    low, high = model.factors(traits, kernels=error)
    basis = model.basis if device is None else f"{model.basis}, and errors of kernels that were not measured on {device}"
    return {
        "step_time_s": Band(step_time_s * low, step_time_s * high, basis),
        "tokens_per_s": Band(tokens_per_s / high, tokens_per_s / low, basis),
        "mfu": Band(mfu / high, mfu / low, basis),
    }


def unmeasured_kernels(request: TrainingRequest) -> tuple[str | None, float]:
    """The device whose kernels were not measured on it and err most, with their 95th-percentile errors weighted by their share
    of compute; None and 0 where all devices have measurements of their own."""
    errors = {
        device.name: sum(used.share * used.error.p95 for used in kernel_shares(request, device))
        for device in _devices(request)
        if device.calibration not in MEASURED
    }
    widest = max(errors, key=lambda name: (errors[name], name), default=None)
    return widest, 0.0 if widest is None else errors[widest]


def kernel_shares(request: TrainingRequest, device: Device) -> list[KernelShare]:
    """Kinds of kernels by their share of one unsharded sequence's compute on a device, largest first."""
    workload, model = request.workload, request.model
    sizes = {**model.dims, BATCH: 1, SEQ: workload.seq_len}
    seconds: dict[KernelKind | VectorKernel, float] = {}
    for run in model.chain:
        for operator in model.block(run.block).operators:
            time = operator_time(operator, sizes, device=device, dtype=workload.precision, documents=workload.documents)
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
