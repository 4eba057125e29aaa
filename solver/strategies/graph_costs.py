"""A graph's strategies and what they cost, class by class: the numbers of which a sharding problem is made.

What each collective sends under given choices is counted here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.kernels.operator_time import weight_gradient_s
from meshwright.costmodels.memory.training_state import framework_overhead_bytes
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, exposed_s
from meshwright.solver.blocks.sharding_problem import modules_that_read, sums_beside_weights
from meshwright.solver.strategies.device_mesh import DeviceMesh, TensorLayout, TensorShape
from meshwright.solver.strategies.operator_graph import Folding, GraphEdge, OperatorGraph, Ties, fold, kinds
from meshwright.solver.strategies.pricing import PricedOperator, TrainingStep, price, stream_of
from meshwright.solver.strategies.resharding import Resharding, ReshardingTable, Transfer, TransferTimes
from meshwright.solver.strategies.strategy import PlacedOperator
from meshwright.solver.strategies.traffic import OperatorTransfer, TransferPhase, inner_traffic, weight_groups, weight_traffic

# When a training step holds what: the live range of every output, gradient, weight and buffer of a graph.
#
# Times 0 .. n - 1 are the forward passes of the n operators, n .. 2 n - 1 their backward passes in reverse order.

IntArray = npt.NDArray[np.int64]

FloatArray = npt.NDArray[np.float64]


class Kind(IntEnum):
    """The kind of memory that is held."""

    STATE = 0
    """Weights, gradients and optimizer states, always."""
    FORWARD = 1
    """Gathered weights of a forward pass."""
    BACKWARD = 2
    """Gathered weights and whole gradients of a backward pass."""
    BUFFER = 3
    """Working memory of either pass."""
    OUTPUT = 4
    """An output, until its last reader has run, or if it is saved, until its first reader's backward pass."""
    GRADIENT = 5
    """The gradient of an output, from the backward pass of its last reader to that of its writer."""
    WORKING = 6
    """Gradients of all that an operator reads and writes, while it runs."""


@dataclass(frozen=True, eq=False)
class LiveRanges:
    """All that the nodes of a graph hold, one entry each: ``node`` holds its ``kind`` at the times start <= t < end, of
    ``times``; ``output`` says of which output, ``scale`` how often (1 where it is not given)."""

    node: IntArray
    kind: IntArray
    output: IntArray
    start: IntArray
    end: IntArray
    times: int
    scale: FloatArray | None = None


def live_ranges(graph: OperatorGraph) -> LiveRanges:
    """The live ranges of a training step."""
    count = len(graph.nodes)
    times = 2 * count
    forward = np.arange(count)
    backward = times - 1 - forward
    zero = np.zeros(count, dtype=np.int64)
    parts = [
        (forward, Kind.STATE, zero, zero, zero + times),
        (forward, Kind.FORWARD, zero, forward, forward + 1),
        (forward, Kind.BACKWARD, zero, backward, backward + 1),
        (forward, Kind.BUFFER, zero, forward, forward + 1),
        (forward, Kind.BUFFER, zero, backward, backward + 1),
        *_outputs(graph),
    ]
    return LiveRanges(
        node=np.concatenate([node for node, *_ in parts]),
        kind=np.concatenate([np.full(len(node), int(kind)) for node, kind, *_ in parts]),
        output=np.concatenate([output for _, _, output, _, _ in parts]),
        start=np.concatenate([start for *_, start, _ in parts]),
        end=np.concatenate([end for *_, end in parts]),
        times=times,
    )


_RangesOfKind = tuple[IntArray, Kind, IntArray, IntArray, IntArray]


def _outputs(graph: OperatorGraph) -> list[_RangesOfKind]:
    times = 2 * len(graph.nodes)
    widths = np.array([len(place.operator.outputs) for place in graph.nodes])
    first = np.concatenate(([0], np.cumsum(widths)))
    writer = np.repeat(np.arange(len(graph.nodes)), widths)
    output = np.arange(first[-1]) - first[writer]
    last_reader = writer.copy()
    first_saver = np.full(first[-1], times)
    saved_inputs: dict[tuple[str, str], tuple[bool, ...]] = {}
    for edge in graph.edges:
        node = graph.nodes[edge.target]
        if node.of_block not in saved_inputs:
            reader = node.operator
            saved_inputs[node.of_block] = tuple(tensor.name in reader.saved for tensor in reader.inputs)
        slot = first[edge.source] + edge.output
        last_reader[slot] = max(last_reader[slot], edge.target)
        if saved_inputs[node.of_block][edge.input]:
            first_saver[slot] = min(first_saver[slot], edge.target)
    of_writer = [tensor.name in place.operator.saved for place in graph.nodes for tensor in place.operator.outputs]
    first_saver = np.where(of_writer, np.minimum(first_saver, writer), first_saver)
    end = np.where(first_saver < times, times - first_saver, last_reader + 1)
    read = last_reader > writer
    return [
        (writer, Kind.OUTPUT, output, writer, end),
        (writer[read], Kind.GRADIENT, output[read], times - 1 - last_reader[read], times - writer[read]),
    ]


