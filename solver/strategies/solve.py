"""Sharding a whole graph of operators over an n-D mesh: one strategy for each, with a certified bound.

First without regard to memory: the folded graph of a model is nearly series-parallel and solved exactly. Where that answer
does not fit, the engine solves the problem with live ranges under the limit. The whole model of a training request is such a
graph, for each number of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import BATCH
from meshwright.solver.control import OnProgress
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.sharding_problem.problem import FORBIDDEN, ShardingProblem, offsets_of
from meshwright.solver.sharding_problem.solve import SolveStatus, solve
from meshwright.solver.sharding_problem.work import WorkStop
from meshwright.solver.strategies.device_mesh import DeviceMesh
from meshwright.solver.strategies.graph_costs import NS_PER_S, GraphCosts, OperatorChoice, best_storages, by_storage
from meshwright.solver.strategies.layer_costs import Bisection, LayerCosts
from meshwright.solver.strategies.operator_graph import Ties, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.strategy import WHOLE
from meshwright.solver.training.space.implementation import implementation_of


@dataclass(frozen=True)
class ModelSharding:
    """The best sharding over all numbers of micro-batches that divide the global batch.

    status          optimal, feasible, infeasible (none fits) or unknown (stopped before one was found)
    best            None where none was found; its ``bound_s`` is of its own number of micro-batches
    bound_s         proven least time of a step over all of them; None for an infeasible request
    memory_bytes       of a device that may be in use by the median, so that more is with the chance that the request allows
    peak_bytes         median memory of a device, the framework's included; None where none was found
    least_peak_bytes   where nothing fits: the least that the fastest sharding of some number of micro-batches needs
    """

    status: SolveStatus
    microbatches: int | None
    costs: GraphCosts | None
    best: GraphSharding | None
    bound_s: float | None
    memory_bytes: float
    peak_bytes: float | None
    least_peak_bytes: float | None

    @property
    def gap(self) -> float | None:
        """(step - bound) / step; None without an answer."""
        if self.best is None or self.best.step_s is None or self.bound_s is None:
            return None
        return (self.best.step_s - self.bound_s) / self.best.step_s if self.best.step_s > 0 else 0.0


def shard_model(
    request: TrainingRequest,
    mesh: DeviceMesh,
    *,
    ties: Ties,
    stop: WorkStop,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> ModelSharding:
    """The fastest sharding of a request's model over a mesh, nothing recomputed, each device within its memory.

    Raises ModelError for a model that is no chain of blocks, WorkloadError for packed documents and constraints.
    """
    workload = request.workload
    if workload.documents is not None:
        raise WorkloadError("shardings are not priced under masks of documents", given="workload.lengths", allowed="without it")
    if request.search.constraints:
        raise WorkloadError("constraints are of plans, not of shardings", given="search.constraints", allowed="without them")
    law, risk = implementation_of(workload, request.search).memory, request.search.risk
    usable_bytes = mesh.device.memory_bytes * (1.0 - request.cluster.memory_reserve)
    best: tuple[GraphSharding, GraphCosts] | None = None
    bounds: list[float] = []
    peaks: list[float] = []
    is_decided = True
    for microbatches in _divisors(workload.global_batch):
        if stop():
            bounds.append(0.0)
            is_decided = False
            break
        costs = model_costs(request, workload, mesh, ties, microbatches)
        overhead_bytes = costs.overhead_bytes
        room_bytes = law.counted_bytes(usable_bytes, overhead_bytes=overhead_bytes, risk=risk)
        if isinstance(costs, LayerCosts):
            known: tuple[OperatorChoice, ...] | None = None
            faster_s = math.inf if best is None or best[0].step_s is None else best[0].step_s
            if ties is Ties.NONE:
                # What is free to differ is never worse than what is not.
                tied = model_costs(request, workload, mesh, Ties.EQUAL_BLOCKS, microbatches)
                assert isinstance(tied, LayerCosts), "the same model"
                together = shard_layers(tied, memory_bytes=room_bytes, stop=stop, seed=seed).choices
                known = None if together is None else tuple(together[index] for index in tied.folding.class_of)
            found = shard_layers(
                costs, memory_bytes=room_bytes, stop=stop, seed=seed, progress=progress, known=known, faster_s=faster_s
            )
        else:
            found = shard_graph(costs, memory_bytes=room_bytes, stop=stop, seed=seed, progress=progress)
        if found.fastest_peak_bytes is not None:
            peaks.append(law.device_bytes(found.fastest_peak_bytes, overhead_bytes=overhead_bytes))
        if found.status is not SolveStatus.INFEASIBLE:
            bounds.append(found.bound_s or 0.0)
            is_decided &= found.status is not SolveStatus.UNKNOWN
        if found.step_s is not None and (best is None or best[0].step_s is None or found.step_s < best[0].step_s):
            best = found, costs
    memory_bytes = usable_bytes / law.margin(risk)
    if best is None:
        status = SolveStatus.INFEASIBLE if is_decided else SolveStatus.UNKNOWN
        bound_s = None if is_decided else min(bounds, default=0.0)
        return ModelSharding(status, None, None, None, bound_s, memory_bytes, None, min(peaks, default=None))
    sharding, costs = best
    assert sharding.step_s is not None and sharding.peak_bytes is not None, "only shardings that were found are kept"
    bound_s = min(*bounds, sharding.step_s)
    status = SolveStatus.OPTIMAL if bound_s == sharding.step_s else SolveStatus.FEASIBLE
    peak_bytes = law.device_bytes(sharding.peak_bytes, overhead_bytes=costs.overhead_bytes)
    return ModelSharding(status, costs.step.microbatches, costs, sharding, bound_s, memory_bytes, peak_bytes, None)


def model_costs(
    request: TrainingRequest, workload: TrainingWorkload, mesh: DeviceMesh, ties: Ties, microbatches: int
) -> GraphCosts:
    """Return what operators of a model cost on a mesh, in a step of so many micro-batches."""
    graph = unfolded(
        request.model, batch=workload.global_batch // microbatches, seq_len=workload.seq_len, recipe=workload.matmul
    )
    step = TrainingStep(
        dtype=workload.precision,
        gradient_dtype=workload.gradient_dtype,
        optimizer=workload.optimizer,
        microbatches=microbatches,
        implementation=implementation_of(workload, request.search),
    )
    # A traced graph is one block: its operators are what travels and is counted by itself.
    if len(request.model.layers) == 1:
        return GraphCosts(graph, mesh, step, ties)
    return LayerCosts(request, graph, mesh, step, ties)


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)


# From a graph's costs to the sharding engine's problem, and back from its solution to choices.
#
# Each class is a node whose strategies are its assignments. Under a memory limit further nodes follow it: one for the storage
# of its weights, and one for each span of time but the first in which either holds memory, which only repeats what was decided
# (its table forbids every other pair). Of times that another one dominates in every class, only the other is kept.

IntArray = npt.NDArray[np.int64]

Bytes = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BuiltProblem:
    """The problem; node ``c`` is class c, and ``storage_nodes`` has the node that decides each class's storage, if any."""

    problem: ShardingProblem
    costs: GraphCosts
    storage_nodes: tuple[int, ...]

    def choices(self, solution: tuple[int, ...]) -> list[OperatorChoice]:
        """Return the choice of each class under a solution."""
        classes = range(len(self.costs.folding.members))
        if self.storage_nodes:
            return [OperatorChoice(solution[c], solution[self.storage_nodes[c]]) for c in classes]
        return [OperatorChoice(solution[c], list(best_storages(self.costs, c))[solution[c]]) for c in classes]


