"""What a training step costs: the tables of a stage, time and memory of a decided plan, and where its time and energy go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, Device, GroupTopology
from meshwright.costmodels.cluster.rank_runs import BusyTime, RankRuns, device_energy_j
from meshwright.costmodels.model.dims import BATCH, SEQ, SliceShares
from meshwright.costmodels.model.documents import flops_of_documents
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.pipeline import held_passes, held_tokens, n_copies, peak_in_flight, positions_of_ranks
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.blocks.mesh import StageTopology
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.layer_dag import LayerDag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.training.space.candidates import Candidate

# Cost tables of a pipeline stage: the records that the search, the partition and the report share.

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StageKind:
    """The properties that distinguish one stage position from another: its devices, and the topology of its axes.

    ``devices`` has more than one entry where a stage spans node groups; the slowest then decides each time and the
    smallest memory the capacity. ``borders`` are the links to the stage before and to the one behind; at an end of the
    pipeline, the only one twice.
    """

    devices: tuple[Device, ...]
    topology: StageTopology
    borders: tuple[GroupTopology, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Kinds are keys wherever costs of stages are kept, and the hash is long in the making.
        return hash((self.devices, self.topology, self.borders))


Sharding = tuple[tuple[int, ...], ...]
"""For each distinct block, the strategy index of each of its operators."""


@dataclass(frozen=True, eq=False)
class StageTable:
    """Costs of every layer on one kind of stage. Rows are the candidate's recompute modes, columns the layers.

    time_s             steady time of a micro-batch (forward, backward, recomputation, exposed communication)
    activation_bytes   kept for each micro-batch in flight
    transient_bytes    lives only while the layer runs: re-made activations, gathered weights, loss buffers
    static_bytes       weights, gradients, optimizer state, and of token slices gradients of keys and values (by layer)
    extra_s            what a step adds once: exposed gradient reduction and parameter gather, optimizer (by layer)
    boundary_s         sending to the next stage and back, each micro-batch, as far as it is not hidden
    beside_s           sending that goes on beside the compute of other micro-batches: a stage takes no less time, and each
                       micro-batch waits for it on its way through the pipeline
    step_s             what a step adds once to a stage after the first: its own first bucket, which nothing hides, and
                       the host's work between steps (those of the model's first stage are in its first layer's extra_s)
    capacity_bytes     bytes of tensors that fit with the chance that the request asks for: usable memory less its margin, the
                       framework's overhead and what their allocator adds
    usable_bytes       memory of the device that the request lets plans use
    law                how much more than is counted a run takes; activation, side and transient bytes have its factors
    waiting            how long the schedule waits, over 1F1B (`costmodels.pipeline.waiting_ratio`)
    slices             what each token slice takes of a micro-batch's time in all layers; None: sequences pass whole
    dag                which layer reads which, of a model that branches; boundary_s and beside_s are then of each tensor that
                       goes on
    side_bytes         then kept for each micro-batch in flight of each tensor that a stage reads beside its layers' entries
    """

    time_s: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    boundary_s: float
    step_s: float
    capacity_bytes: float
    usable_bytes: float
    law: MemoryLaw
    parts: StageParts
    waiting: float = 1.0
    beside_s: float = 0.0
    slices: SliceShares | None = None
    dag: LayerDag | None = None
    side_bytes: float = 0.0

    def of_first_mode(self) -> StageTable:
        """The table of the first of its recompute modes alone."""
        parts = replace(self.parts, moves_s=self.parts.moves_s[:1], host_activation_bytes=self.parts.host_activation_bytes[:1])
        return replace(
            self,
            time_s=self.time_s[:1],
            activation_bytes=self.activation_bytes[:1],
            transient_bytes=self.transient_bytes[:1],
            parts=parts,
        )


@dataclass(frozen=True, eq=False)
class StageParts:
    """The same costs taken apart, by layer, for the report; and what lies in host memory, a device's share of which is
    ``host_capacity_bytes`` beside ``host_buffer_bytes``, through which goes what lies on the node's drives.

    first_bucket_s                   [layer]: what a step adds once to a stage that begins with the layer (`StageTable.step_s`)
    moves_s, host_activation_bytes   [mode, layer]: time of moving activations that nothing hides, and their bytes
    slice_gradients_bytes            [layer]: gradients of keys and values that wait for earlier slices, of one micro-batch
    beside_state_bytes               [layer]: what an implementation keeps beside the training state (`bytes_beside_state`)
    fill_s                           once a step: sends by which a pipeline of several parts a rank fills up, in `extra_s`
    """

    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    forward_s: FloatArray
    compute_s: FloatArray
    tp_comm_s: FloatArray
    cp_comm_s: FloatArray
    dp_comm_s: FloatArray
    ep_comm_s: FloatArray
    optimizer_s: FloatArray
    step_host_s: float
    first_bucket_s: FloatArray
    overhead_bytes: float
    moves_s: FloatArray
    host_static_bytes: FloatArray
    host_activation_bytes: FloatArray
    host_buffer_bytes: float
    host_capacity_bytes: float
    nvme_bytes: FloatArray
    nvme_capacity_bytes: float
    slice_gradients_bytes: FloatArray
    beside_state_bytes: FloatArray
    fill_s: float = 0.0


_TIMED_BY_LAYER = ("compute_s", "tp_comm_s", "cp_comm_s", "dp_comm_s", "ep_comm_s")
"""The parts of a layer's time, nothing recomputed or moved."""


