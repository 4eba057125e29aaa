"""The aims of a training search: the time of a step, or its energy. Each says what a plan is worth and bounds it from below.

Energy is idle power for the whole step and, of what each device can take beyond it, all while it computes and half while it
communicates (`costmodels.cluster.rank_runs`): E = I T + sum_r A_r (c_r + (m t_r + d_r)) / 2, with I the idle power of all
devices, A_r the active power of rank r's devices, c_r its computing time, t_r and d_r its steady time and extra. The second
term is a sum over layers, so bounds need no stage borders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.costmodels.cluster.rank_runs import COMMUNICATING_ACTIVITY, COMPUTING_ACTIVITY
from meshwright.costmodels.pipeline import n_copies
from meshwright.solver.problem.choices import Objective, Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import (
    Decision,
    DecisionCost,
    FloatArray,
    Sharding,
    StageTable,
    devices_of_runs,
    step_energy_j,
)
from meshwright.solver.training.search.bounds import Member, family_bound_s, launch_bound_s, member_bound_s, operator_bound_s
from meshwright.solver.training.space.candidates import Candidate, CandidateFamily


class Aim(Protocol):
    """The aim that is minimised. A search in which two aims meet would need an order of them; each has one."""

    unit: str

    def value(self, decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> float:
        """The figure of a decided plan; smaller is better."""
        ...

    def launch_bound(self, family: CandidateFamily) -> float:
        """Lower bound on the figure of a family's plans that takes no cost of its blocks, and is no higher than the next."""
        ...

    def operator_bound(self, family: CandidateFamily) -> float:
        """Lower bound on the figure of a family's plans that takes no sharding of whole blocks; 0 where none is known."""
        ...

    def family_bound(self, family: CandidateFamily) -> float | None:
        """Lower bound on the figure of a family's plans; None where its blocks can't be sharded its way."""
        ...

    def member_bound(self, member: Member) -> float:
        """Lower bound on the figure of a member's plans."""
        ...


