"""Plan: the answer to a request, as one frozen record with a versioned JSON form.

A plan is self-contained: a reader needs nothing but the plan and its request to check it, launch it or compare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from costmodels.memory import Optimizer
from costmodels.units import STRICT_RECORD
from solver.axes import Axes
from solver.choices import TpOverlap
from solver.plan_frontier import FrontierPoint, Interactivity
from solver.plan_slices import PlanSlice
from solver.plan_stage import Microbatch, OperatorSharding, Stage
from solver.reason import UNFINISHED_SEARCH, Reason
from solver.request import PlanRequest, TrainingWorkload

PLAN_SCHEMA = "meshwright.plan/1"


class Status(StrEnum):
    """What the certificate claims."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNDECIDED = "undecided"
    """Nothing: the search was stopped before it found a plan or proved that there is none."""


def status_without_plan(reason: Reason) -> Status:
    """What an answer without a plan claims: that nothing fits, or, of a search that was stopped, nothing at all."""
    return Status.UNDECIDED if reason.constraint == UNFINISHED_SEARCH else Status.INFEASIBLE


@dataclass(frozen=True, slots=True)
class Certificate:
    """How far from optimal the plan can be.

    ``bound`` is a proven lower bound on the predicted objective of every plan in ``space`` under the cost model; it says
    nothing of the cost model's own error, which stands in ``Predicted.bands``. ``objective`` and ``bound`` are in ``unit``,
    smaller is better. For an infeasible request both are None.
    """

    __pydantic_config__ = STRICT_RECORD

    status: Status
    objective: float | None
    bound: float | None
    gap: float | None
    unit: str
    space: str


@dataclass(frozen=True, slots=True)
class Band:
    """Where a predicted figure is expected to fall: the relative error of the calibration behind it, and what that is."""

    __pydantic_config__ = STRICT_RECORD

    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted figures; those that do not go with the workload are None."""

    __pydantic_config__ = STRICT_RECORD

    tokens_per_s: float
    peak_memory_bytes: float
    step_time_s: float | None = None
    mfu: float | None = None
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None
    cost_per_million_tokens: float | None = None
    energy_per_step_j: float | None = None
    energy_per_token_j: float | None = None
    power_w: float | None = None
    bands: Mapping[str, Band] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Where the time of a step goes, in seconds, on the slowest stage's path; the parts add up to the step time."""

    __pydantic_config__ = STRICT_RECORD

    compute_s: float
    recompute_s: float
    tp_comm_s: float
    cp_comm_s: float
    pp_comm_s: float
    dp_comm_s: float
    bubble_s: float
    optimizer_s: float
    ep_comm_s: float = 0.0
    offload_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A plan that lost: its axes, its objective (None when it does not fit at all), and why it lost."""

    __pydantic_config__ = STRICT_RECORD

    summary: str
    objective: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class CalibrationUse:
    """The calibration that a prediction rests on, and its measured error (relative, held-out rows)."""

    __pydantic_config__ = STRICT_RECORD

    id: str
    device: str
    median_error: float
    p95_error: float
    basis: str


@dataclass(frozen=True, slots=True)
class SearchStats:
    """What the search did. ``candidates`` is deterministic; ``seconds`` is CPU time and is not."""

    __pydantic_config__ = STRICT_RECORD

    candidates: int
    evaluated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServingLayout:
    """Replicas of a serving plan, and the queueing figures at the requested arrival rate."""

    __pydantic_config__ = STRICT_RECORD

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int
    utilisation: float
    prefill_time_s: float
    decode_step_s: float
    mean_batch: float


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Workers that only compute prompts, where a plan is disaggregated; the plan's own axes, stages and ``serving`` are then
    those of its decode workers.

    utilisation   share of what the pool can keep up with that arrives
    transfer_s    mean time from the end of a prompt until its keys and values are at a decode worker, waiting included
    """

    __pydantic_config__ = STRICT_RECORD

    workers: int
    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    utilisation: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """One kind of workers of a serving plan that has several, as fields of a plan.

    share            of the arrivals that it takes
    requests_per_s   that it takes of the load which the plan's figures are at
    devices          of all its replicas
    predicted        figures of its own requests and devices
    """

    __pydantic_config__ = STRICT_RECORD

    share: float
    requests_per_s: float
    devices: int
    predicted: Predicted
    axes: Axes
    stages: tuple[Stage, ...]
    serving: ServingLayout


