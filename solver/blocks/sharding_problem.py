"""The sharding problem of one block under fixed degrees: cost vectors of strategies, and resharding between operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.kernels.operator_time import (
    OperatorTime,
    Product,
    operator_time,
    product_in_parts_s,
    weight_gradient_s,
)
from meshwright.costmodels.kernels.step_by_step_scan import step_by_step_kept_bytes
from meshwright.costmodels.memory.saved_activations import SavingRules, loss_transient_element_bytes
from meshwright.costmodels.model.dims import BATCH, EXPERTS, FFN, SEQ, VOCAB
from meshwright.costmodels.model.experts import ExpertRegion, expert_dims, expert_region
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    GatedProducts,
    Implementation,
    Logits,
    ScanKernels,
    TensorOverlap,
    TrainedWeights,
)
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, key_value_elements, matmul_shape, parameters
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.overlap import (
    CHUNKERS,
    MEASURED_INTERFERENCE,
    Stream,
    added_s,
    adding_up_s,
    chunking,
    exposed_s,
    passes_exposed_s,
    travelling_chunk_s,
)
from meshwright.costmodels.network.token_dispatch import dispatch_s, expert_choice
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.recompute import KeptBytes, kept_bytes
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.tp_strategies import REPLICATED, Spec, SpecKind, Strategy, conversion, strategies
from meshwright.solver.control import Stop, never_stop
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.declared.constraints import WHOLE, asked_layouts, asked_shardings
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.sharding_problem.criteria_graph import CriteriaGraph
from meshwright.solver.sharding_problem.elimination import unbeaten
from meshwright.solver.sharding_problem.frontier import OperatorSearch

# The operator-sharding problem of a block, solved exactly.
#
# One strategy per operator; each choice has a cost vector (time, memory, once-a-step costs), and each edge a resharding
# cost vector that depends on both ends (Alpa, OSDI'22, eq. 1). Which memory is worth which time is known only to the
# pipeline stage that holds the block, so the answer is the whole Pareto frontier, not one point.
#
# The frontier is that of the sharding engine (`solver.sharding_problem.frontier`), which also shards whole graphs.

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ReshardEdge:
    """Resharding between two operators: cost vector ``cost[i, j]`` for strategy i of ``source`` and j of ``target``."""

    source: int
    target: int
    cost: FloatArray


@dataclass(frozen=True)
class IntraOpProblem:
    """Operators, and for each its strategies' cost vectors, shape (strategies, criteria).

    The first ``n_objectives`` criteria decide which choice beats which; the rest are carried along for reports.
    """

    node_costs: tuple[FloatArray, ...]
    edges: tuple[ReshardEdge, ...]
    n_objectives: int


@dataclass(frozen=True)
class IntraOpPoint:
    """A point of the frontier: the strategy index of each operator and the block's cost vector."""

    choice: tuple[int, ...]
    cost: tuple[float, ...]


def evaluate(problem: IntraOpProblem, choice: Sequence[int]) -> tuple[float, ...]:
    """Cost vector of a choice of strategies."""
    total = np.sum([costs[i] for costs, i in zip(problem.node_costs, choice, strict=True)], axis=0)
    for edge in problem.edges:
        total = total + edge.cost[choice[edge.source], choice[edge.target]]
    return tuple(float(value) for value in total)


def frontier(
    problem: IntraOpProblem, stop: Stop = never_stop, *, search: OperatorSearch | None = None
) -> tuple[IntraOpPoint, ...]:
    """Every Pareto-optimal cost vector with one choice each, sorted by cost; of elimination ties go to the smallest choice.

    ``search`` says which solver finds them, None the default. Raises SearchStopped and what `OperatorSearch.choices` does.
    """
    if all(len(costs) == 1 for costs in problem.node_costs):
        only = (0,) * len(problem.node_costs)
        return (IntraOpPoint(only, evaluate(problem, only)),)
    edges = tuple((edge.source, edge.target, edge.cost) for edge in problem.edges)
    choices = (search or OperatorSearch()).choices(CriteriaGraph(problem.node_costs, edges, problem.n_objectives), stop)
    points = [IntraOpPoint(choice, evaluate(problem, choice)) for choice in choices]
    return tuple(_undominated(points, problem.n_objectives))


def _undominated(points: Iterable[IntraOpPoint], n_objectives: int) -> list[IntraOpPoint]:
    """Points that no other beats or equals, sorted: sums in another order differ in their last bits."""
    ordered = sorted(points, key=lambda item: (item.cost, item.choice))
    kept = unbeaten(np.array([[point.cost[:n_objectives] for point in ordered]]))[0]
    return list(itertools.compress(ordered, kept))


