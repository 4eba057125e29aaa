"""Folding: operators at equal places of equal blocks are found by hashing and take one strategy together.

A node's first colour is what it computes on what sizes, dims renamed in order of appearance; each round mixes in the
colours of the nodes it reads and of those that read it (Weisfeiler and Leman 1968). Nodes of one colour have the same
strategies at the same costs, so the classes of colours form a smaller graph whose entries are multiplied.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator
from meshwright.solver.strategies.contraction import DimContext
from meshwright.solver.strategies.operator_graph import OperatorGraph

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