@dataclass(frozen=True, slots=True)
class SwitchedPrompts:
    """How workers that switch layouts compute prompts; the plan's own axes, stages and ``serving`` are then of their
    answers, on the same devices.

    to_decode_bytes, to_prefill_bytes   weights that the device which lacks most loads from host memory when layouts change
    to_decode_s, to_prefill_s           how long that takes
    out_token_s, in_token_s             keys and values of a token on their way to host memory, and back
    buffer_tokens                       tokens of prompts whose keys and values a worker's share of host memory holds
    host_bytes                          of a node's memory: the weights, and the buffers of all workers that fit on it
    prefill_share, switching_share      of time: in the layout of prompts, waiting for one included, and in changes
    cycle_s                             mean time from one phase of prompts to the next
    """

    __pydantic_config__ = STRICT_RECORD

    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    to_decode_bytes: float
    to_prefill_bytes: float
    to_decode_s: float
    to_prefill_s: float
    out_token_s: float
    in_token_s: float
    buffer_tokens: int
    host_bytes: float
    prefill_share: float
    switching_share: float
    cycle_s: float


@dataclass(frozen=True, slots=True)
class ReplicaPool:
    """The replicas of a training plan that lie on one node group: their layout and share of the batch, as fields of a plan.

    sequences     of the global batch that the pool takes
    step_time_s   of its own pipelines, before gradients are exchanged with other pools
    """

    __pydantic_config__ = STRICT_RECORD

    group: str
    sequences: int
    step_time_s: float
    axes: Axes
    stages: tuple[Stage, ...]
    shardings: tuple[OperatorSharding, ...]
    sequence_parallel: bool
    schedule: str
    microbatch: Microbatch
    tp_overlap: TpOverlap = TpOverlap.EXPOSED


@dataclass(frozen=True, slots=True)
class ReplicaShares:
    """How replicas on different node groups share the batch. The plan's own layout is that of the first group's replicas.

    sequences     of the global batch that the first group's replicas take
    step_time_s   of their own pipelines
    exchange_s    all-reduce of gradients between the pools, when the slowest is done
    pools         replicas of the other groups, in order
    """

    __pydantic_config__ = STRICT_RECORD

    sequences: int
    step_time_s: float
    exchange_s: float
    pools: tuple[ReplicaPool, ...]


@dataclass(frozen=True)
class Plan:
    """The answer. For an infeasible request ``stages`` is empty and ``reason`` says why.

    ``optimizer`` is the one that was chosen of several, None for the workload's own.
    ``group_order`` names the node groups in the order in which ranks go through them, where it is not the cluster's own;
    ``idle_devices`` says by name of which groups each node leaves devices without ranks, and how many. A group whose nodes
    leave all of theirs is not in the order. ``shares`` is there where each group has replicas of its own. A serving plan of
    several ``kinds`` of workers has ``axes``, ``stages`` and ``serving`` in them alone.
    """

    __pydantic_config__ = STRICT_RECORD

    kind: Literal["training", "serving"]
    feasible: bool
    certificate: Certificate
    devices: int
    search: SearchStats
    calibration: tuple[CalibrationUse, ...]
    model: str = ""
    digest: str = ""
    predicted: Predicted | None = None
    axes: Axes | None = None
    stages: tuple[Stage, ...] = ()
    shardings: tuple[OperatorSharding, ...] = ()
    sequence_parallel: bool = False
    tp_overlap: TpOverlap = TpOverlap.EXPOSED
    token_slices: tuple[PlanSlice, ...] = ()
    schedule: str | None = None
    microbatch: Microbatch | None = None
    optimizer: Optimizer | None = None
    serving: ServingLayout | None = None
    prefill: PrefillPool | None = None
    switched: SwitchedPrompts | None = None
    breakdown: TimeBreakdown | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    frontier: tuple[FrontierPoint, ...] = ()
    interactivity: Interactivity | None = None
    reason: Reason | None = None
    notes: tuple[str, ...] = ()
    group_order: tuple[str, ...] = ()
    idle_devices: Mapping[str, int] = field(default_factory=dict)
    shares: ReplicaShares | None = None
    kinds: tuple[WorkerKind, ...] = ()
    schema: str = PLAN_SCHEMA

    def trained_by(self, workload: TrainingWorkload) -> Optimizer:
        """The optimizer of a training plan: the chosen one, else the workload's."""
        return self.optimizer or workload.optimizer

    def laid_out_as(self, pool: ReplicaPool) -> Plan:
        """The plan with a pool's layout in the place of the first group's; ranks stay those of the cluster."""
        return replace(
            self,
            axes=pool.axes,
            stages=pool.stages,
            shardings=pool.shardings,
            sequence_parallel=pool.sequence_parallel,
            schedule=pool.schedule,
            microbatch=pool.microbatch,
            tp_overlap=pool.tp_overlap,
        )

    def of_kind(self, kind: WorkerKind) -> Plan:
        """The plan of one kind of workers by itself; ranks stay those of the cluster."""
        return replace(
            self,
            devices=kind.devices,
            predicted=kind.predicted,
            axes=kind.axes,
            stages=kind.stages,
            serving=kind.serving,
            kinds=(),
        )

    @property
    def is_decided(self) -> bool:
        """Whether the answer would be the same with more time to search, as far as yes or no goes."""
        return self.reason is None or self.reason.constraint != UNFINISHED_SEARCH


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request and the plan that answers it: what a plan document holds."""

    plan: Plan
    request: PlanRequest