class Criterion(IntEnum):
    """Components of a block's cost vector; all are sums over operators, smaller is better."""

    TIME_S = 0
    """Forward and backward pass of a micro-batch with exposed communication, nothing recomputed."""
    FORWARD_S = 1
    """Its forward part, which full recomputation runs again."""
    SYNC_S = 2
    """Once a step: all-reduce over tp of gradients of weights that every rank holds but uses on its share of tokens."""
    PARAMETERS = 3
    """Parameters a rank stores, those of experts spread over the ep axis left out."""
    SAVED_BYTES = 4
    """Activations kept for backward, nothing recomputed."""
    TRANSIENT_BYTES = 5
    """Buffers that live only while the block runs."""
    EXPERT_PARAMETERS = 6
    """Parameters a rank stores of experts spread over the ep axis, which fewer ranks share."""
    SELECTIVE_S = 7
    """The seconds of the operators that selective recomputation runs again."""
    SELECTIVE_BYTES = 8
    """Activations kept under selective recomputation."""
    FINE_GRAINED_S = 9
    """The seconds of the operators that fine-grained recomputation runs again."""
    FINE_GRAINED_BYTES = 10
    """Activations kept under fine-grained recomputation."""
    KEY_VALUE_BYTES = 11
    """Keys and values of token slices that later slices of their sequence read."""
    # What follows is part of TIME_S. The first two decide where micro-batches hide exchanges, the rest is only reported.
    EP_COMM_S = 12
    """Part of TIME_S that is the exchange of tokens between ranks that hold different experts."""
    BESIDE_S = 13
    """The rest of it."""
    TP_COMM_S = 14
    """Part of TIME_S that is tensor-parallel communication."""
    CP_COMM_S = 15
    """Part of TIME_S that is context-parallel communication not hidden under attention."""
    MASKED_S = 16
    """Part of TIME_S that is attention under masks of documents, of which ranks have unequal work."""
    MASKED_FORWARD_S = 17
    """Its forward part."""


COMMUNICATION = [Criterion.TP_COMM_S, Criterion.CP_COMM_S, Criterion.EP_COMM_S]


OF_MODE = {
    Recompute.SELECTIVE: (Criterion.SELECTIVE_S, Criterion.SELECTIVE_BYTES),
    Recompute.FINE_GRAINED: (Criterion.FINE_GRAINED_S, Criterion.FINE_GRAINED_BYTES),
}
"""The criteria of each partial recompute mode: what it runs again, and what it keeps."""

_ALONG_THE_SEQUENCE = (OperatorKind.ATTENTION, OperatorKind.SCAN, OperatorKind.CONVOLUTION)

_KEPT_BYTES = [Criterion.SAVED_BYTES, *(kept for _, kept in OF_MODE.values())]


def n_objectives(modes: Collection[Recompute], *, sliced: bool = False, paired: bool = False) -> int:
    """Return the number of criteria, from the first, that decide which sharding beats which when stages may run these recompute
    modes, on whole sequences or on token slices, or on pairs of micro-batches."""
    if paired:
        return Criterion.TP_COMM_S
    if sliced:
        return Criterion.EP_COMM_S
    if Recompute.FINE_GRAINED in modes:
        return Criterion.KEY_VALUE_BYTES
    return Criterion.FINE_GRAINED_S if Recompute.SELECTIVE in modes else Criterion.SELECTIVE_S


@dataclass(frozen=True)
class BlockProblem:
    """The problem, with the strategies that its indices stand for."""

    problem: IntraOpProblem
    strategies: tuple[tuple[Strategy, ...], ...]


_OF_PARAMETERS = [Criterion.SYNC_S, Criterion.PARAMETERS, Criterion.EXPERT_PARAMETERS]


def sum_of_slices(costs: FloatArray) -> FloatArray:
    """``[..., criterion]``: the cost of all token slices together from ``[slice, ..., criterion]``; the same parameters serve
    them all, and buffers of one at a time live."""
    total = np.asarray(costs.sum(axis=0), np.float64)
    total[..., _OF_PARAMETERS] = costs[0][..., _OF_PARAMETERS]
    total[..., Criterion.TRANSIENT_BYTES] = costs[..., Criterion.TRANSIENT_BYTES].max(axis=0)
    return total