_NEVER = (0, 0)
"""The interval of a node that holds nothing."""


@dataclass
class _Parts:
    """Nodes and edges of a problem in the making."""

    node_costs: list[IntArray] = field(default_factory=list)
    node_usages: list[IntArray] = field(default_factory=list)
    intervals: list[tuple[int, int]] = field(default_factory=list)
    edge_nodes: list[tuple[int, int]] = field(default_factory=list)
    edge_costs: list[IntArray] = field(default_factory=list)

    def add_node(self, costs: IntArray, usages: IntArray | None = None, interval: tuple[int, int] = _NEVER) -> int:
        self.node_costs.append(costs)
        self.node_usages.append(np.zeros(len(costs), dtype=np.int64) if usages is None else usages)
        self.intervals.append(interval)
        return len(self.node_costs) - 1

    def hold(self, leader: int, usages: Bytes, interval: tuple[int, int]) -> None:
        """Let a node hold memory: in its own interval if that is free, else in that of another node that follows it."""
        whole = np.ceil(usages).astype(np.int64)
        if self.intervals[leader] == _NEVER:
            self.node_usages[leader], self.intervals[leader] = whole, interval
            return
        amounts, group = np.unique(whole, return_inverse=True)
        node = self.add_node(np.zeros(len(amounts), dtype=np.int64), amounts, interval)
        if len(amounts) > 1:
            self.tie(leader, node, group)

    def tie(self, leader: int, follower: int, follows: IntArray) -> None:
        """Let the follower's strategy be that which ``follows`` gives for its leader's."""
        table = np.full((len(self.node_costs[leader]), len(self.node_costs[follower])), FORBIDDEN, dtype=np.int64)
        table[np.arange(len(follows)), follows] = 0
        self.edge_nodes.append((leader, follower))
        self.edge_costs.append(table)

    def problem(self, name: str, limit: int | None) -> ShardingProblem:
        return ShardingProblem(
            name=name,
            node_offsets=offsets_of([len(costs) for costs in self.node_costs]),
            node_costs=np.concatenate(self.node_costs),
            node_usages=np.concatenate(self.node_usages),
            intervals=np.array(self.intervals, dtype=np.int64).reshape(-1, 2),
            edge_nodes=np.array(self.edge_nodes, dtype=np.int64).reshape(-1, 2),
            edge_offsets=offsets_of([table.size for table in self.edge_costs]),
            edge_costs=np.concatenate([table.ravel() for table in self.edge_costs] or [np.empty(0, dtype=np.int64)]),
            usage_limit=limit,
        )


