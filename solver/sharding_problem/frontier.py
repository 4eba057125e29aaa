"""The whole Pareto frontier of a small graph with several criteria, by the engine's elimination or its exact programs.

Where the graph is too wide to eliminate, the frontier is enumerated by the epsilon-constraint method: every limit on a
criterion is a memory limit to the exact solver, one time point a criterion (Haimes, Lasdon and Wismer 1971).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.solver.control import Stop, heed, never_stop
from meshwright.solver.sharding_problem.core import Core, assemble_core
from meshwright.solver.sharding_problem.elimination import Factor, pareto_choices
from meshwright.solver.sharding_problem.exact import ExactStatus, solve_exactly
from meshwright.solver.sharding_problem.work import WhenStopped
from meshwright.solver.sharding_problem.working_graph import FloatArray, Span

Edge = tuple[int, int, FloatArray]
"""First and second node, and cost vectors of shape (strategies of the first, of the second, criteria)."""

RESOLUTION = 2e-6
"""Relative difference below which the exact programs take two costs as equal."""


_LARGEST_WHOLE = 2**53
"""Whole numbers up to here have a float64 of their own."""


@dataclass(frozen=True, eq=False)
class CriteriaGraph:
    """Cost vectors of nodes, shape (strategies, criteria), and of edges; the first ``n_objectives`` criteria decide which
    choice beats which, the others only break ties."""

    node_costs: tuple[FloatArray, ...]
    edges: tuple[Edge, ...]
    n_objectives: int

    def cost_of(self, choice: Sequence[int]) -> FloatArray:
        """Cost vector of one strategy per node."""
        total: FloatArray = np.sum([costs[i] for costs, i in zip(self.node_costs, choice, strict=True)], axis=0)
        for u, v, table in self.edges:
            total = total + table[choice[u], choice[v]]
        return total


def frontier_choices(graph: CriteriaGraph, stop: Stop = never_stop) -> list[tuple[int, ...]]:
    """One choice for each cost vector that no other one beats; of equal ones the smallest in lexicographic order.

    Raises SearchStopped: a part of a frontier is none.
    """
    free = [node for node, costs in enumerate(graph.node_costs) if len(costs) > 1]
    if not free:
        return [(0,) * len(graph.node_costs)]
    small = _without_decided(graph, {node: i for i, node in enumerate(free)})
    choices = frontier_by_elimination(small, stop)
    if choices is None:
        choices = frontier_by_programs(small, stop)
    whole = np.zeros((len(choices), len(graph.node_costs)), dtype=np.int64)
    whole[:, free] = choices
    return [tuple(choice) for choice in whole.tolist()]


def _without_decided(graph: CriteriaGraph, index: dict[int, int]) -> CriteriaGraph:
    """The graph of the nodes in ``index`` only, edges to the others, which have one strategy, made node costs."""
    costs = [graph.node_costs[node] for node in index]
    edges = []
    for u, v, table in graph.edges:
        if u in index and v in index:
            edges.append((index[u], index[v], table))
        elif u in index:
            costs[index[u]] = costs[index[u]] + table[:, 0]
        elif v in index:
            costs[index[v]] = costs[index[v]] + table[0]
    return CriteriaGraph(tuple(costs), tuple(edges), graph.n_objectives)


def frontier_by_elimination(graph: CriteriaGraph, stop: Stop = never_stop) -> list[tuple[int, ...]] | None:
    """The frontier by dynamic programming; None where a table would be too large."""
    ranks = _lexicographic_ranks([len(costs) for costs in graph.node_costs])
    factors = [
        Factor((node,), np.concatenate((costs.T, rank))[:, :, None])
        for node, (costs, rank) in enumerate(zip(graph.node_costs, ranks, strict=True))
    ]
    for u, v, table in graph.edges:
        (first, second), axes = ((u, v), (2, 0, 1)) if u < v else ((v, u), (2, 1, 0))
        labels = table.transpose(axes)[..., None]
        factors.append(Factor((first, second), np.pad(labels, ((0, len(ranks[0])), (0, 0), (0, 0), (0, 0)))))
    return pareto_choices([len(costs) for costs in graph.node_costs], factors, n_objectives=graph.n_objectives, stop=stop)


def _lexicographic_ranks(sizes: Sequence[int]) -> list[FloatArray]:
    """For each node, criteria of its strategies, shape (criteria, strategies), whose sums order choices lexicographically.

    Each criterion is a number in mixed radix, of as many nodes as 53 bits hold.
    """
    digits: list[tuple[int, int]] = []
    group, weight = 0, 1
    for size in reversed(sizes):
        if weight * size > _LARGEST_WHOLE:
            group, weight = group + 1, 1
        digits.append((group, weight))
        weight *= size
    ranks = [np.zeros((group + 1, size)) for size in sizes]
    for rank, (of, weight) in zip(ranks, reversed(digits), strict=True):
        rank[group - of] = weight * np.arange(rank.shape[1])
    return ranks


def frontier_by_programs(graph: CriteriaGraph, stop: Stop = never_stop) -> list[tuple[int, ...]]:
    """The frontier by exact programs under limits.

    Each box of the criteria beyond the first is searched for its least weighted cost; the point found splits the box into
    one smaller box per criterion, in which at least that criterion must improve by RESOLUTION of its largest entry.
    Finite, since every box is smaller than its parent by at least that.
    """
    n = graph.n_objectives
    scale = _largest_entries(graph)[:n]
    # A tiny weight on every criterion beyond the first makes the point found Pareto-optimal, not only weakly so.
    weights = np.array([1.0, *[RESOLUTION] * (n - 1)])
    found: dict[tuple[int, ...], None] = {}
    boxes: list[tuple[float, ...]] = [(np.inf,) * n]
    seen = set(boxes)
    while boxes:
        heed(stop)
        limits = boxes.pop()
        choice = cheapest_within(graph, weights=weights, limits=limits, stop=stop)
        if choice is None:
            continue
        found.setdefault(choice)
        cost = graph.cost_of(choice)
        for criterion in range(1, n):
            least = float(cost[criterion] - RESOLUTION * scale[criterion])
            tighter = tuple(least if c == criterion else limits[c] for c in range(n))
            if tighter not in seen:
                seen.add(tighter)
                boxes.append(tighter)
    return list(found)


def cheapest_within(
    graph: CriteriaGraph, *, weights: FloatArray, limits: Sequence[float], stop: Stop = never_stop
) -> tuple[int, ...] | None:
    """The choice of least weighted cost whose first criteria stay within ``limits`` (inf for none); None if there is none.

    Each criterion is taken as a share of its largest entry, so that bytes (1e9) and seconds (1e-4) may mix.
    """
    core = _core(graph, weights, limits)
    if (core.capacity < 0).any():
        return None
    answer = solve_exactly(core, WhenStopped(stop))
    if answer.status is ExactStatus.STOPPED:
        heed(stop)
    return None if answer.choice is None else tuple(answer.choice[: len(graph.node_costs)].tolist())


def _core(graph: CriteriaGraph, weights: FloatArray, limits: Sequence[float]) -> Core:
    """Operators, then one node for each edge whose pairs count against a limit, tied to both of its ends."""
    n = len(limits)
    limited = np.isfinite(limits)
    scale = _largest_entries(graph)[:n]
    nodes = [costs[:, :n] / scale for costs in graph.node_costs]
    tables: dict[tuple[int, int], FloatArray] = {}
    for u, v, table in graph.edges:
        scaled = table[:, :, :n] / scale
        if scaled[:, :, limited].any():
            rows, columns = np.divmod(np.arange(scaled.shape[0] * scaled.shape[1]), scaled.shape[1])
            for end, pairs in ((u, rows), (v, columns)):
                tables[end, len(nodes)] = np.where(np.arange(len(nodes[end]))[:, None] == pairs, 0.0, np.inf)
            nodes.append(scaled.reshape(-1, n))
        else:
            cost = scaled @ weights
            key, cost = ((u, v), cost) if u < v else ((v, u), cost.T)
            tables[key] = tables[key] + cost if key in tables else cost
    least = np.sum([costs.min(axis=0) for costs in nodes], axis=0)
    criteria = np.flatnonzero(limited).tolist()
    items: list[dict[Span, FloatArray]] = [
        {(t, t + 1): costs[:, c] - costs[:, c].min() for t, c in enumerate(criteria)} for costs in nodes
    ]
    return assemble_core(
        nodes=list(range(len(nodes))),
        cost=[costs @ weights for costs in nodes],
        edges=dict(sorted(tables.items())),
        items=items,
        capacity=np.array([limits[c] / scale[c] - least[c] for c in criteria]),
        constant=0.0,
    )


def _largest_entries(graph: CriteriaGraph) -> FloatArray:
    """Largest entry of each criterion, 1 where all are 0."""
    largest = np.max([np.max(np.abs(costs), axis=0) for costs in graph.node_costs], axis=0)
    for _, _, table in graph.edges:
        largest = np.maximum(largest, np.max(np.abs(table), axis=(0, 1)))
    return np.where(largest > 0, largest, 1.0)
