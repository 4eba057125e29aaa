"""The costs of a model's layers as training plans have them: what a layer sends hides under its passes as one.

Weights and gradients of a layer travel together beside its whole passes, its kernels take no less time than the host takes
to launch them, and memory is counted layer by layer: `solver.training.costs` says how, and its functions are asked here. Such
times are no sums over operators. `LayerCosts.step_time` prices given choices, and `LayerCosts.linear` is a sum that no choice
is below: the largest of several such sums is the time of a pass, and the search takes one of them a layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.kernels.compute import memory_bound_s, sustained_launch_s
from meshwright.costmodels.kernels.host_work import host_work
from meshwright.costmodels.memory.saved_activations import loss_transient_element_bytes
from meshwright.costmodels.model.formats import SavedFormat
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import MEASURED_INTERFERENCE, exposed_s, passes_exposed_s
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.recompute import KeptBytes, kept_bytes
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.strategies.device_mesh import DeviceMesh
from meshwright.solver.strategies.graph_costs import (
    NS_PER_S,
    ClassEdge,
    GraphCosts,
    Kind,
    LiveRanges,
    OperatorChoice,
    whole_ns,
)
from meshwright.solver.strategies.operator_graph import GraphEdge, OperatorGraph, Ties
from meshwright.solver.strategies.pricing import Storage, TrainingStep, stream_of, transfer_kind
from meshwright.solver.strategies.traffic import TransferPhase
from meshwright.solver.training.costs.host import HostTime, host_time, step_host_s

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_TransferKind = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class StepTime:
    """Where the time of a step goes. By layer: seconds of a micro-batch's passes, what of them is resharding, and what the
    transfers of weights and gradients add; then what a step adds once.

    kernels_forward_s, kernels_backward_s   the passes without the wait for the host
    """

    forward_s: FloatArray
    backward_s: FloatArray
    kernels_forward_s: FloatArray
    kernels_backward_s: FloatArray
    resharding_s: FloatArray
    exposed_s: FloatArray
    sent_once_s: FloatArray
    optimizer_s: FloatArray
    host_s: float
    microbatches: int
    pieces: Pieces

    @property
    def step_s(self) -> float:
        """The whole step."""
        each = self.forward_s + self.backward_s + self.exposed_s
        return float(self.microbatches * each.sum() + (self.sent_once_s + self.optimizer_s).sum()) + self.host_s


@dataclass(frozen=True, eq=False)
class Pieces:
    """Which sum the time of a pass is, [pass, group of layers], forward first: whether the host's launches take longer than the
    kernels, and whether transfers take longer than the pass, in most micro-batches and in the one with those of once a step.

    What is no choice's may be between: a mean of two sums is no more than the larger.
    """

    host: FloatArray
    sends: FloatArray
    sends_last: FloatArray

    @property
    def stacked(self) -> FloatArray:
        """All of them, one after another."""
        return np.stack([self.host, self.sends, self.sends_last])


class Bisection:
    """The mean of sums at which the search finds choices now of one, now of the other: nearest to the largest of both."""

    def __init__(self, start: Pieces):
        self.at = start
        self._least, self._most = np.zeros_like(start.stacked), np.ones_like(start.stacked)
        self._tried = np.zeros((2, *start.stacked.shape), dtype=bool)

    def found(self, pieces: Pieces) -> bool:
        """Go towards the sums that a found choice has; False where that changes nothing."""
        here, wanted = self.at.stacked, pieces.stacked > 0.5
        self._tried |= np.stack([here == 0.0, here == 1.0])
        self._least = np.where(wanted, np.maximum(self._least, here), self._least)
        self._most = np.where(wanted, self._most, np.minimum(self._most, here))
        # An end is tried before what lies between.
        is_new = np.where(wanted, ~self._tried[1], ~self._tried[0])
        after = np.where(is_new, 1.0 * wanted, 0.5 * (self._least + self._most))
        self.at = Pieces(*after)
        return not np.array_equal(here, after)


@dataclass(frozen=True, eq=False)
class _Weights:
    """By group of layers, forward pass first where there are two: how often the pass counts, its transfers in every
    micro-batch, of them those that add up gradients, those of once a step, and launches of resharding; the bytes that go before
    an operator's (`LayerCosts._before`), and seconds that nothing changes."""

    passes: FloatArray
    sent: FloatArray
    reduced: FloatArray
    sent_once: FloatArray
    launches: FloatArray
    before: dict[tuple[int, _TransferKind | None], dict[int, float]]
    constant_s: float

    def of(self, kind: _TransferKind) -> FloatArray:
        """How often transfers of a kind count."""
        if _is_reduced(kind):
            return self.reduced
        sent = self.sent_once if kind[0] == TransferPhase.STEP else self.sent
        return np.asarray(sent[_pass_of(kind)], np.float64)