class LeastStepTime:
    """Seconds of a step."""

    unit = "s"

    def __init__(self, costs: TrainingCosts):
        self._costs = costs

    def value(self, decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> float:
        """The time of a step."""
        return cost.step_time_s

    def launch_bound(self, family: CandidateFamily) -> float:
        """`launch_bound_s`."""
        return launch_bound_s(family, self._costs)

    def operator_bound(self, family: CandidateFamily) -> float:
        """`operator_bound_s`."""
        return operator_bound_s(family, self._costs) or 0.0

    def family_bound(self, family: CandidateFamily) -> float | None:
        """`family_bound_s`."""
        return family_bound_s(family, self._costs)

    def member_bound(self, member: Member) -> float:
        """`member_bound_s`."""
        return member_bound_s(member)


class LeastEnergy:
    """Joules of a step of all devices, among plans whose step takes no longer than ``slowest_s``."""

    unit = "J per step"

    def __init__(self, request: TrainingRequest, costs: TrainingCosts, *, slowest_s: float = math.inf):
        self._cluster, self._costs, self._slowest_s = request.cluster, costs, slowest_s
        self._idle_w = sum(group.n_devices * group.node.device.idle_power_w for group in request.cluster.groups)

    def value(self, decision: Decision, cost: DecisionCost, tables: Sequence[StageTable]) -> float:
        """The energy of a step; infinite for one that takes too long."""
        return step_energy_j(self._cluster, decision, cost, tables) if cost.step_time_s <= self._slowest_s else math.inf

    def launch_bound(self, family: CandidateFamily) -> float:
        """Idle power while the host launches kernels."""
        return self._bound(launch_bound_s(family, self._costs), 0.0)

    def operator_bound(self, family: CandidateFamily) -> float:
        """Idle power while operators compute."""
        return self._bound(operator_bound_s(family, self._costs) or 0.0, 0.0)

    def family_bound(self, family: CandidateFamily) -> float | None:
        """Idle power for the least time, and the least active energy of each layer, nothing recomputed or shared."""
        step_s = family_bound_s(family, self._costs)
        if step_s is None:
            return None
        candidate = next(family.candidates())
        kinds = self._costs.stage_kinds(candidate)
        by_rank = []
        for power_w, kind in zip(self._active_w(candidate), kinds, strict=True):
            # The slowest device of a stage decides its times: the least of any is a bound.
            settings = self._costs.settings(candidate, kind)
            fastest = [self._costs.fastest_layers_s(setting) for setting in settings]
            computing = [self._costs.least_compute_s(setting) for setting in settings]
            known = [_active_s(c, f) for f, c in zip(fastest, computing, strict=True) if f is not None and c is not None]
            by_rank.append(power_w * np.min(known, axis=0))
        return self._bound(step_s, candidate.n_microbatches * float(np.min(by_rank, axis=0).sum()))

    def member_bound(self, member: Member) -> float:
        """As for a family, with all costs of the member: exact in its energy where all ranks are alike."""
        candidate = member.candidate
        by_rank = [
            power_w * np.min(active_s, axis=0)
            for power_w, active_s in zip(self._active_w(candidate), active_by_layer_s(candidate, member.tables), strict=True)
        ]
        of_ranks = sum(
            power_w * _once_s(candidate, table, rank)
            for rank, (power_w, table) in enumerate(zip(self._active_w(candidate), member.tables, strict=True))
        )
        return self._bound(member_bound_s(member), float(np.min(by_rank, axis=0).sum()) + of_ranks)

    def _bound(self, step_s: float, active_j: float) -> float:
        return self._idle_w * step_s + active_j if step_s <= self._slowest_s else math.inf

    def _active_w(self, candidate: Candidate) -> list[float]:
        """For each pipeline rank, what its devices take at full load beyond idling."""
        return [
            sum(
                number * (device.power_w - device.idle_power_w)
                for device, number in devices_of_runs(self._cluster, candidate.mesh.ranks_of_stage(rank))
            )
            for rank in range(candidate.mesh.pp)
        ]


def active_by_layer_s(candidate: Candidate, tables: Sequence[StageTable]) -> list[FloatArray]:
    """For each pipeline rank ``[mode, layer]``: seconds of a step at full power that a layer makes its devices work.

    Of a layer that several ranks hold, all their seconds together.
    """
    made: dict[StageTable, FloatArray] = {}
    copies = n_copies(candidate.pipelining.schedule)
    for table in tables:
        if table not in made:
            parts = table.parts
            exposed = parts.tp_comm_s + parts.cp_comm_s + parts.dp_comm_s + parts.ep_comm_s
            rerun = [
                row - parts.compute_s - exposed - moves_s if mode is not Recompute.NONE else np.zeros_like(row)
                for mode, row, moves_s in zip(candidate.recompute, table.time_s, parts.moves_s, strict=True)
            ]
            computing = candidate.n_microbatches * (parts.compute_s + np.array(rerun)) + copies * parts.optimizer_s
            working = candidate.n_microbatches * table.time_s + copies * table.extra_s
            made[table] = _active_s(computing, working)
    return [made[table] for table in tables]


def _once_s(candidate: Candidate, table: StageTable, rank: int) -> float:
    """The same of a rank beside its layers: sends, its first bucket, and the host between steps, which counts as computing."""
    # Where a model branches, what a stage sends depends on its borders: nothing is a bound.
    sends_s = table.boundary_s if table.dag is None else 0.0
    working_s = candidate.n_microbatches * sends_s + (table.step_s if rank else 0.0)
    return float(_active_s(np.float64(table.parts.step_host_s), np.float64(working_s)))


def _active_s(computing_s: FloatArray | np.float64, working_s: FloatArray | np.float64) -> FloatArray:
    """Seconds at full power that stand for times of computing, and of computing and communicating together."""
    activity = (COMPUTING_ACTIVITY - COMMUNICATING_ACTIVITY) * computing_s + COMMUNICATING_ACTIVITY * working_s
    return np.asarray(activity, np.float64)


def aim_of(costs: TrainingCosts) -> Aim:
    """Return the aim of a request's objective on its cluster: energy, or the time that all other objectives follow from."""
    request = costs.request
    if request.objective is Objective.ENERGY:
        return LeastEnergy(request, costs, slowest_s=request.longest_step_s)
    return LeastStepTime(costs)


# Members of a family before their tables are made: those with one choice of the main block, and one by one.


@dataclass(frozen=True, slots=True)
class BoundedMembers:
    """Members with one candidate and one choice of the main block, and their bound. A candidate whose ``some_layers`` are
    recomputed has not yet a number of them."""

    bound: float
    candidate: Candidate
    main: tuple[int, ...]
    some_layers: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """A member whose tables are not made yet."""

    candidate: Candidate
    sharding: Sharding
    some_layers: bool