def without_limit(costs: GraphCosts) -> BuiltProblem:
    """The problem whatever memory it takes; weights are stored as is fastest."""
    parts = _Parts()
    for index in range(len(costs.folding.members)):
        storage = costs.storage_cost_ns(index)[list(best_storages(costs, index))]
        parts.add_node(costs.class_cost_ns(index) + storage)
    _add_edges(parts, costs)
    return BuiltProblem(parts.problem("graph", None), costs, ())


def within_memory(costs: GraphCosts, memory_bytes: int) -> BuiltProblem:
    """The problem within the memory of a device."""
    parts = _Parts()
    classes = range(len(costs.folding.members))
    for index in classes:
        parts.add_node(costs.class_cost_ns(index))
    _add_edges(parts, costs)
    storage_nodes = []
    for index in classes:
        priced = costs.of_class(index)
        of = np.array([storage.assignment for storage in priced.storages], dtype=np.int64)
        node = parts.add_node(costs.storage_cost_ns(index))
        table = np.full((len(priced.assignments), len(of)), FORBIDDEN, dtype=np.int64)
        table[of, np.arange(len(of))] = 0
        parts.edge_nodes.append((index, node))
        parts.edge_costs.append(table)
        storage_nodes.append(node)
    for index, is_storage, usages, interval in _usages(costs):
        parts.hold(storage_nodes[index] if is_storage else index, usages, interval)
    return BuiltProblem(parts.problem("graph within memory", memory_bytes), costs, tuple(storage_nodes))


def _add_edges(parts: _Parts, costs: GraphCosts) -> None:
    """Tables of resharding; an edge from a class to itself joins equal strategies, so it is a cost of the class."""
    for edge in costs.class_edges:
        table = costs.edge_cost_ns(edge)
        if edge.source == edge.target:
            parts.node_costs[edge.source] = parts.node_costs[edge.source] + np.diagonal(table)
        elif table.any():
            parts.edge_nodes.append((edge.source, edge.target))
            parts.edge_costs.append(table)