def max_table(tables: list[StageTable]) -> StageTable:
    """The table of a stage on several devices: each entry the worst of them, parts those of the slowest; those of a
    layer's time those of the device that is slowest in the layer, so that they add up to the entry."""
    # By what does not depend on the recompute modes that a table has rows of: a plan is predicted with its own alone.
    slowest = max(tables, key=lambda table: float(table.parts.compute_s.sum()))
    timed = {name: np.array([getattr(table.parts, name) for table in tables]) for name in _TIMED_BY_LAYER}
    in_layer = np.argmax(sum(timed.values()), axis=0)
    return StageTable(
        time_s=np.max([t.time_s for t in tables], axis=0),
        activation_bytes=np.max([t.activation_bytes for t in tables], axis=0),
        transient_bytes=np.max([t.transient_bytes for t in tables], axis=0),
        static_bytes=np.max([t.static_bytes for t in tables], axis=0),
        extra_s=np.max([t.extra_s for t in tables], axis=0),
        boundary_s=max(t.boundary_s for t in tables),
        step_s=max(t.step_s for t in tables),
        capacity_bytes=min(t.capacity_bytes for t in tables),
        usable_bytes=min(t.usable_bytes for t in tables),
        law=slowest.law,
        parts=replace(
            slowest.parts,
            **{name: np.take_along_axis(of_devices, in_layer[None], axis=0)[0] for name, of_devices in timed.items()},
            first_bucket_s=np.max([t.parts.first_bucket_s for t in tables], axis=0),
            host_capacity_bytes=min(t.parts.host_capacity_bytes for t in tables),
            nvme_capacity_bytes=min(t.parts.nvme_capacity_bytes for t in tables),
        ),
        waiting=slowest.waiting,
        beside_s=max(t.beside_s for t in tables),
        slices=slowest.slices,
        dag=slowest.dag,
        side_bytes=max(t.side_bytes for t in tables),
    )


# The time and memory of a decision: of every stage, and of the whole step.

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageSpan:
    """Layers first .. last of a part of the model, and its recompute mode.

    ``members`` are the part's layers, ascending, where it may leave out some of them: a stage of a model that branches. Layers
    from ``kept_from`` on are not recomputed, where that is not None.
    """

    first: int
    last: int
    recompute: Recompute
    members: tuple[int, ...] = ()
    kept_from: int | None = None

    @property
    def layers(self) -> slice | list[int]:
        """The layers as an index of arrays."""
        return list(self.members) if self.members else slice(self.first, self.last + 1)

    @property
    def numbers(self) -> Sequence[int]:
        """The layers, ascending."""
        return self.members or range(self.first, self.last + 1)

    def of_mode(self, modes: Sequence[Recompute]) -> tuple[int | IntArray, slice | list[int] | IntArray]:
        """The layers under their modes as an index of arrays [mode, layer]."""
        mode = modes.index(self.recompute)
        if self.kept_from is None:
            return mode, self.layers
        layers = np.arange(self.first, self.last + 1)
        return np.where(layers < self.kept_from, mode, modes.index(Recompute.NONE)), layers