def joined_slices(slices: Sequence[BlockProblem]) -> BlockProblem:
    """The problem of a block whose sequences pass in token slices, from the problem of each slice: one sharding for all."""
    nodes = tuple(sum_of_slices(np.array(costs)) for costs in zip(*(each.problem.node_costs for each in slices), strict=True))
    edges = tuple(
        replace(of_slices[0], cost=sum_of_slices(np.array([edge.cost for edge in of_slices])))
        for of_slices in zip(*(each.problem.edges for each in slices), strict=True)
    )
    return BlockProblem(IntraOpProblem(nodes, edges, n_objectives=n_objectives((), sliced=True)), slices[0].strategies)


def build_block_problem(
    graph: ModelGraph, block: Block, setting: BlockSetting, *, like: BlockProblem | None = None
) -> BlockProblem | None:
    """The sharding problem of a block; None when an operator has no strategy in the space (a dim does not divide).

    All costs but attention's are those of ``like``, the block's problem under the same setting `BlockSetting.beside_attention`.
    """
    sizes = {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp}
    if like is not None:
        if all(operator.kind is not OperatorKind.ATTENTION for operator in block.operators):
            return like
        costing = _Costing(graph, block, setting, sizes)
        nodes = tuple(
            costing.nodes(operator, options) if operator.kind is OperatorKind.ATTENTION else known
            for operator, options, known in zip(block.operators, like.strategies, like.problem.node_costs, strict=True)
        )
        return replace(like, problem=replace(like.problem, node_costs=nodes))
    choices = _choices(block, sizes, setting)
    if not all(choices):
        return None
    costing = _Costing(graph, block, setting, sizes)
    node_costs = tuple(costing.nodes(operator, options) for operator, options in zip(block.operators, choices, strict=True))
    index = {operator.name: i for i, operator in enumerate(block.operators)}
    edges = []
    for source, target, tensor_name in block.edges():
        u, v = index[source], index[target]
        tensor = next(t for t in block.operators[u].outputs if t.name == tensor_name)
        table = np.array(
            [[costing.edge(block.operators[u], a, block.operators[v], b, tensor) for b in choices[v]] for a in choices[u]],
            dtype=np.float64,
        )
        if table.any():
            edges.append(ReshardEdge(u, v, table))
    return BlockProblem(IntraOpProblem(node_costs, tuple(edges), n_objectives=n_objectives(OF_MODE)), choices)


def with_modules(graph: ModelGraph, block: Block, setting: BlockSetting, usual: BlockProblem) -> BlockProblem:
    """The sharding problem of a block under the setting's modules of fine-grained recomputation, from that of the ``usual``
    ones under a setting alike in all else."""
    costing = _Costing(graph, block, setting, {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp})
    kept = kept_in(block, replace(setting, modules=USUAL_MODULES)).by_mode[Recompute.FINE_GRAINED]
    nodes = tuple(
        costing.with_modules(operator, options, known, kept)
        for operator, options, known in zip(block.operators, usual.strategies, usual.problem.node_costs, strict=True)
    )
    edges = []
    for edge in usual.problem.edges:
        again = costing.sends_again(Recompute.FINE_GRAINED, block.operators[edge.source], block.operators[edge.target])
        cost = edge.cost.copy()
        cost[..., Criterion.FINE_GRAINED_S] = cost[..., Criterion.FORWARD_S] if again else 0.0
        edges.append(replace(edge, cost=cost))
    return replace(usual, problem=replace(usual.problem, node_costs=nodes, edges=tuple(edges)))


def least_compute_s(
    graph: ModelGraph, block: Block, setting: BlockSetting, known: dict[tuple[object, ...], float]
) -> float | None:
    """Time that no sharding of a block computes less than, forward and backward, communication left out: each operator under
    the strategy that is best for it alone. None when an operator has no strategy in the space.

    ``known`` keeps times of operators by local sizes, for settings that differ in device, degrees, micro-batch and tokens.
    """
    sizes = {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp}
    choices = _choices(block, sizes, setting)
    if not all(choices):
        return None
    costing = _Costing(graph, block, setting, sizes)
    total_s = 0.0
    for operator, options in zip(block.operators, choices, strict=True):
        least_s = math.inf
        for strategy in options:
            local = costing.timed_sizes(operator, strategy)
            place = (setting.ring_topology.n, setting.place, setting.implementation)
            key = (setting.device.name, operator.name, tuple(local.values()), *place)
            if key not in known:
                time = costing.time(operator, local)
                known[key] = time.forward_s + time.backward_s
            least_s = min(least_s, known[key])
        total_s += least_s
    return total_s


def _choices(block: Block, sizes: dict[str, int], setting: BlockSetting) -> tuple[tuple[Strategy, ...], ...]:
    """The strategies of each operator of a block: of those in the space what constraints ask for."""
    whole = expert_region(block.operators).operators if setting.whole_experts else frozenset()
    found: list[tuple[Strategy, ...]] = []
    for operator in block.operators:
        options = _over_tokens(sizes, setting.tp) if operator.name in whole else _strategies(operator, sizes, setting)
        if setting.constraints:
            options = tuple(strategy for strategy in options if _is_asked(strategy, block.name, operator, setting))
        found.append(options)
    return tuple(found)


