"""Where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, Device
from meshwright.costmodels.cluster.rank_runs import BusyTime, RankRuns, device_energy_j
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import flops_of_documents
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost
from meshwright.solver.training.costs.stage_table import StageTable


def time_breakdown(decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> TimeBreakdown:
    """Where the step's time goes, on the stage that takes longest."""
    m = decision.candidate.n_microbatches
    longest = max(range(len(cost.stages)), key=lambda n: (m * cost.stages[n].time_s + cost.stages[n].extra_s, -n))
    return rank_breakdown(decision, cost, tables, longest)


def rank_breakdown(decision: Decision, cost: DecisionCost, tables: Sequence[StageTable], rank: int) -> TimeBreakdown:
    """Where the step's time goes on one pipeline rank; what is left over is pipeline bubble.

    T >= m t_i + d_i for every stage i, so the bubble is never negative.
    """
    m = decision.candidate.n_microbatches
    spans, table, stage = decision.spans_of_rank(rank), tables[rank], cost.stages[rank]
    layers = np.r_[tuple(span.layers for span in spans)]
    parts = table.parts
    compute, tp, cp, dp, ep = (
        float(part[layers].sum()) / decision.n_copies
        for part in (parts.compute_s, parts.tp_comm_s, parts.cp_comm_s, parts.dp_comm_s, parts.ep_comm_s)
    )
    optimizer = float(parts.optimizer_s[layers].sum()) + parts.step_host_s
    modes = decision.candidate.recompute
    moves = sum(float(parts.moves_s[span.of_mode(modes)].sum()) for span in spans)
    moves /= decision.n_copies
    rerun = stage.time_s - stage.sends_s - compute - tp - cp - dp - ep - moves
    return TimeBreakdown(
        compute_s=m * compute,
        recompute_s=m * (rerun if spans[0].recompute is not Recompute.NONE else 0.0),
        tp_comm_s=m * tp,
        cp_comm_s=m * cp,
        pp_comm_s=m * stage.sends_s,
        dp_comm_s=m * dp + stage.extra_s - optimizer,
        bubble_s=max(0.0, cost.step_time_s - m * stage.time_s - stage.extra_s),
        optimizer_s=optimizer,
        ep_comm_s=m * ep,
        offload_s=m * moves,
    )


# Energy and price of a training step: every device of every pipeline rank, by what keeps the rank busy.


def step_energy_j(cluster: Cluster, decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> float:
    """Joules that the plan's devices take in a step; those that it leaves unused are not counted."""
    mesh = decision.candidate.mesh
    total = 0.0
    for rank in range(len(cost.stages)):
        parts = rank_breakdown(decision, cost, tables, rank)
        computing_s = parts.compute_s + parts.recompute_s + parts.optimizer_s
        communicating_s = cost.step_time_s - computing_s - parts.bubble_s
        busy = BusyTime(computing_s, max(0.0, communicating_s), cost.step_time_s)
        devices = devices_of_runs(cluster, mesh.ranks_of_stage(rank))
        total += sum(number * device_energy_j(device, busy) for device, number in devices)
    return total


def all_devices(cluster: Cluster) -> list[tuple[Device, int]]:
    """Devices of the whole cluster, with how many of each node group's there are."""
    return devices_of(cluster, first=0, count=cluster.n_devices)


def devices_of(cluster: Cluster, *, first: int, count: int) -> list[tuple[Device, int]]:
    """Devices of a run of ranks, with how many of each node group's there are."""
    found, start = [], 0
    for group in cluster.groups:
        number = min(first + count, start + group.n_devices) - max(first, start)
        if number > 0:
            found.append((group.node.device, number))
        start += group.n_devices
    return found


def devices_of_runs(cluster: Cluster, runs: RankRuns) -> list[tuple[Device, int]]:
    """Devices of runs of ranks, with how many of each node group's there are."""
    found, start = [], 0
    for group in cluster.groups:
        end = start + group.n_devices
        number = sum(max(0, min(first + runs.length, end) - max(first, start)) for first in runs.starts)
        if number:
            found.append((group.node.device, number))
        start = end
    return found


def price_per_hour(devices: Iterable[tuple[Device, int]]) -> float | None:
    """USD an hour of so many devices of each kind; None where one has no price."""
    total = 0.0
    for device, number in devices:
        if device.price_per_hour is None:
            return None
        total += number * device.price_per_hour
    return total


# The bound that no training plan can beat: its model FLOPs at the peak of all devices.

BACKWARD_OVER_FORWARD = 2.0
"""Two products of gradients for each product of the forward pass."""


def step_flops(request: TrainingRequest, *, without: str | None = None) -> float:
    """Model FLOPs of a step, but for those of one block: attention counted as its kernel runs it, within documents if there are
    any, nothing recomputed."""
    workload = request.workload
    sizes = {**request.model.dims, BATCH: workload.global_batch, SEQ: workload.seq_len}
    forward = sum(
        run.repeat * sum(flops_of_documents(op, sizes, workload.documents) for op in request.model.block(run.block).operators)
        for run in request.model.chain
        if run.block != without
    )
    return (1.0 + BACKWARD_OVER_FORWARD) * forward


def least_step_flops(request: TrainingRequest, *, without: str | None = None) -> float:
    """FLOPs that a step can't do without, but for those of one block: beside adapters the products of frozen weights have no
    weight gradients."""
    backward = BACKWARD_OVER_FORWARD if request.workload.adapter is None else BACKWARD_OVER_FORWARD / 2.0
    return step_flops(request, without=without) * (1.0 + backward) / (1.0 + BACKWARD_OVER_FORWARD)


def most_flops_per_s(request: TrainingRequest, device: Device) -> float:
    """The peak of a device in the fastest format that any product has."""
    workload = request.workload
    return max(device.peak(dtype) for dtype in (workload.precision, workload.matmul.dtype or workload.precision))


def compute_bound_s(request: TrainingRequest) -> float:
    """Seconds of a step if all devices ran at the peak of the fastest format that any product has."""
    groups = request.cluster.groups
    return least_step_flops(request) / sum(group.n_devices * most_flops_per_s(request, group.node.device) for group in groups)
