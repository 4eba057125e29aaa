"""Exact dynamic programming where a graph has small treewidth: nodes are eliminated one by one (bucket elimination).

Costs are vectors of criteria. With one criterion each table cell keeps its least cost; with several it keeps every cost
that no other one of the cell beats, so that what is left at the end is the whole Pareto frontier. Exponential only in
the width of the order. Source: Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial
Intelligence 113, 1999.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.control import Stop, heed, never_stop
from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.working_graph import BoolArray, FloatArray

MOST_ENTRIES = 2_000_000
"""Most numbers in a table that is built; 16 MB, milliseconds to minimise."""


@dataclass(frozen=True, eq=False)
class Factor:
    """Cost vectors over some nodes.

    nodes    ascending
    labels   (criteria, strategies of each node ..., labels): the costs that a cell may have, inf where it has fewer
    origin   what each label came from; None for a given table
    """

    nodes: tuple[int, ...]
    labels: FloatArray
    origin: _Sum | _Minimum | None = None

    @property
    def width(self) -> int:
        """Most labels of a cell."""
        return int(self.labels.shape[-1])


@dataclass(frozen=True, eq=False)
class _Sum:
    """Labels over ``nodes`` that are sums of one of the first part and one of the second.

    Both are in ``taken``: the first's label x ``width`` of the second + the second's label.
    """

    nodes: tuple[int, ...]
    first: _Sum | _Minimum | None
    second: _Sum | _Minimum | None
    width: int
    taken: IntArray


@dataclass(frozen=True, eq=False)
class _Minimum:
    """Labels over ``nodes`` that stay when ``node`` is eliminated: ``taken`` is its strategy x ``width`` + the label."""

    nodes: tuple[int, ...]
    node: int
    whole: _Sum | _Minimum | None
    width: int
    taken: IntArray


def eliminate(core: Core) -> IntArray | None:
    """The cheapest choice of a core that holds no memory items; None if some table would be too large."""
    assert not len(core.item_nodes), "elimination knows no memory limit"
    factors = [Factor((i,), core.cost[None, a:b, None]) for i, (a, b) in enumerate(itertools.pairwise(core.offsets.tolist()))]
    factors += [Factor((i, j), core.table(edge)[None, :, :, None]) for edge, (i, j) in enumerate(core.edge_nodes.tolist())]
    choices = pareto_choices(np.diff(core.offsets).tolist(), factors, n_objectives=1)
    return None if choices is None else np.asarray(choices[0], dtype=np.int64)


def pareto_choices(
    sizes: Sequence[int], factors: Iterable[Factor], *, n_objectives: int, stop: Stop = never_stop
) -> list[tuple[int, ...]] | None:
    """One choice for each sum of factors that no other one beats in the first ``n_objectives`` criteria, cheapest first.

    ``sizes`` are the strategies of each node. Of equal sums in these criteria the least in the others stays. None if some
    table would hold more than ``MOST_ENTRIES``. Raises SearchStopped.
    """
    of_node: dict[int, list[Factor]] = {node: [] for node in range(len(sizes))}
    final: Factor | None = None
    for factor in factors:
        for node in factor.nodes:
            of_node[node].append(factor)
    while of_node:
        node = min(of_node, key=lambda n: (_cells(of_node[n], n, sizes), n))
        if _cells(of_node[node], node, sizes) > MOST_ENTRIES:
            return None
        mine = of_node.pop(node)
        total: Factor | None = mine[0]
        for other in mine[1:]:
            heed(stop)
            total = None if total is None else _sum(total, other, n_objectives)
        heed(stop)
        rest = None if total is None else _without(total, node, n_objectives)
        if rest is None:
            return None
        for factor in mine:
            for other_node in factor.nodes:
                if other_node != node:
                    of_node[other_node].remove(factor)
        for other_node in rest.nodes:
            of_node[other_node].append(rest)
        if not rest.nodes:
            final = rest if final is None else _sum(final, rest, n_objectives)
            if final is None:
                return None
    assert final is not None, "a problem has at least one node"
    return _choices(final, len(sizes))


def _cells(factors: Iterable[Factor], node: int, sizes: Sequence[int]) -> int:
    return math.prod(sizes[n] for n in {n for factor in factors for n in factor.nodes} | {node})


def _sum(first: Factor, second: Factor, n_objectives: int) -> Factor | None:
    """All sums of a label of each; None if they are too many."""
    nodes = tuple(sorted({*first.nodes, *second.nodes}))
    left, right = _spread(first, nodes)[..., :, None], _spread(second, nodes)[..., None, :]
    shape = np.broadcast_shapes(left.shape, right.shape)
    if math.prod(shape) > MOST_ENTRIES:
        return None
    total = (left + right).reshape((*shape[:-2], first.width * second.width))
    # Adding one vector to all labels of a cell leaves all of them undominated.
    if min(first.width, second.width) > 1:
        total, taken = _undominated(total, n_objectives)
    else:
        taken = np.broadcast_to(np.arange(total.shape[-1]), total.shape[1:])
    return Factor(nodes, total, _Sum(nodes, first.origin, second.origin, second.width, taken))


def _spread(factor: Factor, nodes: tuple[int, ...]) -> FloatArray:
    """The labels with an axis of length 1 for every further node."""
    sizes = iter(factor.labels.shape[1:-1])
    axes = (next(sizes) if node in factor.nodes else 1 for node in nodes)
    return factor.labels.reshape((len(factor.labels), *axes, factor.width))


def _without(factor: Factor, node: int, n_objectives: int) -> Factor | None:
    """The factor with the node's strategy chosen; None if too many labels stay."""
    axis = factor.nodes.index(node)
    moved = np.moveaxis(factor.labels, 1 + axis, -2)
    labels, taken = _undominated(moved.reshape((*moved.shape[:-2], -1)), n_objectives)
    if labels.size > MOST_ENTRIES:
        return None
    nodes = (*factor.nodes[:axis], *factor.nodes[axis + 1 :])
    return Factor(nodes, labels, _Minimum(nodes, node, factor.origin, factor.width, taken))