def _is_asked(strategy: Strategy, block: str, operator: Operator, setting: BlockSetting) -> bool:
    """Return True if constraints leave an operator a strategy: it is theirs, and writes each tensor in their layout."""
    asked = asked_shardings(setting.constraints, block, operator.name)
    layouts = ((strategy.output_spec(operator, each), each.name) for each in operator.outputs)
    return (not asked or (strategy.dim or WHOLE) in asked) and all(
        not (wanted := asked_layouts(setting.constraints, block, tensor))
        or (spec.dim in wanted if spec.kind is SpecKind.SHARDED else spec == REPLICATED and WHOLE in wanted)
        for spec, tensor in layouts
    )


def _over_tokens(sizes: dict[str, int], tp: int) -> tuple[Strategy, ...]:
    """The strategy of what whole experts compute: each rank of tp has tokens of its own."""
    return () if sizes[SEQ] % tp else (Strategy(SEQ),)


def _strategies(operator: Operator, sizes: dict[str, int], setting: BlockSetting) -> tuple[Strategy, ...]:
    """Strategies in the space. Launchers switch sequence parallelism for the whole model, so there the vector operators
    on the residual stream lie as the boundary does."""
    if operator.kind is OperatorKind.LOSS and setting.implementation.logits is Logits.GATHERED:
        return (Strategy(None),)
    options = strategies(operator, sizes, setting.tp, setting.space, padded=setting.padded, splits=setting.splits)
    if setting.space is Space.FREE or len(options) < 2:
        return options
    return tuple(strategy for strategy in options if strategy.dim == setting.boundary.dim) or options[:1]


