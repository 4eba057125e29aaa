"""Exact dynamic programming on a core without memory limits: nodes are eliminated one by one (bucket elimination).

Exponential only in the width of the order, so it suits cores of small treewidth. Source: Dechter, "Bucket elimination:
a unifying framework for reasoning", Artificial Intelligence 113, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from solver.sharding_problem.core import Core
from solver.sharding_problem.problem import IntArray
from solver.sharding_problem.working_graph import FloatArray

MOST_ENTRIES = 2_000_000
"""Largest table built; 16 MB, milliseconds to minimise."""


@dataclass(frozen=True, eq=False)
class _Factor:
    """A cost table over these nodes, ascending, one axis each."""

    nodes: tuple[int, ...]
    table: FloatArray


def eliminate(core: Core) -> IntArray | None:
    """The cheapest choice of a core that holds no memory items; None if some table would be too large."""
    assert not len(core.item_nodes), "elimination knows no memory limit"
    sizes = np.diff(core.offsets).tolist()
    factors: dict[int, list[_Factor]] = {i: [] for i in range(core.node_count)}
    for i in range(core.node_count):
        _add(factors, _Factor((i,), core.cost[core.offsets[i] : core.offsets[i + 1]]))
    for edge, (i, j) in enumerate(core.edge_nodes.tolist()):
        _add(factors, _Factor((i, j), core.table(edge)))
    decisions: list[tuple[int, tuple[int, ...], IntArray]] = []
    while factors:
        node = min(factors, key=lambda i: (_entries(factors[i], i, sizes), i))
        if _entries(factors[node], node, sizes) > MOST_ENTRIES:
            return None
        others = tuple(sorted({n for factor in factors[node] for n in factor.nodes} - {node}))
        total = _sum_over(factors[node], (*others, node), sizes)
        decisions.append((node, others, total.argmin(axis=-1)))
        for factor in factors.pop(node):
            for other in factor.nodes:
                if other != node:
                    factors[other].remove(factor)
        if others:
            _add(factors, _Factor(others, total.min(axis=-1)))
    choice = np.zeros(core.node_count, dtype=np.int64)
    for node, others, best in reversed(decisions):
        choice[node] = best[tuple(choice[list(others)])]
    return choice


def _add(factors: dict[int, list[_Factor]], factor: _Factor) -> None:
    for node in factor.nodes:
        factors[node].append(factor)


def _entries(factors: Iterable[_Factor], node: int, sizes: list[int]) -> int:
    return math.prod(sizes[n] for n in {n for factor in factors for n in factor.nodes} | {node})


def _sum_over(factors: list[_Factor], axes: tuple[int, ...], sizes: list[int]) -> FloatArray:
    total = np.zeros([sizes[n] for n in axes])
    for factor in factors:
        # Axes of the factor in the order of the result, then a length-1 axis for every other node.
        order = sorted(range(len(factor.nodes)), key=lambda a: axes.index(factor.nodes[a]))
        shape = [sizes[n] if n in factor.nodes else 1 for n in axes]
        total += factor.table.transpose(order).reshape(shape)
    return total