def _undominated(labels: FloatArray, n_objectives: int) -> tuple[FloatArray, IntArray]:
    """Of each cell the labels that no other one beats or equals, cheapest first, and their indices."""
    if len(labels) == 1:
        taken = labels[0].argmin(axis=-1)[..., None]
        return np.take_along_axis(labels, taken[None], axis=-1), taken
    cells = labels.reshape((len(labels), -1, labels.shape[-1]))
    order = np.lexsort(tuple(cells[::-1]), axis=-1)
    ordered = np.take_along_axis(cells[:n_objectives], order[None], axis=-1)
    kept = unbeaten(np.ascontiguousarray(np.moveaxis(ordered, 0, -1)))
    # Kept labels first, in their order; a cell with fewer than the fullest is filled up with inf.
    most = int(kept.sum(axis=-1).max())
    first = np.argsort(~kept, axis=-1, kind="stable")[:, :most]
    taken = np.take_along_axis(order, first, axis=-1)
    chosen = np.where(np.take_along_axis(kept, first, axis=-1), np.take_along_axis(cells, taken[None], axis=-1), np.inf)
    shape = (*labels.shape[1:-1], most)
    return chosen.reshape((len(labels), *shape)), taken.reshape(shape)


@kept_compiled
def unbeaten(labels: FloatArray) -> BoolArray:
    """Return, for each label [cell, label, criterion] in lexicographic order, True if none before it beats or equals it."""
    cells, width, n_criteria = labels.shape
    kept = np.zeros((cells, width), np.bool_)
    others = np.empty(width, np.int64)
    for cell in range(cells):
        n_kept = 0
        for label in range(width):
            is_beaten = False
            for i in range(n_kept):
                is_beaten = True
                for criterion in range(n_criteria):
                    if labels[cell, others[i], criterion] > labels[cell, label, criterion]:
                        is_beaten = False
                        break
                if is_beaten:
                    break
            if not is_beaten:
                kept[cell, label] = True
                others[n_kept] = label
                n_kept += 1
    return kept


def _choices(final: Factor, nodes: int) -> list[tuple[int, ...]]:
    """The choice that each label of the last factor stands for."""
    choices = np.zeros((final.width, nodes), dtype=np.int64)
    open_labels = [(final.origin, np.arange(final.width))]
    while open_labels:
        origin, labels = open_labels.pop()
        if origin is None:
            continue
        taken = origin.taken[(*(choices[:, node] for node in origin.nodes), labels)]
        part, rest = np.divmod(taken, origin.width)
        if isinstance(origin, _Minimum):
            choices[:, origin.node] = part
            open_labels.append((origin.whole, rest))
        else:
            open_labels += [(origin.first, part), (origin.second, rest)]
    return [tuple(choice) for choice in choices.tolist()]