def _usages(costs: GraphCosts) -> Iterator[tuple[int, bool, Bytes, tuple[int, int]]]:
    """(class, whether its storage decides, bytes by strategy, interval) of all memory, over the times that matter."""
    held, keys, key_of = costs.held
    counts = np.zeros((len(keys), held.times + 1), dtype=np.int32)
    np.add.at(counts, (key_of, held.start), 1)
    np.subtract.at(counts, (key_of, held.end), 1)
    used = [i for i, key in enumerate(keys) if costs.usage_bytes(key).any()]
    kept = _undominated(np.cumsum(counts[used], axis=1)[:, :-1])
    merged: dict[tuple[int, bool, bytes], tuple[IntArray, Bytes]] = {}
    for i, profile in zip(used, kept, strict=True):
        key, usage = keys[i], costs.usage_bytes(keys[i])
        name = (key.index, by_storage(key.kind), np.ascontiguousarray(profile).tobytes())
        merged[name] = (profile, merged[name][1] + usage if name in merged else usage)
    for (index, is_storage, _), (profile, usage) in merged.items():
        for first, last, height in _rectangles(profile.tolist(), 0):
            yield index, is_storage, height * usage, (first, last)


def _undominated(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Columns that no other one reaches in every row, in order of time."""
    left = np.arange(counts.shape[1])
    columns = np.ascontiguousarray(counts.T)
    sizes = columns.sum(axis=1, dtype=np.int64)
    kept: list[int] = []
    while len(left):
        # The largest of those left is reached by no other; what it reaches goes.
        largest = int(sizes[left].argmax())
        kept.append(int(left[largest]))
        left = left[(columns[left] > columns[kept[-1]]).any(axis=1)]
    return counts[:, sorted(kept)]


def _rectangles(profile: list[int], offset: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, height) of rectangles that add up to a profile of counts."""
    start = 0
    while start < len(profile):
        if profile[start] == 0:
            start += 1
            continue
        end = start
        while end < len(profile) and profile[end] > 0:
            end += 1
        height = min(profile[start:end])
        yield offset + start, offset + end, height
        yield from _rectangles([count - height for count in profile[start:end]], offset + start)
        start = end


@dataclass(frozen=True)
class GraphSharding:
    """The answer.

    status      optimal, feasible, infeasible (nothing fits) or unknown (stopped before a choice was found)
    choices     what each class of operators does; None where nothing was found
    step_s      predicted time of a step, and ``bound_s`` the proven least; None where there is none
    peak_bytes  most memory in use on a device
    fastest_peak_bytes   the same of the fastest choice whatever memory it takes
    problem     the engine's last problem, which another solver may take
    """

    status: SolveStatus
    choices: tuple[OperatorChoice, ...] | None
    step_s: float | None
    bound_s: float | None
    peak_bytes: float | None
    problem: BuiltProblem
    fastest_peak_bytes: float | None = None

    @property
    def gap(self) -> float | None:
        """(step - bound) / step; None without a choice."""
        if self.step_s is None or self.bound_s is None:
            return None
        return (self.step_s - self.bound_s) / self.step_s if self.step_s > 0 else 0.0


def shard_graph(
    costs: GraphCosts, *, memory_bytes: float | None, stop: WorkStop, seed: int = 0, progress: OnProgress | None = None
) -> GraphSharding:
    """The fastest strategies of a graph that fit ``memory_bytes`` of a device (None: any)."""
    free = _solved(without_limit(costs), stop, seed, progress)
    if memory_bytes is None or (free.peak_bytes is not None and free.peak_bytes <= memory_bytes):
        return replace(free, fastest_peak_bytes=free.peak_bytes)
    limited = _solved(within_memory(costs, int(memory_bytes)), stop, seed, progress)
    limited = replace(limited, fastest_peak_bytes=free.peak_bytes)
    if limited.bound_s is None or free.bound_s is None:
        return limited
    # Less freedom is never faster: the bound without the limit holds under it.
    return replace(limited, bound_s=max(limited.bound_s, free.bound_s))


_ROUNDS = 8
"""Sums of which the time of a layer's passes is the largest, and means of them, that are tried one after another. The first is
of passes that hide all they send; where memory is ample, most models are done with the second."""

_NEAR = 1e-5
"""Rounds end with a bound that is so near, as a share of the step."""


def shard_layers(
    costs: LayerCosts,
    *,
    memory_bytes: float,
    stop: WorkStop,
    seed: int = 0,
    progress: OnProgress | None = None,
    known: tuple[OperatorChoice, ...] | None = None,
    faster_s: float = math.inf,
) -> GraphSharding:
    """The fastest strategies of a model whose layers are priced as plans price them; no worse than ``known`` ones. What takes
    no less than ``faster_s`` is not looked at further.

    Each round solves a sum that no choice is below, prices what it finds in full, and goes towards the sum that has its time
    there. A choice whose time is that of its sum is optimal.
    """
    sums_at, near = Bisection(costs.usual()), None
    bound_s, peak_bytes = 0.0, None
    priced_before = [_priced(costs, choices, memory_bytes) for choices in (known, _fully_sharded(costs)) if choices is not None]
    best = min((each for each in priced_before if each is not None), key=attrgetter("step_s"), default=None)
    for _ in range(_ROUNDS):
        sums = costs.linear(sums_at.at, near)
        found = shard_graph(sums, memory_bytes=memory_bytes, stop=stop, seed=seed, progress=progress)
        if found.status is SolveStatus.INFEASIBLE:
            return found
        peak_bytes = peak_bytes or found.fastest_peak_bytes
        bound_s = max(bound_s, (found.bound_s or 0.0) + sums.constant_s - sums.rounding_s)
        if found.choices is None:
            break
        priced = costs.step_time(found.choices)
        is_same, near = near == found.choices, found.choices
        if best is None or best.step_s is None or priced.step_s < best.step_s:
            best = replace(found, step_s=priced.step_s)
        is_near = min(priced.step_s, best.step_s or priced.step_s) * (1.0 - _NEAR) <= bound_s
        if stop() or is_near or bound_s >= faster_s or (not sums_at.found(priced.pieces) and is_same):
            break
    if best is None or best.step_s is None:
        return GraphSharding(SolveStatus.UNKNOWN, None, None, bound_s, None, without_limit(costs), peak_bytes)
    # Sums are of whole nanoseconds: what is nearer is equal.
    is_optimal = best.step_s <= bound_s + 2.0 * costs.rounding_s
    status = SolveStatus.OPTIMAL if is_optimal else SolveStatus.FEASIBLE
    bound_s = best.step_s if is_optimal else bound_s
    return replace(best, status=status, bound_s=bound_s, fastest_peak_bytes=peak_bytes)


def _fully_sharded(costs: LayerCosts) -> tuple[OperatorChoice, ...] | None:
    """The batch split over all axes and weights stored so (FSDP): an answer is never worse."""
    choices = []
    for index in range(len(costs.folding.members)):
        priced = costs.of_class(index)
        names = [priced.placed.name(assignment) for assignment in priced.assignments]
        wanted = tuple(BATCH if axis.size > 1 else WHOLE for axis in costs.mesh.axes)
        if wanted not in names:
            return None
        mine = [i for i, storage in enumerate(priced.storages) if storage.assignment == names.index(wanted)]
        choices.append(OperatorChoice(names.index(wanted), max(mine, key=lambda i: len(priced.storages[i].axes))))
    return tuple(choices)


def _priced(costs: LayerCosts, choices: tuple[OperatorChoice, ...], memory_bytes: float) -> GraphSharding | None:
    """Given choices as an answer, where they fit."""
    peak_bytes = costs.peak_bytes(choices)
    if peak_bytes > memory_bytes:
        return None
    return GraphSharding(SolveStatus.FEASIBLE, choices, costs.step_time(choices).step_s, None, peak_bytes, without_limit(costs))


def _solved(built: BuiltProblem, stop: WorkStop, seed: int, progress: OnProgress | None) -> GraphSharding:
    answer = solve(built.problem, stop=stop, seed=seed, progress=progress)
    bound_s = None if answer.bound is None else answer.bound / NS_PER_S
    if answer.solution is None or answer.cost is None:
        return GraphSharding(answer.status, None, None, bound_s, None, built)
    choices = tuple(built.choices(answer.solution))
    return GraphSharding(
        answer.status, choices, answer.cost / NS_PER_S, bound_s, built.costs.peak_bytes(choices), built
    )  # fmt: skip


def step_ns(costs: GraphCosts, choices: Sequence[OperatorChoice]) -> int:
    """Time of a step of given choices, added up class by class and edge by edge."""
    total = 0
    for index, choice in enumerate(choices):
        total += int(costs.class_cost_ns(index)[choice.assignment]) + int(costs.storage_cost_ns(index)[choice.storage])
    for edge in costs.class_edges:
        total += int(costs.edge_cost_ns(edge)[choices[edge.source].assignment, choices[edge.target].assignment])
    return total