@dataclass(frozen=True)
class Decision:
    """A fully decided plan: outer candidate, sharding of each distinct block, and the parts that the model is cut in.

    Where each rank holds one part, parts are stages; else `spans_of_rank` says which of them a rank holds.
    """

    candidate: Candidate
    sharding: Sharding
    spans: tuple[StageSpan, ...]

    def spans_of_rank(self, rank: int) -> tuple[StageSpan, ...]:
        """Parts of the model on a pipeline rank, in order of the model."""
        return tuple(self.spans[position] for position in positions(self.candidate)[rank])

    @property
    def n_copies(self) -> int:
        """Ranks that hold each part; a micro-batch passes one of them."""
        return n_copies(self.candidate.pipelining.schedule)


@dataclass(frozen=True)
class StageCost:
    """One pipeline rank of a decision. Times in seconds, memory in bytes on its fullest device.

    ``sends_s`` of the time is passing activations and gradients on; ``hidden_s`` more of it goes on beside compute.
    """

    time_s: float
    sends_s: float
    hidden_s: float
    extra_s: float
    in_flight: float
    static_bytes: float
    activation_bytes: float
    transient_bytes: float
    overhead_bytes: float
    capacity_bytes: float
    usable_bytes: float
    law: MemoryLaw
    host_bytes: float = 0.0
    host_capacity_bytes: float = math.inf
    nvme_bytes: float = 0.0
    nvme_capacity_bytes: float = math.inf

    @property
    def need_bytes(self) -> float:
        """Bytes of tensors at their most, those of activations and transients with the law's factors: neither what their
        allocator adds nor the framework's overhead is in it."""
        return self.static_bytes + self.activation_bytes + self.transient_bytes

    @property
    def device_bytes(self) -> float:
        """Memory of the fullest device, median."""
        return self.law.device_bytes(self.need_bytes, overhead_bytes=self.overhead_bytes)

    @property
    def fits(self) -> bool:
        """True if the stage fits its devices, and their share of host memory and drives."""
        return self.need_bytes <= self.capacity_bytes and self.fits_away

    @property
    def fits_away(self) -> bool:
        """True if host and drives hold what was moved there."""
        return self.host_bytes <= self.host_capacity_bytes and self.nvme_bytes <= self.nvme_capacity_bytes