class _Costing:
    """Cost vectors of one block's operators and edges."""

    def __init__(self, graph: ModelGraph, block: Block, setting: BlockSetting, sizes: dict[str, int]):
        self.block = block
        self.setting = setting
        self.sizes = sizes
        self.is_first = graph.layers[0] == block.name
        self.is_last = graph.layers[-1] == block.name
        self.written = {tensor.name for operator in block.operators for tensor in operator.outputs}
        self.region = expert_region(block.operators)
        self.ranks = setting.sequence_ranks
        self.experts = expert_choice(graph.dims) if EXPERTS in graph.dims else None

    @cached_property
    def kept_bytes(self) -> KeptBytes:
        """What the block keeps for its backward pass."""
        return kept_in(self.block, self.setting)

    @cached_property
    def communication(self) -> TensorCommunication:
        """What its tensors take to send."""
        return TensorCommunication(self.setting, self.sizes, self.region, self.kept_bytes.rules)

    def timed_sizes(self, operator: Operator, strategy: Strategy) -> Mapping[str, int]:
        """The local sizes that decide how long an operator computes: of the rank that has most."""
        evenly = strategy.local_sizes(self.sizes, self.setting.tp)
        if operator.kind in _ALONG_THE_SEQUENCE:
            return self.ranks.attended_sizes(
                self.block, operator, self.region.local_sizes(operator, evenly, ep=self.setting.ep)
            )
        return self.region.local_sizes(operator, evenly, ep=self.setting.ep, load=self.setting.expert_load)

    def time(self, operator: Operator, local: Mapping[str, int]) -> OperatorTime:
        """Time of one operator under local sizes."""
        setting = self.setting
        rules = self.kept_bytes.rules
        is_low = setting.recipe.dtype is not None and (operator.name in rules.low_precision or rules.keeps_in_fp8(operator))
        return operator_time(
            operator,
            local,
            device=setting.device,
            dtype=setting.dtype,
            cp=setting.ring_topology.n,
            gathers_keys=setting.gathers_keys,
            gradient_dtype=setting.gradient_dtype,
            kernels=setting.implementation.kernels,
            attention=setting.implementation.attention,
            trained=setting.implementation.trained,
            adapter=setting.adapter,
            targets=setting.implementation.adapter_targets,
            scan=setting.implementation.scan,
            loss=setting.implementation.loss,
            recipe=setting.recipe if is_low else MatmulRecipe.WORKING,
            place=setting.place,
            documents=setting.documents,
        )

    def nodes(self, operator: Operator, options: tuple[Strategy, ...]) -> FloatArray:
        """Cost vectors of one operator, a row for each strategy."""
        return np.array([self.node(operator, strategy) for strategy in options], dtype=np.float64)

    def node(self, operator: Operator, strategy: Strategy) -> FloatArray:
        """Cost vector of one operator under a strategy; conversions at the block's own boundary included."""
        setting = self.setting
        evenly = strategy.local_sizes(self.sizes, setting.tp)
        local = self.region.local_sizes(operator, evenly, ep=setting.ep)
        cost = np.zeros(len(Criterion))
        time = self.time(operator, self.timed_sizes(operator, strategy))
        cost[Criterion.TIME_S] = time.forward_s + time.backward_s
        cost[Criterion.FORWARD_S] = time.forward_s
        if setting.documents is not None and setting.documents.masks(operator):
            cost[Criterion.MASKED_S] = time.forward_s + time.backward_s
            cost[Criterion.MASKED_FORWARD_S] = time.forward_s
        for mode, (rerun_s, _) in OF_MODE.items():
            cost[rerun_s] = self.kept_bytes.tensors[mode].rerun_share(operator, local) * time.forward_s
        spread = (setting.ep > 1 or setting.whole_experts) and expert_dims(operator)
        cost[Criterion.EXPERT_PARAMETERS if spread else Criterion.PARAMETERS] = parameters(operator, local)
        if strategy.stores_split:
            self._add_split_storage(cost, operator, strategy, local, time)
        else:
            cost[Criterion.SYNC_S] = self._gradient_sync_s(operator, strategy, local)
        if operator.kind is OperatorKind.LOSS:
            cost[Criterion.TRANSIENT_BYTES] = operator.inputs[0].elements(local) * loss_transient_element_bytes(
                self.kept_bytes.rules
            )
        for tensor in operator.outputs:
            self._add_saved(cost, tensor, local)
        if operator.kind is OperatorKind.ATTENTION and setting.place.later:
            cost[Criterion.KEY_VALUE_BYTES] = key_value_elements(operator, local) * setting.dtype.size_bytes
        if setting.implementation.scan is ScanKernels.STEP_BY_STEP:
            # No partial mode runs a scan again.
            cost[_KEPT_BYTES] += step_by_step_kept_bytes(operator, local, setting.dtype)
        if setting.adapter is not None:
            # Latents, which the gradients of the second matrices read, and what magnitudes multiply.
            values = setting.adapter.kept_values(operator, local)
            cost[_KEPT_BYTES] += values * (matmul_shape(operator, local)[0] if values else 0) * setting.dtype.size_bytes
        self._add_boundary(cost, operator, strategy)
        if operator.kind in _ALONG_THE_SEQUENCE and setting.cp > 1:
            self._add_context_parallel(cost, operator, local, time)
        cost[Criterion.BESIDE_S] = cost[Criterion.TIME_S]
        self._add_expert_parallel(cost, operator, strategy)
        for mode, (rerun_s, _) in OF_MODE.items():
            if operator.name in self.kept_bytes.tensors[mode].whole:
                cost[rerun_s] = cost[Criterion.FORWARD_S]
        return cost

    def edge(self, source: Operator, a: Strategy, target: Operator, b: Strategy, tensor: Tensor) -> FloatArray:
        """Cost vector of resharding one tensor forward, and its gradient backward."""
        forward, backward = self.communication.edge_s(Placed(source, a), Placed(target, b), tensor)
        cost = self._communication(forward, backward)
        for mode, (rerun_s, _) in OF_MODE.items():
            if self.sends_again(mode, source, target):
                cost[rerun_s] += forward
        return cost

    def sends_again(self, mode: Recompute, source: Operator, target: Operator) -> bool:
        """Return True if what one operator sends another is sent again under a mode: an up-projection that runs again gathers
        its latent, a module that runs again sends all that it sent."""
        again = self.kept_bytes.tensors[mode]
        gathers = target.kind is OperatorKind.MATMUL and target.name in again.reruns
        return gathers or bool({source.name, target.name} & again.whole)

    def with_modules(
        self, operator: Operator, options: Sequence[Strategy], usual: FloatArray, kept: Mapping[str, float]
    ) -> FloatArray:
        """Cost vectors of one operator from those of the usual modules, which keep so many bytes (``kept``) of each element."""
        again, costs = self.kept_bytes.tensors[Recompute.FINE_GRAINED], usual.copy()
        if operator.name in again.whole:
            costs[:, Criterion.FINE_GRAINED_S] = costs[:, Criterion.FORWARD_S]
        elif operator.name not in again.reruns:
            costs[:, Criterion.FINE_GRAINED_S] = 0.0
        mine = self.kept_bytes.by_mode[Recompute.FINE_GRAINED]
        for tensor in operator.outputs:
            more = mine.get(tensor.name, 0.0) - kept.get(tensor.name, 0.0)
            for row, strategy in enumerate(options if more else ()):
                evenly = strategy.local_sizes(self.sizes, self.setting.tp)
                local = self.region.local_sizes(operator, evenly, ep=self.setting.ep)
                costs[row, Criterion.FINE_GRAINED_BYTES] += more * self._kept_elements(tensor, local)
        return costs

    def _communication(self, forward_s: float, backward_s: float) -> FloatArray:
        cost = np.zeros(len(Criterion))
        cost[Criterion.TIME_S] = cost[Criterion.TP_COMM_S] = cost[Criterion.BESIDE_S] = forward_s + backward_s
        cost[Criterion.FORWARD_S] = forward_s
        return cost

    def _add_saved(self, cost: FloatArray, tensor: Tensor, local: dict[str, int]) -> None:
        elements, by_mode = self._kept_elements(tensor, local), self.kept_bytes.by_mode
        cost[Criterion.SAVED_BYTES] += elements * by_mode[Recompute.NONE].get(tensor.name, 0.0)
        for mode, (_, held) in OF_MODE.items():
            cost[held] += elements * by_mode[mode].get(tensor.name, 0.0)

    def _kept_elements(self, tensor: Tensor, local: dict[str, int]) -> float:
        gathered = self.setting.implementation.logits is Logits.GATHERED and VOCAB in tensor.dims
        # The loss keeps its own copy, of all columns once they are gathered.
        elements = float(tensor.elements(self.sizes if gathered else local))
        if tensor.name in self.region.tensors:
            elements *= self.setting.expert_load
        return elements * self.ranks.copies(self.block, tensor, local)

    def _add_boundary(self, cost: FloatArray, operator: Operator, strategy: Strategy) -> None:
        """Resharding between the residual stream's layout and the operators at the block's ends."""
        boundary, convert_s = self.setting.boundary, self.communication.convert_s
        if not self.is_first:
            for tensor in operator.inputs:
                if tensor.name not in self.written:
                    reader = Placed(operator, strategy)
                    cost += self._communication(*self.communication.reading_s(reader, tensor, boundary, boundary))
        for tensor in operator.outputs:
            if tensor.name == self.block.output:
                target = REPLICATED if self.is_last else boundary
                forward = convert_s(strategy.output_spec(operator, tensor), target, tensor)
                backward = 0.0 if self.is_last else convert_s(boundary, strategy.output_gradient_spec(tensor), tensor)
                cost += self._communication(forward, backward)

    def _gradient_sync_s(self, operator: Operator, strategy: Strategy, local: dict[str, int]) -> float:
        if strategy.dim is None or not any(strategy.dim in tensor.dims for tensor in operator.outputs):
            return 0.0
        if self.setting.whole_experts and expert_dims(operator):
            # Ranks of tp are among those that share an expert's gradients.
            return 0.0
        whole = [weight for weight in operator.weights if set(weight.dims).isdisjoint(strategy.dims())]
        size = sum(weight.elements(local) for weight in whole) * self.setting.gradient_dtype.size_bytes
        return float(collective_s(Collective.ALL_REDUCE, size, self.setting.tp_topology)) if size else 0.0

    def _add_split_storage(
        self, cost: FloatArray, operator: Operator, strategy: Strategy, local: dict[str, int], kernels: OperatorTime
    ) -> None:
        """Weights that ranks keep a share of: gathered for each pass of a micro-batch, their gradients scattered, beside the
        operator's own kernels, which stand for those of its neighbours. Those in use and those that come next are whole."""
        setting, elements = self.setting, strategy.whole_elements(operator, local)
        size = elements * setting.dtype.size_bytes
        gather_s, scatter_s = (
            np.array(float(collective_s(kind, bytes_, setting.tp_topology)))
            for kind, bytes_ in (
                (Collective.ALL_GATHER, size),
                (Collective.REDUCE_SCATTER, elements * setting.gradient_dtype.size_bytes),
            )
        )
        stream = Stream.INTER_NODE if setting.tp_topology.spans_nodes else Stream.INTRA_NODE
        forward_s, backward_s = np.array(kernels.forward_s), np.array(kernels.backward_s)
        exposed = passes_exposed_s(gather_s, gather_s + scatter_s, forward_s, backward_s, stream)
        cost += self._communication(*map(float, exposed))
        cost[Criterion.PARAMETERS] -= elements - elements / setting.tp
        cost[Criterion.TRANSIENT_BYTES] += 2 * size + elements * setting.gradient_dtype.size_bytes

    def _add_expert_parallel(self, cost: FloatArray, operator: Operator, strategy: Strategy) -> None:
        """Rows that go to other ranks' experts or come back, and their gradients, which go the other way; nothing hides them
        within a micro-batch."""
        setting, choice = self.setting, self.experts
        if setting.ep_topology is None or choice is None:
            return
        local = strategy.local_sizes(self.sizes, setting.tp)
        for name, tensor in self.region.exchanged:
            if name == operator.name:
                elements = tensor.elements(local) * setting.expert_load / choice.top_k
                there, back = setting.dispatch_format.bytes_of(elements, setting.dtype), elements * setting.dtype.size_bytes
                there_s, back_s = (dispatch_s(setting.dispatch, size, choice, setting.ep_topology) for size in (there, back))
                cost[Criterion.TIME_S] += there_s + back_s
                cost[Criterion.FORWARD_S] += there_s if tensor in operator.outputs else back_s
                cost[Criterion.EP_COMM_S] += there_s + back_s

    def _add_context_parallel(self, cost: FloatArray, operator: Operator, local: dict[str, int], kernels: OperatorTime) -> None:
        """Exposed communication over the ranks of a sequence; a forward pass that runs again has it again."""
        shown = self.ranks.communication_s(self.block, operator, local, kernels)
        forward, backward = shown.forward_s, shown.backward_s
        cost[Criterion.TRANSIENT_BYTES] += self.ranks.gathered_bytes(operator, local)
        # No partial mode runs a scan again, so all keep the states that it began with.
        cost[_KEPT_BYTES] += self.ranks.kept_bytes(self.block, operator, local)
        cost[Criterion.TIME_S] += forward + backward
        cost[Criterion.FORWARD_S] += forward
        cost[Criterion.CP_COMM_S] += forward + backward
        for mode, (rerun_s, _) in OF_MODE.items():
            cost[rerun_s] += self.kept_bytes.tensors[mode].rerun_share(operator, local) * forward


