"""The forms of a plan: which devices do what, as one type a form, on which consumers match. Training plans are `Uniform`,
`ByGroup` or `Stagewise`; serving plans `Replicas`, `Pools`, `Switched` or `Kinds`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.units import STRICT_RECORD, PerSecond, Seconds
from meshwright.solver.answer.predicted import Predicted, TimeBreakdown
from meshwright.solver.answer.stage import Axes, DeviceRange, Microbatch, OperatorSharding, Stage
from meshwright.solver.problem.carried_choices import MeshChoices
from meshwright.solver.problem.choices import TpOverlap
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap

Record = TypeVar("Record")


def written_as(name: str) -> Mapping[str, str]:
    """Return the metadata of a part of a serving layout that stands in plan documents under another name than its own."""
    return {"written_as": name}


def named(record: Any, *, but: str = "") -> dict[str, Any]:
    """The fields of a record by their names."""
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name != but}


def record_as(form: type[Record], given: Any, **others: Any) -> Record:
    """The record of a type from one that has fields of the same names, and from others."""
    wanted = {each.name for each in fields(form)}  # type: ignore[arg-type]
    return form(**{name: value for name, value in named(given).items() if name in wanted} | others)


# Equal workers of a serving plan: what every form of one is made of.


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers in one layout.

    count                                  of them
    max_num_seqs, max_num_batched_tokens   limits of the batch of one of them
    """

    count: int
    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def device_ranges(self) -> tuple[DeviceRange, ...]:
        """Devices that the stages list."""
        return tuple(devices for stage in self.stages for devices in stage.devices)


# Token slices as a plan states them.


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """A token slice: its tokens of a sequence, and the parts of a micro-batch's time on a stage that its passes take."""

    __pydantic_config__ = STRICT_RECORD

    tokens: int
    forward: float
    backward: float


# Without slots, and what all plans say first: the fields of a document are in this order.
@dataclass(frozen=True)
class _EqualPipelines:
    """Equal pipelines, one a replica."""

    axes: Axes
    stages: tuple[Stage, ...]
    shardings: tuple[OperatorSharding, ...]
    sequence_parallel: bool
    schedule: str
    microbatch: Microbatch
    tp_overlap: TpOverlap = TpOverlap.EXPOSED


@dataclass(frozen=True)
class WholeSequencePipelines(MeshChoices, _EqualPipelines):
    """Equal pipelines, one a replica, that sequences pass whole.

    shardings           of operators over tp, the same in all stages; empty where stages differ and say their own
    sequence_parallel   what the ranks of tp do not split over heads or columns, they split over the sequence
    expert_overlap      how exchanges with experts run, None as the schedule does
    """

    expert_overlap: ExpertOverlap | None = None


