"""The fields of a plan document: those of a plan and, flat beside them, those of its layout.

They are `meshwright.plan/1` and stay as they are. Only documents have this form; all else takes a `Plan`
(`solver.answer.document`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.units import STRICT_RECORD, Seconds
from meshwright.solver.answer.layouts import (
    EngineLoad,
    GroupShare,
    KindShare,
    PlanSlice,
    PrefillWorkers,
    PromptPhase,
    WholeSequencePipelines,
)
from meshwright.solver.answer.plan import PLAN_SCHEMA, FrontierPoint, Interactivity
from meshwright.solver.answer.predicted import (
    CalibrationUse,
    Certificate,
    Equals,
    Predicted,
    Reason,
    RunnerUp,
    SearchStats,
    Suggestion,
    TimeBreakdown,
)
from meshwright.solver.answer.stage import Axes, Microbatch, OperatorSharding, Stage
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.choices import TpOverlap
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap


@dataclass(frozen=True, slots=True)
class ServingLayout(EngineLoad):
    """Replicas of a serving plan, and the queueing figures at the requested arrival rate."""

    __pydantic_config__ = STRICT_RECORD


@dataclass(frozen=True, slots=True)
class PrefillPool(PrefillWorkers):
    """Workers that only compute prompts, where a plan is disaggregated; the plan's own axes, stages and ``serving`` are then
    those of its decode workers.

    utilisation   share of what the pool can keep up with that arrives
    transfer_s    mean time from the end of a prompt until its keys and values are at a decode worker, waiting included
    """

    __pydantic_config__ = STRICT_RECORD


@dataclass(frozen=True, slots=True)
class WorkerKind(KindShare):
    """One kind of workers of a serving plan that has several, as fields of a plan.

    share            of the arrivals that it takes
    requests_per_s   that it takes of the load which the plan's figures are at
    devices          of all its replicas
    predicted        figures of its own requests and devices
    """

    __pydantic_config__ = STRICT_RECORD

    axes: Axes
    stages: tuple[Stage, ...]
    serving: ServingLayout


@dataclass(frozen=True, slots=True)
class SwitchedPrompts(PromptPhase):
    """The prompts of workers that switch layouts; the plan's own axes, stages and ``serving`` are then of their answers, on the
    same devices.

    to_decode_bytes, to_prefill_bytes   weights that the device which lacks most loads from host memory when layouts change
    to_decode_s, to_prefill_s           how long that takes
    out_token_s, in_token_s             keys and values of a token on their way to host memory, and back
    buffer_tokens                       tokens of prompts whose keys and values a worker's share of host memory holds
    host_bytes                          of a node's memory: the weights, and the buffers of all workers that fit on it
    prefill_share, switching_share      of time: in the layout of prompts, waiting for one included, and in changes
    cycle_s                             mean time from one phase of prompts to the next
    """

    __pydantic_config__ = STRICT_RECORD


@dataclass(frozen=True, slots=True)
class ReplicaPool(WholeSequencePipelines, GroupShare):
    """The replicas of a training plan that lie on one node group: their layout and share of the batch, as fields of a plan.

    sequences     of the global batch that the pool takes
    step_time_s   of its own pipelines, before gradients are exchanged with other pools
    """

    __pydantic_config__ = STRICT_RECORD


@dataclass(frozen=True, slots=True)
class ReplicaShares:
    """The shares of the batch of replicas on different node groups. The plan's own layout is that of the first group's
    replicas.

    sequences     of the global batch that the first group's replicas take
    step_time_s   of their own pipelines
    exchange_s    all-reduce of gradients between the pools, when the slowest is done
    pools         replicas of the other groups, in order
    """

    __pydantic_config__ = STRICT_RECORD

    sequences: int
    step_time_s: Seconds
    exchange_s: Seconds
    pools: tuple[ReplicaPool, ...]


@dataclass(frozen=True)
class _FirstFields:
    """The fields of a plan document before those of its choices: all that it says, it says in order."""

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


@dataclass(frozen=True)
class PlanRecord(MeshChoices, _FirstFields):
    """The fields of a plan document. An infeasible one says its ``reason``; ``stages`` is empty but for a training plan that
    was given and whose figures were predicted, which then exceeds the limit that the reason names.

    ``optimizer`` is the one that was chosen of several, None for the workload's own.
    ``group_order`` names the node groups in the order in which ranks go through them, where it is not the cluster's own;
    ``idle_devices`` says by name of which groups each node leaves devices without ranks, and how many. A group whose nodes
    leave all of theirs is not in the order. ``shares`` is there where each group has replicas of its own. A serving plan of
    several ``kinds`` of workers has ``axes``, ``stages`` and ``serving`` in them alone.
    """

    __pydantic_config__ = STRICT_RECORD

    expert_overlap: ExpertOverlap | None = None
    token_slices: tuple[PlanSlice, ...] = ()
    schedule: str | None = None
    microbatch: Microbatch | None = None
    optimizer: Optimizer | None = None
    serving: ServingLayout | None = None
    prefill: PrefillPool | None = None
    switched: SwitchedPrompts | None = None
    breakdown: TimeBreakdown | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    equals: Equals | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    interactivity: Interactivity | None = None
    reason: Reason | None = None
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()
    group_order: tuple[str, ...] = ()
    idle_devices: Mapping[str, int] = field(default_factory=dict)
    shares: ReplicaShares | None = None
    kinds: tuple[WorkerKind, ...] = ()
    schema: str = PLAN_SCHEMA