def kept_in(block: Block, setting: BlockSetting) -> KeptBytes:
    """Return the bytes that a block keeps for the backward pass in a setting."""
    dtype, framework, adapter = setting.dtype, setting.implementation, setting.adapter
    return kept_bytes(
        block, dtype, framework, setting.recipe, setting.saved, cp=setting.cp, adapter=adapter, modules=setting.modules
    )


# The seconds that tensor-parallel communication adds to the operators of a block: in full, or what the products beside it do
# not hide.


@dataclass(frozen=True, slots=True)
class Placed:
    """An operator under a strategy."""

    operator: Operator
    strategy: Strategy


def sums_beside_weights(operator: Operator, implementation: Implementation) -> bool:
    """Return True if an operator's input gradients are summed over ranks while its weight gradient is computed."""
    return (
        operator.kind is OperatorKind.MATMUL
        and implementation.tensor_overlap in (TensorOverlap.WEIGHT_GRADIENT, TensorOverlap.USERBUFFERS)
        and implementation.trained is TrainedWeights.ALL
    )


def modules_that_read(operator: Operator, implementation: Implementation) -> int:
    """Modules among which a framework shares an operator, each with its own gradient of the input."""
    is_gated = operator.kind is OperatorKind.MATMUL and [FFN in tensor.dims for tensor in operator.outputs] == [True, True]
    return 2 if is_gated and implementation.gated is GatedProducts.TWO else 1


