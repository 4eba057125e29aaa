"""A whole model as one graph of operators, in order of execution: what a trace gives, and what layers unfold to."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from meshwright.costmodels.errors import ModelError
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.operators import Operator
from meshwright.solver.blocks.recompute import low_precision_products
from meshwright.solver.problem.graph import RESIDUAL, Block, ModelGraph
from meshwright.solver.problem.layer_dag import LayerDag, chain_dag, layer_dag
from meshwright.solver.strategies.contraction import DimContext, dim_context


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operator at its place: its block and layer, what the operators around it say of its dims, and how its product is
    cast, if it is one."""

    layer: int
    block: str
    operator: Operator
    context: DimContext
    recipe: MatmulRecipe = MatmulRecipe.WORKING

    @property
    def name(self) -> str:
        """A name of its own in the graph."""
        return f"{self.layer}/{self.block}/{self.operator.name}"

    @property
    def of_block(self) -> tuple[str, str]:
        """Its block and its operator's name: the same in every layer of the block, as all but the layer is."""
        return self.block, self.operator.name


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Output ``output`` of node ``source`` is input ``input`` of node ``target``."""

    source: int
    output: int
    target: int
    input: int


@dataclass(frozen=True)
class OperatorGraph:
    """Nodes in order of execution, edges from earlier to later ones, and the size of every dim, batch and sequence of a
    micro-batch over the whole mesh included."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        for edge in self.edges:
            written = self.nodes[edge.source].operator.outputs[edge.output]
            read = self.nodes[edge.target].operator.inputs[edge.input]
            shapes = [tuple(self.sizes[dim] for dim in tensor.dims) for tensor in (written, read)]
            if edge.source >= edge.target or shapes[0] != shapes[1]:
                raise ModelError(
                    f"operator {self.nodes[edge.target].name} can't read {written.name!r}",
                    given=f"sizes {shapes[1]} of a tensor of sizes {shapes[0]}",
                    allowed="equal sizes, written before they are read",
                )

    @cached_property
    def readers(self) -> tuple[tuple[GraphEdge, ...], ...]:
        """Edges out of each node."""
        out: list[list[GraphEdge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            out[edge.source].append(edge)
        return tuple(map(tuple, out))

    @cached_property
    def writers(self) -> tuple[tuple[GraphEdge, ...], ...]:
        """Edges into each node."""
        into: list[list[GraphEdge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            into[edge.target].append(edge)
        return tuple(map(tuple, into))


def unfolded(model: ModelGraph, *, batch: int, seq_len: int, recipe: MatmulRecipe = MatmulRecipe.WORKING) -> OperatorGraph:
    """Every layer of a model, or of a traced graph, in order of execution.

    ``recipe`` is how the products that `low_precision_products` names are cast.
    """
    layers = [model.block(name) for name in model.layers]
    return _joined(layers, {**model.dims, BATCH: batch, SEQ: seq_len}, recipe, layer_dag(model))


def one_block(model: ModelGraph, block: str, *, batch: int, seq_len: int) -> OperatorGraph:
    """The graph of one block alone, its input given from outside."""
    return _joined([model.block(block)], {**model.dims, BATCH: batch, SEQ: seq_len}, MatmulRecipe.WORKING, chain_dag(1))


def _joined(layers: Sequence[Block], sizes: Mapping[str, int], recipe: MatmulRecipe, dag: LayerDag) -> OperatorGraph:
    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []
    contexts: dict[str, DimContext] = {}
    cast = {block.name: low_precision_products(block) if recipe.dtype else frozenset() for block in layers}
    left_by: list[tuple[int, int]] = []
    for layer, block in enumerate(layers):
        if block.name not in contexts:
            contexts[block.name] = dim_context(block.operators)
        entry = dag.entries[layer]
        written = {layers[side].output: left_by[side] for side in dag.sides[layer]}
        if entry is not None:
            written |= {layers[entry].output: left_by[entry], RESIDUAL: left_by[entry]}
        mine: dict[str, tuple[int, int]] = {}
        for operator in _in_order(block):
            here = len(nodes)
            own = recipe if operator.name in cast[block.name] else MatmulRecipe.WORKING
            nodes.append(GraphNode(layer, block.name, operator, contexts[block.name], own))
            for index, tensor in enumerate(operator.inputs):
                source = mine.get(tensor.name) or written.get(tensor.name)
                if source is not None:
                    edges.append(GraphEdge(*source, here, index))
            mine |= {tensor.name: (here, index) for index, tensor in enumerate(operator.outputs)}
        left_by.append(mine[block.output])
    return OperatorGraph(tuple(nodes), tuple(edges), sizes)


def _in_order(block: Block) -> Sequence[Operator]:
    """Operators so that each follows those it reads; as listed where that is so already."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    done: dict[str, Operator] = {}
    for root in block.operators:
        waiting = [root]
        while waiting:
            operator = waiting[-1]
            missing = [
                writer[tensor.name]
                for tensor in operator.inputs
                if tensor.name in writer and writer[tensor.name].name not in done
            ]
            if operator.name in done or not missing:
                done.setdefault(operator.name, operator)
                waiting.pop()
            else:
                waiting.extend(missing)
    return tuple(done.values())


# Folding: operators at equal places of equal blocks are found by hashing and take one strategy together.
#
# A node's first colour is what it computes on what sizes, dims renamed in order of appearance; each round mixes in the
# colours of the nodes it reads and of those that read it (Weisfeiler and Leman 1968). Nodes of one colour have the same
# strategies at the same costs, so the classes of colours form a smaller graph whose entries are multiplied.

ROUNDS = 1
"""The distance to which a node looks for equals: to its readers and writers. That tells attention's norms and sums from those
of the feed-forward network; each further round would only set apart more operators near the ends of the model."""


class Ties(StrEnum):
    """The operators that take one strategy together: those at equal places of equal blocks, or none."""

    EQUAL_BLOCKS = "equal_blocks"
    NONE = "none"


@dataclass(frozen=True)
class Folding:
    """Classes of nodes that are decided together, in order of their first node.

    class_of  class of each node
    members   nodes of each class, ascending
    """

    class_of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]


def fold(graph: OperatorGraph, ties: Ties) -> Folding:
    """The classes of a graph's nodes."""
    if ties is Ties.NONE:
        return Folding(tuple(range(len(graph.nodes))), tuple((i,) for i in range(len(graph.nodes))))
    colours = kinds(graph)
    for _ in range(ROUNDS):
        seen: dict[Hashable, int] = {}
        colours = [
            seen.setdefault(
                (
                    colours[node],
                    tuple(sorted((edge.input, edge.output, colours[edge.source]) for edge in graph.writers[node])),
                    tuple(sorted((edge.output, edge.input, colours[edge.target]) for edge in graph.readers[node])),
                ),
                len(seen),
            )
            for node in range(len(graph.nodes))
        ]
    members: list[list[int]] = [[] for _ in range(max(colours) + 1)]
    for node, colour in enumerate(colours):
        members[colour].append(node)
    return Folding(tuple(colours), tuple(map(tuple, members)))


def kinds(graph: OperatorGraph) -> list[int]:
    """For each node a number that nodes with the same strategies at the same costs share."""
    of_operator: dict[tuple[str, str], int] = {}
    seen: dict[Hashable, int] = {}
    found = []
    for node in graph.nodes:
        if node.of_block not in of_operator:
            computed = signature(node.operator, node.context, graph.sizes)
            of_operator[node.of_block] = seen.setdefault((computed, node.recipe), len(seen))
        found.append(of_operator[node.of_block])
    return found


def signature(operator: Operator, context: DimContext, sizes: Mapping[str, int]) -> Hashable:
    """Return the computation of an operator and its sizes, the same under any names of dims, tensors and the operator."""
    number: dict[str, int] = {}

    def renamed(dims: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(number.setdefault(dim, len(number)) for dim in dims)

    activations = (*operator.inputs, *operator.outputs)
    tensors = tuple(
        (renamed(tensor.dims), tensor.name in operator.saved, renamed(_routed_dims(context, tensor.name)))
        for tensor in activations
    )
    weights = tuple((renamed(weight.dims), weight.tied_to is not None) for weight in operator.weights)
    known = tuple(number)
    return (
        operator.kind,
        len(operator.inputs),
        tensors,
        weights,
        operator.flops_per_element,
        operator.mask,
        operator.window,
        operator.chunk,
        tuple(sizes[dim] for dim in known),
        (number.get(BATCH), number.get(SEQ)),
        tuple((number[dim], number[context.followers[dim]]) for dim in known if context.followers.get(dim) in number),
        tuple(number[dim] for dim in known if dim in context.whole),
        tuple(number[dim] for dim in known if dim in context.by_group),
    )


def _routed_dims(context: DimContext, tensor: str) -> tuple[str, ...]:
    return (context.routed[tensor],) if tensor in context.routed else ()
