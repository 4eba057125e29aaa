"""Energy and price of a training step: every device of every pipeline rank, by what keeps the rank busy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.costmodels.cluster.cluster import Cluster, Device
from meshwright.costmodels.cluster.energy import BusyTime, device_energy_j
from meshwright.costmodels.cluster.rank_runs import RankRuns
from meshwright.solver.training.costs.breakdown import rank_breakdown
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost
from meshwright.solver.training.costs.stage_table import StageTable


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