@dataclass(frozen=True)
class Pipelines(WholeSequencePipelines):
    """The same, which sequences pass in parts where there are ``token_slices``."""

    token_slices: tuple[PlanSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """The parts that every form of a training plan has besides its pipelines.

    optimizer      the one that was chosen of several, None for the workload's own
    group_order    node groups in the order in which ranks go through them, where it is not the cluster's own
    idle_devices   how many devices of each node have no ranks, by node group
    breakdown      where the time of a step goes
    """

    optimizer: Optimizer | None = None
    group_order: tuple[str, ...] = ()
    idle_devices: Mapping[str, int] = field(default_factory=dict)
    breakdown: TimeBreakdown | None = None


@dataclass(frozen=True, slots=True)
class Uniform:
    """Training: all stages have the same degrees, sharding and places of state."""

    pipelines: Pipelines
    placement: Placement


@dataclass(frozen=True, slots=True)
class Stagewise:
    """Training: each stage has degrees, sharding and places of state of its own.

    ``pipelines`` are those of the whole; their axes and micro-batch are the first stage's, their stages say the rest.
    """

    pipelines: Pipelines
    placement: Placement


# Without slots, so that a record can have its fields beside those of pipelines.
@dataclass(frozen=True)
class GroupShare:
    """The part that one node group has in a training plan.

    sequences     of the global batch that its replicas take
    step_time_s   of their own pipelines, before gradients are exchanged with other groups
    """

    group: str
    sequences: int
    step_time_s: Seconds


@dataclass(frozen=True)
class GroupReplicas(GroupShare):
    """The replicas of a training plan on one node group."""

    pipelines: Pipelines


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Training: each node group has replicas of its own, which share the batch.

    groups       replicas of each node group, in the cluster's order
    exchange_s   all-reduce of gradients between the groups, when the slowest is done
    """

    groups: tuple[GroupReplicas, ...]
    exchange_s: Seconds
    placement: Placement


class OfWorkers(ABC):
    """A layout of a serving plan: workers, and which of them answer. Consumers that show all forms alike ask this alone."""

    __slots__ = ()

    @property
    @abstractmethod
    def all_workers(self) -> tuple[Workers, ...]:
        """All workers, those that compute prompts first; workers that switch layouts once for each."""

    @property
    def answering(self) -> Replicas | None:
        """The workers that answer, where there is one kind of them."""
        return None

    @property
    def prompting(self) -> Workers | None:
        """The workers in the layout in which they compute prompts, where that is another one."""
        return None

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the arrivals that the workers take, where each kind of them has one; else empty."""
        return ()

    @property
    def predicted_apart(self) -> Mapping[str, Predicted]:
        """Figures of parts of the plan, by their places in it."""
        return {}


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Batch limits of an engine's replicas, and its queue at the requested arrival rate."""

    replicas: int
    max_num_seqs: int
    max_num_batched_tokens: int
    utilisation: float
    prefill_time_s: Seconds
    decode_step_s: Seconds
    mean_batch: float


@dataclass(frozen=True, slots=True)
class Replicas(OfWorkers):
    """Serving: equal replicas that compute prompts and answers."""

    axes: Axes
    stages: tuple[Stage, ...]
    load: EngineLoad

    @property
    def workers(self) -> Workers:
        """The replicas as equal workers."""
        load = self.load
        return Workers(load.replicas, self.axes, self.stages, load.max_num_seqs, load.max_num_batched_tokens)

    @property
    def all_workers(self) -> tuple[Workers, ...]:
        """The replicas."""
        return (self.workers,)

    @property
    def answering(self) -> Replicas:
        """The replicas."""
        return self


@dataclass(frozen=True, slots=True)
class PrefillWorkers:
    """Workers that only compute prompts.

    utilisation   share of what they can keep up with that arrives
    transfer_s    mean time from the end of a prompt until its keys and values are at a decode worker, waiting included
    """

    workers: int
    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    utilisation: float
    transfer_s: Seconds


@dataclass(frozen=True, slots=True)
class Pools(OfWorkers):
    """Serving: a pool of workers computes prompts, another one answers."""

    prefill: PrefillWorkers
    decode: Replicas

    @property
    def prefill_workers(self) -> Workers:
        """Those that compute prompts."""
        pool = self.prefill
        return Workers(pool.workers, pool.axes, pool.stages, pool.max_num_seqs, pool.max_num_batched_tokens)

    @property
    def decode_workers(self) -> Workers:
        """Those that answer."""
        return self.decode.workers

    @property
    def all_workers(self) -> tuple[Workers, ...]:
        """Both pools."""
        return self.prefill_workers, self.decode_workers

    @property
    def answering(self) -> Replicas:
        """The decode workers."""
        return self.decode

    @property
    def prompting(self) -> Workers:
        """The prefill workers."""
        return self.prefill_workers


@dataclass(frozen=True, slots=True)
class PromptPhase:
    """The prompt phase of workers that switch layouts.

    to_decode_bytes, to_prefill_bytes   weights that the device which lacks most loads from host memory when layouts change
    to_decode_s, to_prefill_s           how long that takes
    out_token_s, in_token_s             keys and values of a token on their way to host memory, and back
    buffer_tokens                       tokens of prompts whose keys and values a worker's share of host memory holds
    host_bytes                          of a node's memory: the weights, and the buffers of all workers that fit on it
    prefill_share, switching_share      of time: in the layout of prompts, waiting for one included, and in changes
    cycle_s                             mean time from one phase of prompts to the next
    """

    axes: Axes
    stages: tuple[Stage, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    to_decode_bytes: float
    to_prefill_bytes: float
    to_decode_s: Seconds
    to_prefill_s: Seconds
    out_token_s: Seconds
    in_token_s: Seconds
    buffer_tokens: int
    host_bytes: float
    prefill_share: float
    switching_share: float
    cycle_s: Seconds


@dataclass(frozen=True, slots=True)
class Switched(OfWorkers):
    """Serving: each worker computes prompts in one layout and answers in another, on the same devices."""

    prompts: PromptPhase = field(metadata=written_as("switched"))
    answers: Replicas

    @property
    def prefill_workers(self) -> Workers:
        """The workers while they compute prompts."""
        phase = self.prompts
        count = self.answers.load.replicas
        return Workers(count, phase.axes, phase.stages, phase.max_num_seqs, phase.max_num_batched_tokens)

    @property
    def decode_workers(self) -> Workers:
        """The same workers while they answer."""
        return self.answers.workers

    @property
    def all_workers(self) -> tuple[Workers, ...]:
        """The workers in both layouts."""
        return self.prefill_workers, self.decode_workers

    @property
    def answering(self) -> Replicas:
        """The workers in their layout of answers."""
        return self.answers

    @property
    def prompting(self) -> Workers:
        """The workers in their layout of prompts."""
        return self.prefill_workers


@dataclass(frozen=True, slots=True)
class KindShare:
    """The part that one kind of workers has in a serving plan.

    share            of the arrivals that it takes
    requests_per_s   that it takes of the load which the plan's figures are at
    devices          of all its replicas
    predicted        figures of its own requests and devices
    """

    share: float
    requests_per_s: PerSecond
    devices: int
    predicted: Predicted


@dataclass(frozen=True, slots=True)
class WorkerKind(KindShare):
    """One kind of workers of a serving plan that has several."""

    replicas: Replicas


@dataclass(frozen=True, slots=True)
class Kinds(OfWorkers):
    """Serving: several kinds of workers beside each other, each with a share of the arrivals."""

    kinds: tuple[WorkerKind, ...]

    @property
    def all_workers(self) -> tuple[Workers, ...]:
        """The workers of each kind."""
        return tuple(kind.replicas.workers for kind in self.kinds)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the arrivals of each kind."""
        return tuple(kind.share for kind in self.kinds)

    @property
    def predicted_apart(self) -> Mapping[str, Predicted]:
        """Figures of each kind."""
        return {f"kinds[{index}]": kind.predicted for index, kind in enumerate(self.kinds)}


TrainingLayout = Uniform | ByGroup | Stagewise
ServingLayout = Replicas | Pools | Kinds | Switched
"""Forms of serving plans in the order in which they are searched."""

Layout = TrainingLayout | ServingLayout