@dataclass(frozen=True)
class DecisionCost:
    """All stages, and the time of a step."""

    stages: tuple[StageCost, ...]
    step_time_s: float

    @property
    def peak_bytes(self) -> float:
        """Memory in use on the fullest device, the framework's overhead included, median."""
        return max(stage.device_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """True if every stage fits its devices."""
        return all(stage.fits for stage in self.stages)


def positions(candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """Parts of the model on each pipeline rank."""
    return positions_of_ranks(candidate.pipelining.schedule, candidate.mesh.pp, candidate.pipelining.chunks)


def in_flight(candidate: Candidate) -> tuple[float, ...]:
    """Micro-batches whose activations each rank holds at once."""
    choice = candidate.pipelining
    if choice.slices:
        held, of_one = units_in_flight(candidate)
        return tuple(units / of_one for units in held)
    # A forward that runs beside a backward takes memory before that frees its own.
    beside = 0.0 if candidate.expert_overlap is None else 1 / choice.chunks
    peak = peak_in_flight(choice.schedule, candidate.mesh.pp, candidate.n_microbatches, n_chunks=max(2, choice.chunks))
    return tuple(each + beside for each in peak)


def units_in_flight(candidate: Candidate) -> tuple[tuple[int, ...], int]:
    """Return the whole units that each rank with one part holds at once, and the units of a micro-batch: one, or one a token
    slice."""
    choice, m = candidate.pipelining, candidate.n_microbatches
    if not choice.slices:
        return tuple(int(held) for held in in_flight(candidate)), 1
    return held_tokens(choice.schedule, candidate.mesh.pp, m, choice.slices), sum(choice.slices)


def held_by_part(candidate: Candidate) -> tuple[npt.NDArray[np.int64] | npt.NDArray[np.float64], ...]:
    """For each rank ``[moment, part]`` the passes of each of its parts that it holds at once, fractions where sequences pass in
    slices; see `held_passes`."""
    if candidate.pipelining.slices:
        return tuple(np.array([[held]]) for held in in_flight(candidate))
    if candidate.pipelining.one_part_a_rank:
        return tuple(np.array([[held]], np.int64) for held in in_flight(candidate))
    choice = candidate.pipelining
    held = held_passes(choice.schedule, candidate.mesh.pp, candidate.n_microbatches, choice.chunks)
    if candidate.expert_overlap is None:
        return held
    one_more = np.eye(choice.chunks, dtype=np.int64)
    return tuple((rows[:, None] + one_more).reshape(-1, choice.chunks) for rows in held)


def evaluate_decision(decision: Decision, tables: Sequence[StageTable]) -> DecisionCost:
    """Cost of a decision; ``tables`` are those of its pipeline ranks, first to last."""
    candidate = decision.candidate
    held = held_by_part(candidate)
    stages = []
    done: list[int] = []
    for rank, table in enumerate(tables):
        spans = decision.spans_of_rank(rank)
        under = [span.of_mode(candidate.recompute) for span in spans]
        kept = [float(table.activation_bytes[layers].sum()) for layers in under]
        sends_s, beside_s = table.boundary_s, table.beside_s
        if table.dag is not None:
            mine = spans[0].numbers
            done += mine
            n_sent = max(1, table.dag.sent_after(done))
            sends_s, beside_s = sends_s * n_sent, beside_s * n_sent
            kept[0] += table.side_bytes * table.dag.held_sides(mine)
        passes_s = sum(float(table.time_s[layers].sum()) for layers in under)
        passes_s /= decision.n_copies
        hidden_s = min(beside_s, passes_s + sends_s)
        sends_s += beside_s - hidden_s
        stages.append(
            StageCost(
                time_s=passes_s + sends_s,
                sends_s=sends_s,
                hidden_s=hidden_s,
                extra_s=sum(float(table.extra_s[span.layers].sum()) for span in spans) + (table.step_s if rank else 0.0),
                in_flight=float(held[rank].sum(axis=1).max()) / candidate.pipelining.chunks,
                static_bytes=sum(float(table.static_bytes[span.layers].sum()) for span in spans),
                activation_bytes=float((held[rank] @ np.array(kept)).max()),
                transient_bytes=max(float(table.transient_bytes[layers].max()) for layers in under),
                overhead_bytes=table.parts.overhead_bytes,
                capacity_bytes=table.capacity_bytes,
                usable_bytes=table.usable_bytes,
                law=table.law,
                host_bytes=_host_bytes(decision, rank, table, held[rank]),
                host_capacity_bytes=table.parts.host_capacity_bytes,
                nvme_bytes=sum(float(table.parts.nvme_bytes[span.layers].sum()) for span in spans),
                nvme_capacity_bytes=table.parts.nvme_capacity_bytes,
            )
        )
    total = objective_s(
        [s.time_s for s in stages],
        [s.extra_s for s in stages],
        candidate.n_microbatches,
        waiting=tables[0].waiting,
        hidden_s=[s.hidden_s for s in stages],
    )
    return DecisionCost(tuple(stages), total)


def _host_bytes(
    decision: Decision, rank: int, table: StageTable, held: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> float:
    """Return the bytes that a device of a rank has in host memory at most; ``held`` are passes of its parts at once, by
    moment."""
    if decision.candidate.offload.is_nothing:
        return 0.0
    spans, parts = decision.spans_of_rank(rank), table.parts
    modes = decision.candidate.recompute
    moved = [float(parts.host_activation_bytes[span.of_mode(modes)].sum()) for span in spans]
    static = sum(float(parts.host_static_bytes[span.layers].sum()) for span in spans)
    return static + float((held @ np.array(moved)).max())


# Where the time of a step goes.


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
    if spans[0].recompute is Recompute.NONE and not decision.candidate.offload.is_nothing:
        # Of unlike devices one may be the slowest in a layer by its moves alone: all of that time is moving.
        moves, rerun = moves + rerun, 0.0
    return TimeBreakdown(
        compute_s=m * compute,
        recompute_s=m * (rerun if spans[0].recompute is not Recompute.NONE else 0.0),
        tp_comm_s=m * tp,
        cp_comm_s=m * cp,
        pp_comm_s=m * stage.sends_s + parts.fill_s,
        dp_comm_s=m * dp + max(0.0, stage.extra_s - optimizer - parts.fill_s),
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