class LayerCosts(GraphCosts):
    """Prices of the strategies of a request's model, whose layers are blocks of the graph."""

    def __init__(
        self,
        request: TrainingRequest,
        graph: OperatorGraph,
        mesh: DeviceMesh,
        step: TrainingStep,
        ties: Ties = Ties.EQUAL_BLOCKS,
    ):
        super().__init__(graph, mesh, step, ties)
        self.request = request
        self.n_layers = len(request.model.layers)
        self.layer_of = np.array([node.layer for node in graph.nodes], dtype=np.int64)
        groups: dict[tuple[str, bool], int] = {}
        # Nothing runs beside the first layer's transfers of once a step: it is a group of its own.
        of_layer = [groups.setdefault((name, place == 0), len(groups)) for place, name in enumerate(request.model.layers)]
        self.group_of = np.array(of_layer, dtype=np.int64)
        self.groups = tuple(groups)
        self.place_of = np.arange(len(graph.nodes)) - np.searchsorted(self.layer_of, self.layer_of)
        self._weights: _Weights | None = None
        self._known_sizes: dict[int, dict[_TransferKind | None, FloatArray]] = {}
        self._known_counts: dict[GraphEdge, FloatArray] = {}

    # What is exact.

    def step_time(self, choices: Sequence[OperatorChoice]) -> StepTime:
        """Return the time of a step of given choices, one a class."""
        forward, backward, resharding, updated = np.zeros((4, self.n_layers))
        sent: dict[_TransferKind, FloatArray] = defaultdict(lambda: np.zeros(self.n_layers))
        for index, members in enumerate(self.folding.members):
            layers, priced, choice = self.layer_of[list(members)], self.of_class(index), choices[index]
            np.add.at(forward, layers, priced.forward_s[choice.assignment])
            np.add.at(backward, layers, priced.backward_s[choice.assignment])
            storage = priced.storages[choice.storage]
            np.add.at(updated, layers, storage.updated_bytes)
            for kind, size in _sent_bytes(storage).items():
                np.add.at(sent[kind], layers, size)
        collectives = np.zeros((2, self.n_layers))
        for edge in self.class_edges:
            ends = choices[edge.source].assignment, choices[edge.target].assignment
            of_forward, of_backward = (float(table[ends]) for table in self.edge_s(edge.edge))
            if of_forward == of_backward == 0.0:
                # What takes no time sends nothing.
                continue
            layers = self.edge_layers[edge]
            np.add.at(forward, layers, of_forward)
            np.add.at(backward, layers, of_backward)
            np.add.at(resharding, layers, of_forward + of_backward)
            np.add.at(collectives[0], layers, len(self.forward_path(edge.edge, *ends)))
            np.add.at(collectives[1], layers, len(self.gradient_path(edge.edge, *ends)))
        return self._hidden(forward, backward, resharding, updated, sent, collectives)

    def _hidden(
        self,
        forward: FloatArray,
        backward: FloatArray,
        resharding: FloatArray,
        updated: FloatArray,
        sent: dict[_TransferKind, FloatArray],
        collectives: FloatArray,
    ) -> StepTime:
        """The step of layers whose kernels and transfers are known."""
        each, once = np.zeros((2, 2, self.n_layers))
        reduced = np.zeros(self.n_layers)
        for kind, size in sent.items():
            seconds = self._seconds(kind, size)
            (once if kind[0] == TransferPhase.STEP else each)[_pass_of(kind)] += seconds
            reduced += seconds if _is_reduced(kind) else 0.0
        launches = self._launch_s + host_work(self.step.implementation).collective * self._launch_each_s * collectives
        passes = np.array(HostTime(launches[0], launches[1]).bounds(forward, backward))
        stream = stream_of(self.mesh)
        shown = np.array(passes_exposed_s(each[0], each[1], passes[0], passes[1], stream))
        with_last = np.array(passes_exposed_s(each[0] + once[0], each[1] + once[1], passes[0], passes[1], stream))
        # Nothing runs beside the first layer's: they are the last to leave and the first to be needed.
        added = with_last - shown
        _, reduced_beside = passes_exposed_s(each[0], reduced, passes[0], passes[1], stream)
        added[:, 0] = once[:, 0] + [0.0, reduced[0] - reduced_beside[0]]
        slower, kernels = self._stretch, np.array([forward, backward])
        return StepTime(
            forward_s=passes[0],
            backward_s=passes[1],
            kernels_forward_s=forward,
            kernels_backward_s=backward,
            resharding_s=resharding,
            exposed_s=shown.sum(axis=0),
            sent_once_s=added.sum(axis=0),
            optimizer_s=self._seconds(None, updated),
            host_s=step_host_s(self.mesh.device, self.step.implementation),
            microbatches=self.step.microbatches,
            pieces=Pieces(
                self._by_group(launches > kernels),
                self._by_group(each * (1.0 - slower) > passes),
                self._by_group((each + once) * (1.0 - slower) > passes),
            ),
        )

    def _by_group(self, of_layers: BoolArray) -> FloatArray:
        """What most layers of each group have."""
        sums = np.zeros((2, len(self.groups)))
        np.add.at(sums.T, self.group_of, np.where(of_layers, 1.0, -1.0).T)
        return np.asarray(sums > 0.0, np.float64)

    @property
    def _stretch(self) -> float:
        """Seconds that a second of transfers adds to a pass which hides it."""
        return float(exposed_s(np.array(1.0), np.array(1e9), stream_of(self.mesh), MEASURED_INTERFERENCE))

    @property
    def _launch_each_s(self) -> float:
        return sustained_launch_s(self.mesh.device)

    @cached_property
    def _launch_s(self) -> FloatArray:
        """[pass, layer]: launches of each layer's kernels, those of resharding aside."""
        model, device, how = self.request.model, self.mesh.device, self.step.implementation
        known = {name: host_time(model.block(name), device, how) for name in dict.fromkeys(model.layers)}
        times = [known[name] for name in model.layers]
        return np.array([[time.forward_s for time in times], [time.backward_s for time in times]])

    @cached_property
    def edge_layers(self) -> dict[ClassEdge, IntArray]:
        """The layers of the edges that a class edge stands for: those of their readers."""
        found: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        for edge in self.graph.edges:
            key = (self.folding.class_of[edge.source], edge.output, self.folding.class_of[edge.target], edge.input)
            found[key].append(self.graph.nodes[edge.target].layer)
        return {
            edge: np.array(found[edge.source, edge.edge.output, edge.target, edge.edge.input], dtype=np.int64)
            for edge in self.class_edges
        }

    # What no choice is below: sums, with the weights that pieces give.

    def usual(self) -> Pieces:
        """The sums of layers whose passes hide all that they send."""
        nothing = np.zeros((2, len(self.groups)))
        return Pieces(nothing, nothing, nothing)

    def linear(self, pieces: Pieces, choices: Sequence[OperatorChoice] | None = None) -> LayerCosts:
        """Return the same costs as sums over operators and edges, which are no more than the time of any choice, and near to
        that of ``choices``."""
        m, a = self.step.microbatches, self._stretch
        is_first = np.array([first for _, first in self.groups])
        most, last = np.where(is_first, [[m], [m - 1]], m - 1), np.where(is_first, 0, 1)
        # The first layer's last gradients show in full. The gathers that travel before them show no less than what they slow of
        # the pass, nor together with it less than they take.
        alone = np.where(is_first, [[0.0], [1.0]], 0.0)
        passes = (most + alone) * (1.0 - pieces.sends) + last * (1.0 - pieces.sends_last)
        sent = (most + alone) * (a + (1.0 - a) * pieces.sends) + last * (a + (1.0 - a) * pieces.sends_last)
        reduced = sent[1] + alone[1] * (1.0 - a) * (1.0 - pieces.sends[1])
        once = np.where(is_first, 1.0, a + (1.0 - a) * pieces.sends_last)
        layers = np.bincount(self.group_of, minlength=len(self.groups))
        first_of = [int(np.flatnonzero(self.group_of == group)[0]) for group in range(len(self.groups))]
        constant_s = float((layers * passes * pieces.host * self._launch_s[:, first_of]).sum())
        other = copy(self)
        other._weights = _Weights(
            np.asarray(passes * (1.0 - pieces.host), np.float64),
            sent,
            reduced,
            once,
            np.asarray(passes * pieces.host, np.float64),
            self._before(choices),
            constant_s + step_host_s(self.mesh.device, self.step.implementation),
        )
        return other

    @property
    def constant_s(self) -> float:
        """What the sums lack: the same for all choices."""
        return 0.0 if self._weights is None else self._weights.constant_s

    @property
    def rounding_s(self) -> float:
        """How far whole nanoseconds may be from the sums."""
        return (2 * len(self.folding.members) + len(self.class_edges)) / NS_PER_S

    def class_cost_ns(self, index: int) -> IntArray:
        """Time of the passes of all nodes of a class."""
        if self._weights is None:
            return super().class_cost_ns(index)
        priced, count = self.of_class(index), self._count(self.layer_of[list(self.folding.members[index])])
        forward, backward = self._weights.passes @ count
        return whole_ns(forward * priced.forward_s + backward * priced.backward_s)

    def edge_cost_ns(self, edge: ClassEdge) -> IntArray:
        """Resharding time a step of equal edges."""
        if self._weights is None:
            return super().edge_cost_ns(edge)
        forward, backward = self._weights.passes @ self._count(self.edge_layers[edge])
        tables = self.edge_s(edge.edge)
        seconds = forward * tables[0] + backward * tables[1]
        launches = self._weights.launches @ self._count(self.edge_layers[edge])
        if launches.any() and (tables[0].any() or tables[1].any()):
            each_s = host_work(self.step.implementation).collective * self._launch_each_s
            counts = self._collectives(edge.edge)
            seconds = seconds + each_s * (launches[0] * counts[0] + launches[1] * counts[1])
        return whole_ns(seconds)

    def _collectives(self, edge: GraphEdge) -> FloatArray:
        """[pass, assignment of source, of target]: collectives of an edge."""
        if edge not in self._known_counts:
            shape = self.edge_s(edge)[0].shape
            counts = np.array(
                [[len(self.forward_path(edge, *ends)), len(self.gradient_path(edge, *ends))] for ends in np.ndindex(shape)]
            )
            self._known_counts[edge] = counts.T.reshape(2, *shape).astype(np.float64)
        return self._known_counts[edge]

    def storage_cost_ns(self, index: int) -> IntArray:
        """Time that each storage of a class adds: its transfers at the rate of all that its layer may send together."""
        if self._weights is None:
            return super().storage_cost_ns(index)
        places = Counter(
            (int(self.group_of[self.layer_of[node]]), int(self.place_of[node])) for node in self.folding.members[index]
        )
        storages = self.of_class(index).storages
        seconds = np.zeros(len(storages))
        for (group, place), count in places.items():
            for kind, sizes in self._sizes_of(index).items():
                weight = 1.0 if kind is None else float(self._weights.of(kind)[group])
                before = self._weights.before.get((group, kind), {}).get(place, 0.0)
                seconds += count * weight * (self._seconds(kind, before + sizes) - self._seconds(kind, np.array(before)))
        return whole_ns(seconds)

    def _sizes_of(self, index: int) -> dict[_TransferKind | None, FloatArray]:
        """Bytes of each kind of transfer by storage of a class; of no kind those of the update."""
        key = self._kinds[self.folding.members[index][0]]
        if key not in self._known_sizes:
            storages = self.of_class(index).storages
            sent = [_sent_bytes(storage) for storage in storages]
            kinds = sorted({kind for each in sent for kind in each})
            found: dict[_TransferKind | None, FloatArray] = {
                kind: np.array([each.get(kind, 0.0) for each in sent]) for kind in kinds
            }
            found[None] = np.array([storage.updated_bytes for storage in storages])
            self._known_sizes[key] = {kind: sizes for kind, sizes in found.items() if sizes.any()}
        return self._known_sizes[key]

    def _seconds(self, kind: _TransferKind | None, size: FloatArray) -> FloatArray:
        """Seconds of all that a layer sends of a kind, or updates."""
        if kind is None:
            moved = np.asarray(memory_bound_s(self.mesh.device, np.asarray(size, np.float64)), np.float64)
            return moved / self.mesh.device.sustained.memory
        _, collective, axes = kind
        return np.asarray(collective_s(Collective(collective), size, self.mesh.axes[axes[0]].topology), np.float64)

    def _count(self, layers: IntArray) -> FloatArray:
        return np.bincount(self.group_of[layers], minlength=len(self.groups)).astype(np.float64)

    def _before(self, choices: Sequence[OperatorChoice] | None) -> dict[tuple[int, _TransferKind | None], dict[int, float]]:
        """By group of layers, kind and place of an operator in its layer: the most that operators before it send, those first
        that send most under ``choices``.

        Time rises less than size does, so what an operator adds to that is no more than it adds to what goes with it; the first
        one bears what a message takes however small.
        """
        first_of = {int(group): layer for layer, group in reversed(list(enumerate(self.group_of)))}
        found: dict[tuple[int, _TransferKind | None], dict[int, float]] = {}
        for group, layer in first_of.items():
            rows: dict[_TransferKind | None, list[tuple[float, float, int]]] = defaultdict(list)
            for node in np.flatnonzero(self.layer_of == layer).tolist():
                index = self.folding.class_of[node]
                chosen = None if choices is None else choices[index].storage
                for kind, sizes in self._sizes_of(index).items():
                    most = float(sizes.max())
                    rows[kind].append((-(most if chosen is None else float(sizes[chosen])), most, int(self.place_of[node])))
            for kind, row in rows.items():
                sums = np.cumsum([0.0, *(most for _, most, _ in sorted(row))])
                found[group, kind] = {place: float(sums[i]) for i, (_, _, place) in enumerate(sorted(row))}
        return found

    # Memory: what stays, what all layers keep, and what the layer needs that needs most.

    def ranges(self) -> LiveRanges:
        """State and what is kept for the backward pass, always; while a layer runs, its whole weights and gradients and the
        buffers of a loss; gradients of an operator's inputs and outputs while it runs."""
        count, law = len(self.graph.nodes), self.step.implementation.memory
        start = np.searchsorted(self.layer_of, self.layer_of)
        end = np.searchsorted(self.layer_of, self.layer_of, side="right")
        nodes = np.arange(count)
        zero, one = np.zeros(count, dtype=np.int64), np.ones(count)
        loss = np.array([self._loss_scale(node.block) for node in self.graph.nodes])
        kept = self._kept()
        parts = [
            (nodes, Kind.STATE, zero, zero, zero + count, one),
            (nodes, Kind.BACKWARD, zero, start, end, law.transients * one),
            (nodes, Kind.BUFFER, zero, start, end, law.transients * loss),
            (nodes, Kind.WORKING, zero, nodes, nodes + 1, law.transients * one),
            (
                kept[0].astype(np.int64),
                Kind.OUTPUT,
                kept[1].astype(np.int64),
                np.zeros(len(kept[0]), dtype=np.int64),
                np.full(len(kept[0]), count),
                law.activations * kept[2],
            ),
        ]
        return LiveRanges(
            node=np.concatenate([node for node, *_ in parts]),
            kind=np.concatenate([np.full(len(node), int(kind)) for node, kind, *_ in parts]),
            output=np.concatenate([output for _, _, output, *_ in parts]),
            start=np.concatenate([begin for _, _, _, begin, *_ in parts]),
            end=np.concatenate([until for *_, until, _ in parts]),
            times=count,
            scale=np.concatenate([scale for *_, scale in parts]),
        )

    def _kept(self) -> FloatArray:
        """Rows: node, output and how often it is kept, over its bytes in the working format. What one block writes and another
        reads is kept in the form that the reader needs."""
        size = self.step.dtype.size_bytes
        found: list[tuple[int, int, float]] = []
        for index, node in enumerate(self.graph.nodes):
            by_name = self._kept_bytes(node.block).by_mode[Recompute.NONE]
            found += [
                (index, output, by_name[tensor.name] / size)
                for output, tensor in enumerate(node.operator.outputs)
                if by_name.get(tensor.name, 0.0) > 0.0
            ]
        entries = {
            (edge.source, edge.output, self.graph.nodes[edge.target].layer): self.graph.nodes[edge.target].block
            for edge in self.graph.edges
            if self.graph.nodes[edge.source].layer != self.graph.nodes[edge.target].layer
        }
        for (source, output, _), block in entries.items():
            found.append((source, output, self._kept_bytes(block).inputs[Recompute.NONE] / size))
        return np.asarray(np.array([row for row in found if row[2] > 0.0], np.float64).reshape(-1, 3).T)

    def _kept_bytes(self, block: str) -> KeptBytes:
        workload = self.request.workload
        saved: SavedFormat = workload.saved_activations
        return kept_bytes(self.request.model.block(block), self.step.dtype, self.step.implementation, workload.matmul, saved)

    def _loss_scale(self, block: str) -> float:
        """Bytes of a logit while the loss runs, over those that an operator counts alone."""
        alone = DType.FP32.size_bytes + self.step.dtype.size_bytes
        return loss_transient_element_bytes(self._kept_bytes(block).rules) / alone


def _sent_bytes(storage: Storage) -> dict[_TransferKind, float]:
    """Bytes of each kind of transfer."""
    sizes: dict[_TransferKind, float] = {}
    for sent in storage.traffic:
        kind = transfer_kind(sent)
        sizes[kind] = sizes.get(kind, 0.0) + sent.transfer.message_bytes
    return sizes


def _pass_of(kind: _TransferKind) -> int:
    """The pass beside which transfers of a kind travel, 0 for the forward one: once a step new weights under the forward pass,
    gradients under the backward pass."""
    phase, collective, _ = kind
    if phase == TransferPhase.STEP:
        return int(collective != Collective.ALL_GATHER)
    return int(phase == TransferPhase.BACKWARD)


def _is_reduced(kind: _TransferKind) -> bool:
    """Return True for gradients that are added up in every micro-batch."""
    phase, collective, _ = kind
    return phase == TransferPhase.BACKWARD and collective == Collective.REDUCE_SCATTER
