"""The bound that no training plan can beat: its model FLOPs at the peak of all devices."""

from __future__ import annotations

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import flops_of_documents
from meshwright.solver.problem.request import TrainingRequest

BACKWARD_OVER_FORWARD = 2.0
"""Two products of gradients for each product of the forward pass."""


def step_flops(request: TrainingRequest) -> float:
    """Model FLOPs of a step: attention counted as its kernel runs it, within documents if there are
    any, nothing recomputed."""
    workload = request.workload
    sizes = {**request.model.dims, BATCH: workload.global_batch, SEQ: workload.seq_len}
    forward = sum(
        run.repeat * sum(flops_of_documents(op, sizes, workload.documents) for op in request.model.block(run.block).operators)
        for run in request.model.chain
    )
    return (1.0 + BACKWARD_OVER_FORWARD) * forward


def least_step_flops(request: TrainingRequest) -> float:
    """FLOPs that a step can't do without: beside adapters the products of frozen weights have no weight gradients."""
    backward = BACKWARD_OVER_FORWARD if request.workload.adapter is None else BACKWARD_OVER_FORWARD / 2.0
    return step_flops(request) * (1.0 + backward) / (1.0 + BACKWARD_OVER_FORWARD)


def compute_bound_s(request: TrainingRequest) -> float:
    """Seconds of a step if all devices ran at the peak of the fastest format that any product has."""
    workload = request.workload
    formats = {workload.precision, workload.matmul.dtype or workload.precision}
    devices = ((group.n_devices, group.node.device) for group in request.cluster.groups)
    return least_step_flops(request) / sum(count * max(device.peak(dtype) for dtype in formats) for count, device in devices)