class TensorCommunication:
    """Times of the tp axis between the operators of one block, whose dims have ``sizes`` before they are split over it."""

    def __init__(self, setting: BlockSetting, sizes: dict[str, int], region: ExpertRegion, rules: SavingRules):
        self._setting = setting
        self._sizes = sizes
        self._region = region
        self._rules = rules
        self._converting_s: dict[tuple[Collective, float], float] = {}

    def edge_s(self, source: Placed, target: Placed, tensor: Tensor) -> tuple[float, float]:
        """Seconds that resharding a tensor adds forward, and its gradient backward."""
        written, gradient = source.strategy.output_spec(source.operator, tensor), source.strategy.output_gradient_spec(tensor)
        return self.reading_s(target, tensor, written, gradient, source)

    def reading_s(
        self, target: Placed, tensor: Tensor, written: Spec, gradient: Spec, source: Placed | None = None
    ) -> tuple[float, float]:
        """Seconds that a tensor adds to its reader forward, and its gradient backward, by their layouts where ``source`` is;
        None for the border of the block. What is kept split for a reader other than a product is gathered again in its backward
        pass."""
        read = next(t for t in target.operator.inputs if t.name == tensor.name)
        wanted, summed = target.strategy.spec(read), target.strategy.input_gradient_spec(target.operator, read)
        forward = self._beside_products(Product.OUTPUT, written, wanted, tensor, before=source, after=target)
        modules = modules_that_read(target.operator, self._setting.implementation)
        if sums_beside_weights(target.operator, self._setting.implementation):
            return forward, self._beside_weight_gradient(modules * self.convert_s(summed, gradient, tensor), target)
        backward = self._beside_products(Product.INPUT_GRADIENT, summed, gradient, tensor, before=target, after=source)
        if target.operator.kind is OperatorKind.MATMUL or tensor.name not in target.operator.saved:
            return forward, modules * backward
        again = forward if conversion(written, wanted) is Collective.ALL_GATHER else 0.0
        return forward, backward + again

    def convert_s(self, source: Spec, target: Spec, tensor: Tensor) -> float:
        """Seconds of the collective that turns one layout of a tensor into another, while nothing else runs."""
        collective = conversion(source, target)
        if collective is None:
            return 0.0
        key = (collective, self._message_bytes(collective, (source, target), tensor))
        if key not in self._converting_s:
            self._converting_s[key] = float(collective_s(*key, self._setting.tp_topology))
        return self._converting_s[key]

    def _beside_products(
        self, product: Product, source: Spec, target: Spec, tensor: Tensor, *, before: Placed | None, after: Placed | None
    ) -> float:
        """Return the seconds that a collective adds where frameworks cut the product that feeds a scatter, or reads what was
        gathered."""
        whole_s = self.convert_s(source, target, tensor)
        setting, kind = self._setting, conversion(source, target)
        chunker = CHUNKERS.get(setting.implementation.tensor_overlap)
        placed = {Collective.ALL_GATHER: after, Collective.REDUCE_SCATTER: before}.get(kind) if kind else None
        if chunker is None or kind is None or placed is None or not self._is_cut(placed.operator):
            return whole_s
        cut = chunking(kind, setting.tp, chunker)
        size = self._bytes(tensor)
        product_s, part_s = product_in_parts_s(
            product,
            placed.operator,
            self._local(placed),
            device=setting.device,
            dtype=self._dtype(placed.operator),
            parts=cut.chunks,
        )
        chunk_s = travelling_chunk_s(kind, size, setting.tp_topology, cut, whole_s=whole_s)
        added = added_s(product_s, part_s, chunk_s, cut, self._stream, MEASURED_INTERFERENCE)
        return added + adding_up_s(kind, size, setting.device, cut)

    def _is_cut(self, operator: Operator) -> bool:
        """Linear layers of a block are; products of routed experts and the vocabulary's are not."""
        routed = operator.name in self._region.operators or operator.routed_dims
        return operator.kind is OperatorKind.MATMUL and not routed and VOCAB not in operator.dims

    def _beside_weight_gradient(self, communication_s: float, target: Placed) -> float:
        """Return the seconds that summing an operator's input gradients over tp adds to its weight gradient."""
        if communication_s == 0.0:
            return 0.0
        setting = self._setting
        compute_s = weight_gradient_s(
            target.operator, self._local(target), device=setting.device, dtype=self._dtype(target.operator)
        )
        return float(exposed_s(np.array(communication_s), np.array(compute_s), self._stream, MEASURED_INTERFERENCE))

    @property
    def _stream(self) -> Stream:
        return Stream.INTER_NODE if self._setting.tp_topology.spans_nodes else Stream.INTRA_NODE

    def _local(self, placed: Placed) -> dict[str, int]:
        evenly = placed.strategy.local_sizes(self._sizes, self._setting.tp)
        return self._region.local_sizes(placed.operator, evenly, ep=self._setting.ep)

    def _dtype(self, operator: Operator) -> DType:
        """Format that an operator's products compute in."""
        is_low = operator.name in self._rules.low_precision
        return (self._setting.recipe.dtype if is_low else None) or self._setting.dtype

    def _message_bytes(self, collective: Collective, layouts: tuple[Spec, Spec], tensor: Tensor) -> float:
        """The whole tensor; of an all-to-all what a rank holds before it or after, whichever is more: heads that are copied
        are on several ranks."""
        if collective is not Collective.ALL_TO_ALL:
            return self._bytes(tensor)
        held = [{**self._sizes, spec.dim: -(-self._sizes[spec.dim] // self._setting.tp)} for spec in layouts if spec.dim]
        return max(tensor.elements(sizes) for sizes in held) * self._setting.dtype.size_bytes

    def _bytes(self, tensor: Tensor) -> float:
        return tensor.elements(self._sizes) * self._setting.dtype.size_bytes
