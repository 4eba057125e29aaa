"""Tied weights have one storage: operators that share one must split it alike over tp."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.solver.blocks.intra_op import IntraOpProblem, ReshardEdge
from meshwright.solver.blocks.tp_strategies import Strategy
from meshwright.solver.problem.graph import ModelGraph


@dataclass(frozen=True, slots=True)
class TiedUse:
    """An operator that uses a weight of several: its block, its index there, and the weight's dims."""

    block: str
    node: int
    dims: tuple[str, ...]

    def split(self, strategy: Strategy) -> str | None:
        """The dim of the weight that a strategy splits; None for none."""
        return strategy.dim if strategy.dim in self.dims else None


def tied_uses(model: ModelGraph) -> tuple[tuple[TiedUse, ...], ...]:
    """For each weight that is used more than once, all its uses, the owner's first."""
    used = set(model.layers)
    groups: dict[str, list[TiedUse]] = {}
    for block, operator, weight in model.tied_weights():
        assert weight.tied_to is not None, "tied_weights() lists tied weights"
        if block in used:
            groups.setdefault(weight.tied_to, []).append(TiedUse(block, node_index(model, block, operator), weight.dims))
    found = []
    for name, uses in groups.items():
        block, operator, own = name.split("/")
        dims = next(w.dims for w in model.block(block).operator(operator).weights if w.name == own)
        owner = [TiedUse(block, node_index(model, block, operator), dims)] if block in used else []
        found.append((*owner, *uses))
    return tuple(found)


def agreements(
    groups: Sequence[Sequence[TiedUse]], strategies: Mapping[str, Sequence[Sequence[Strategy]]]
) -> Iterator[dict[tuple[str, int], tuple[int, ...]]]:
    """Every way in which all uses of each tied weight split it alike: for each (block, operator) the strategies left."""
    ways = []
    for uses in groups:
        of_use = [_by_split(use, strategies[use.block][use.node]) for use in uses]
        common = [split for split in of_use[0] if all(split in other for other in of_use)]
        ways.append([[(use, found[split]) for use, found in zip(uses, of_use, strict=True)] for split in common])
    for picked in itertools.product(*ways):
        left: dict[tuple[str, int], tuple[int, ...]] = {}
        for use, indices in itertools.chain.from_iterable(picked):
            key = (use.block, use.node)
            left[key] = tuple(i for i in left.get(key, indices) if i in indices)
        yield left


def restricted(problem: IntraOpProblem, left: Mapping[int, Sequence[int]]) -> IntraOpProblem:
    """The problem with some operators' strategies reduced to those left."""
    kept = [np.array(left.get(node, range(len(costs))), dtype=np.int64) for node, costs in enumerate(problem.node_costs)]
    return IntraOpProblem(
        tuple(costs[rows] for costs, rows in zip(problem.node_costs, kept, strict=True)),
        tuple(
            ReshardEdge(edge.source, edge.target, edge.cost[np.ix_(kept[edge.source], kept[edge.target])])
            for edge in problem.edges
        ),
        problem.n_objectives,
    )


def unrestricted(choice: Sequence[int], left: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """A choice of the restricted problem as a choice of the whole one."""
    return tuple(int(left[node][index]) if node in left else index for node, index in enumerate(choice))


def _by_split(use: TiedUse, options: Sequence[Strategy]) -> dict[str | None, tuple[int, ...]]:
    found: dict[str | None, tuple[int, ...]] = {}
    for index, strategy in enumerate(options):
        split = use.split(strategy)
        found[split] = (*found.get(split, ()), index)
    return found


def node_index(model: ModelGraph, block: str, operator: str) -> int:
    """Place of an operator in its block."""
    return next(i for i, candidate in enumerate(model.block(block).operators) if candidate.name == operator)