NS_PER_S = 1e9
"""Costs of a problem are whole nanoseconds a step: rounding stays below 1 us for a thousand operators."""


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """The choice of a class of operators: the index of its assignment and of the storage of its weights."""

    assignment: int
    storage: int


@dataclass(frozen=True, slots=True)
class UsageKey:
    """Something that every node of class ``index`` holds; ``output`` says of which output, ``scale`` how often."""

    index: int
    kind: Kind
    output: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ClassEdge:
    """Equal edges of the graph between two classes: one of them, and how many there are."""

    source: int
    target: int
    edge: GraphEdge
    count: int


class GraphCosts:
    """Prices of a graph's strategies on a mesh. Operators of one kind are priced once, edges between two kinds too."""

    def __init__(self, graph: OperatorGraph, mesh: DeviceMesh, step: TrainingStep, ties: Ties = Ties.EQUAL_BLOCKS):
        self.graph = graph
        self.mesh = mesh
        self.step = step
        self.times = TransferTimes(mesh)
        self.folding: Folding = fold(graph, ties)
        self._resharding = Resharding(self.times)
        self._kinds = kinds(graph)
        self._priced: dict[int, PricedOperator] = {}
        self._layouts: dict[tuple[int, bool, int], tuple[tuple[TensorLayout, ...], tuple[TensorLayout, ...]]] = {}
        self._edge_tables: dict[tuple[int, int, int, int], tuple[FloatArray, FloatArray]] = {}

    def priced(self, node: int) -> PricedOperator:
        """Strategies of a node and their prices."""
        kind = self._kinds[node]
        if kind not in self._priced:
            place = self.graph.nodes[node]
            placed = PlacedOperator.of(place.operator, place.context, self.graph.sizes, self.mesh.sizes)
            self._priced[kind] = price(placed, self.step, self.times, place.recipe)
        return self._priced[kind]

    def of_class(self, index: int) -> PricedOperator:
        """Strategies of the nodes of a class."""
        return self.priced(self.folding.members[index][0])

    @cached_property
    def class_edges(self) -> tuple[ClassEdge, ...]:
        """Edges between classes, in order of their first edge."""
        counts: Counter[tuple[int, int, int, int]] = Counter()
        first: dict[tuple[int, int, int, int], GraphEdge] = {}
        for edge in self.graph.edges:
            key = (self.folding.class_of[edge.source], edge.output, self.folding.class_of[edge.target], edge.input)
            counts[key] += 1
            first.setdefault(key, edge)
        return tuple(ClassEdge(key[0], key[2], edge, counts[key]) for key, edge in first.items())

    def class_cost_ns(self, index: int) -> IntArray:
        """Time a step of all nodes of a class under each assignment, resharding and the storage of weights aside."""
        priced = self.of_class(index)
        each = self.step.microbatches * (priced.forward_s + priced.backward_s)
        return whole_ns(each) * len(self.folding.members[index])

    def storage_cost_ns(self, index: int) -> IntArray:
        """Time a step that each storage of a class adds."""
        each = np.array([storage.step_s for storage in self.of_class(index).storages])
        return whole_ns(each) * len(self.folding.members[index])

    def edge_cost_ns(self, edge: ClassEdge) -> IntArray:
        """Resharding time a step of equal edges, shape (assignments of source, assignments of target)."""
        return whole_ns(self.step.microbatches * np.add(*self.edge_s(edge.edge))) * edge.count

    def usage_bytes(self, key: UsageKey) -> FloatArray:
        """Bytes that one node of a class holds of a kind, by storage (STATE, FORWARD, BACKWARD) or by assignment."""
        return key.scale * self._usage_bytes(key)

    def _usage_bytes(self, key: UsageKey) -> FloatArray:
        priced = self.of_class(key.index)
        match key.kind:
            case Kind.STATE:
                return np.array([storage.static_bytes for storage in priced.storages])
            case Kind.FORWARD:
                return np.array([storage.forward_bytes for storage in priced.storages])
            case Kind.BACKWARD:
                return np.array([storage.backward_bytes for storage in priced.storages])
            case Kind.OUTPUT:
                return priced.output_bytes[key.output]
            case Kind.GRADIENT:
                return priced.gradient_bytes[key.output]
            case Kind.BUFFER:
                return priced.buffer_bytes
            case Kind.WORKING:
                return priced.working_bytes

    def peak_bytes(self, choices: Sequence[OperatorChoice]) -> float:
        """Most memory in use on a device at any time of a step; ``choices`` has one entry a class."""
        held, keys, key_of = self.held
        used = np.array([self._chosen_bytes(key, choices[key.index]) for key in keys])[key_of]
        steps = np.zeros(held.times + 1)
        np.add.at(steps, held.start, used)
        np.subtract.at(steps, held.end, used)
        return float(np.cumsum(steps).max())

    @cached_property
    def held(self) -> tuple[LiveRanges, tuple[UsageKey, ...], IntArray]:
        """Live ranges of the graph, what classes hold, and of each range which of these it is."""
        held = self.ranges()
        classes = np.array(self.folding.class_of)[held.node]
        # One number for each (class, kind, output): sorting numbers is much faster than sorting columns.
        outputs = int(held.output.max(initial=0)) + 1
        scales, scale_of = np.array([1.0]), np.zeros(len(held.node), dtype=np.int64)
        if held.scale is not None:
            scales, scale_of = np.unique(held.scale, return_inverse=True)
        numbers = ((classes * len(Kind) + held.kind) * outputs + held.output) * len(scales) + scale_of
        keys, key_of = np.unique(numbers, return_inverse=True)
        rest, of_scale = np.divmod(keys, len(scales))
        classes_and_kinds, of_output = np.divmod(rest, outputs)
        of_class, of_kind = np.divmod(classes_and_kinds, len(Kind))
        named = zip(of_class.tolist(), of_kind.tolist(), of_output.tolist(), scales[of_scale].tolist(), strict=True)
        return held, tuple(UsageKey(c, Kind(k), o, s) for c, k, o, s in named), key_of

    def ranges(self) -> LiveRanges:
        """Return when the nodes of the graph hold what."""
        return live_ranges(self.graph)

    def _chosen_bytes(self, key: UsageKey, choice: OperatorChoice) -> float:
        at = choice.storage if by_storage(key.kind) else choice.assignment
        return float(self.usage_bytes(key)[at])

    @property
    def overhead_bytes(self) -> float:
        """The framework's own, beside tensors."""
        groups = sum(axis.size > 1 for axis in self.mesh.axes)
        return framework_overhead_bytes(
            # Beside those of axes the group of all ranks.
            communicators=groups + (groups > 0),
            communicator_bytes=self.mesh.device.communicator_bytes,
            context_bytes=self.step.implementation.context_bytes,
        )

    def resharding(self, edge: GraphEdge) -> tuple[ReshardingTable, tuple[TensorLayout, ...], tuple[TensorLayout, ...]]:
        """Ways between layouts of an edge's tensor, and the layouts in which it is written and read, by assignment."""
        (written, wanted), (read, given) = self._written(edge), self._read(edge)
        used = {p for layout in (*written, *wanted, *read, *given) for p, axes in enumerate(layout.splits) if axes}
        return self._resharding.between(self._shape(edge), tuple(sorted(used))), written, read

    def forward_path(self, edge: GraphEdge, source: int, target: int) -> tuple[Transfer, ...]:
        """Collectives that bring a tensor from its writer's assignment to its reader's."""
        table, written, read = self.resharding(edge)
        return table.path(written[source], read[target])

    def backward_path(self, edge: GraphEdge, source: int, target: int) -> tuple[Transfer, ...]:
        """Collectives that bring the tensor's gradient back, and the tensor again where it was stored split."""
        table, written, read = self.resharding(edge)
        again = self._gathered_again(edge)[source, target]
        return (*self.gradient_path(edge, source, target), *(table.path(written[source], read[target]) if again else ()))

    def gradient_path(self, edge: GraphEdge, source: int, target: int) -> tuple[Transfer, ...]:
        """Collectives that bring the tensor's gradient back."""
        table, _, _ = self.resharding(edge)
        return table.path(self._read(edge)[1][target], self._written(edge)[1][source])

    def edge_s(self, edge: GraphEdge) -> tuple[FloatArray, FloatArray]:
        """Seconds that resharding adds to the forward and to the backward pass, shape (assignments of source, of target)."""
        key = (self._kinds[edge.source], edge.output, self._kinds[edge.target], edge.input)
        if key not in self._edge_tables:
            table, written, read = self.resharding(edge)
            forward = table.table(written, read)
            backward = table.table(self._read(edge)[1], self._written(edge)[1]).T
            backward = self._beside_weight_gradients(edge, backward)
            self._edge_tables[key] = forward, backward + np.where(self._gathered_again(edge), forward, 0.0)
        return self._edge_tables[key]

    def _beside_weight_gradients(self, edge: GraphEdge, seconds: FloatArray) -> FloatArray:
        """What of a product's input gradient on its way is not hidden by its weight gradient, where frameworks run both at
        once."""
        node, step = self.graph.nodes[edge.target], self.step
        if not sums_beside_weights(node.operator, step.implementation) or not seconds.any():
            return seconds
        priced = self.priced(edge.target)
        own_s = np.array(
            [
                weight_gradient_s(
                    node.operator,
                    priced.placed.local_sizes(assignment),
                    device=self.mesh.device,
                    dtype=node.recipe.dtype or step.dtype,
                )
                for assignment in priced.assignments
            ]
        )
        modules = modules_that_read(node.operator, step.implementation)
        return exposed_s(modules * seconds, own_s[None, :], stream_of(self.mesh), MEASURED_INTERFERENCE)

    def _gathered_again(self, edge: GraphEdge) -> npt.NDArray[np.bool_]:
        """Where a reader needs a tensor once more in its backward pass and it was kept split: as Megatron-LM's sequence
        parallelism keeps its activations (Korthikanti et al. 2022, section 4.2.2). Not where products send beside others:
        there it travels under the input gradient, as plans have it."""
        _, written, read = self.resharding(edge)
        reader = self.graph.nodes[edge.target].operator
        shape, mesh = self._shape(edge), self.mesh.sizes
        if reader.inputs[edge.input].name not in reader.saved or sums_beside_weights(reader, self.step.implementation):
            return np.zeros((len(written), len(read)), dtype=bool)
        kept = np.array([np.inf if layout.partial else shape.local_bytes(layout, mesh) for layout in written])
        needed = np.array([shape.local_bytes(layout, mesh) for layout in read])
        return np.asarray(needed[None, :] > kept[:, None])

    def _written(self, edge: GraphEdge) -> tuple[tuple[TensorLayout, ...], tuple[TensorLayout, ...]]:
        """Layouts of an output and those wanted of its gradient, by assignment."""
        key = (self._kinds[edge.source], False, edge.output)
        if key not in self._layouts:
            priced = self.priced(edge.source)
            self._layouts[key] = (
                tuple(priced.placed.output(edge.output, a) for a in priced.assignments),
                tuple(priced.placed.output_gradient(edge.output, a) for a in priced.assignments),
            )
        return self._matching(edge, *self._layouts[key])

    def _read(self, edge: GraphEdge) -> tuple[tuple[TensorLayout, ...], tuple[TensorLayout, ...]]:
        """Layouts of an input and those of its gradient, by assignment."""
        key = (self._kinds[edge.target], True, edge.input)
        if key not in self._layouts:
            priced = self.priced(edge.target)
            self._layouts[key] = (
                tuple(priced.placed.input(edge.input, a) for a in priced.assignments),
                tuple(priced.placed.input_gradient(edge.input, a) for a in priced.assignments),
            )
        return self._matching(edge, *self._layouts[key])

    def _matching(
        self, edge: GraphEdge, first: tuple[TensorLayout, ...], second: tuple[TensorLayout, ...]
    ) -> tuple[tuple[TensorLayout, ...], tuple[TensorLayout, ...]]:
        """Layouts with a place for the experts of routed rows where only the other end of the edge knows of them."""
        places = len(self._shape(edge).sizes)
        if len(first[0].splits) == places:
            return first, second
        return _with_experts(first), _with_experts(second)

    def _shape(self, edge: GraphEdge) -> TensorShape:
        """The tensor with its experts, if either end routes its rows."""
        writer, reader = self.graph.nodes[edge.source], self.graph.nodes[edge.target]
        tensor, read = writer.operator.outputs[edge.output], reader.operator.inputs[edge.input]
        sizes = tuple(self.graph.sizes[dim] for dim in tensor.dims)
        routed = writer.context.routed.get(tensor.name) or reader.context.routed.get(read.name)
        if routed is not None:
            sizes = (*sizes, self.graph.sizes[routed])
        return TensorShape(sizes, self.step.dtype.size_bytes, routed=routed is not None)


def _with_experts(layouts: tuple[TensorLayout, ...]) -> tuple[TensorLayout, ...]:
    return tuple(TensorLayout((*layout.splits, ()), layout.partial) for layout in layouts)


def by_storage(kind: Kind) -> bool:
    """Return True if what is held depends on the storage of weights, not on the assignment alone."""
    return kind in (Kind.STATE, Kind.FORWARD, Kind.BACKWARD)


def whole_ns(seconds: FloatArray) -> IntArray:
    """Seconds as whole nanoseconds."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def best_storages(costs: GraphCosts, index: int) -> Iterator[int]:
    """For each assignment of a class the storage that costs the least time, and of equal ones the least memory."""
    storages = costs.of_class(index).storages
    ns = costs.storage_cost_ns(index)
    for assignment in range(len(costs.of_class(index).assignments)):
        mine = [i for i, storage in enumerate(storages) if storage.assignment == assignment]
        yield min(mine, key=lambda i: (ns[i], storages[i].static_bytes, i))


class Purpose(StrEnum):
    """Why something is sent."""

    INSIDE = "inside"
    """Ranks of one operator exchange it while it runs."""
    WEIGHTS = "weights"
    """Weights are gathered, gradients added up."""
    RESHARDING = "resharding"
    """A tensor's reader wants another layout than its writer's."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of equal operators or edges.

    where        name of the first operator, or of the two that an edge joins
    bytes_sent   by each device in a step, all equal operators and micro-batches together
    seconds      that it takes, hidden or not
    """

    purpose: Purpose
    phase: TransferPhase
    where: tuple[str, ...]
    collective: Collective
    axes: tuple[str, ...]
    bytes_sent: float
    seconds: float


def communication(costs: GraphCosts, choices: Sequence[OperatorChoice]) -> tuple[Sent, ...]:
    """Everything that a step sends; ``choices`` has one entry a class."""
    return (*_of_classes(costs, choices), *_of_edges(costs, choices))


def _of_classes(costs: GraphCosts, choices: Sequence[OperatorChoice]) -> Iterator[Sent]:
    step = costs.step
    for index, choice in enumerate(choices):
        priced, members = costs.of_class(index), costs.folding.members[index]
        placed, assignment = priced.placed, priced.assignments[choice.assignment]
        where = (costs.graph.nodes[members[0]].name,)
        for traffic in inner_traffic(placed, assignment, step.dtype):
            yield _sent(costs, Purpose.INSIDE, traffic, where, len(members))
        groups = weight_groups(placed, assignment, priced.storages[choice.storage].axes)
        for traffic in weight_traffic(
            groups, placed.mesh, dtype=step.dtype, gradient_dtype=step.gradient_dtype, states=step.states
        ):
            yield _sent(costs, Purpose.WEIGHTS, traffic, where, len(members))


def _of_edges(costs: GraphCosts, choices: Sequence[OperatorChoice]) -> Iterator[Sent]:
    for edge in costs.class_edges:
        ends = choices[edge.source].assignment, choices[edge.target].assignment
        where = (costs.graph.nodes[edge.edge.source].name, costs.graph.nodes[edge.edge.target].name)
        paths: tuple[tuple[TransferPhase, tuple[Transfer, ...]], ...] = (
            (TransferPhase.FORWARD, costs.forward_path(edge.edge, *ends)),
            (TransferPhase.BACKWARD, costs.backward_path(edge.edge, *ends)),
        )
        for phase, path in paths:
            for transfer in path:
                yield _sent(costs, Purpose.RESHARDING, OperatorTransfer(phase, transfer), where, edge.count)


def _sent(costs: GraphCosts, purpose: Purpose, traffic: OperatorTransfer, where: tuple[str, ...], count: int) -> Sent:
    often = count * (1 if traffic.phase is TransferPhase.STEP else costs.step.microbatches)
    return Sent(
        purpose=purpose,
        phase=traffic.phase,
        where=where,
        collective=traffic.transfer.collective,
        axes=tuple(costs.mesh.axes[axis].name for axis in traffic.transfer.axes),
        bytes_sent=often * traffic.times * traffic.transfer.sent_bytes(costs.mesh),
        seconds=often * traffic.seconds(costs.times),
    )
