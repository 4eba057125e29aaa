"""A graph whose nodes each take one strategy, at a cost of several criteria; and what a program for integers takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.solver.control import Stop
from meshwright.solver.sharding_problem.working_graph import FloatArray

Edge = tuple[int, int, FloatArray]
"""First and second node, and cost vectors of shape (strategies of the first, of the second, criteria)."""

FIRST_RUN_S = 2.0
"""Seconds of a solver that can't be asked to stop, before the search's own rule is asked; each run after it may take twice."""

RESOLUTION = 1e-6
"""Share of the largest entry of a criterion below which programs take two costs as equal: a thousand times the feasibility that
HiGHS is asked for."""


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


class FrontierProgram(Protocol):
    """A program of a graph, made by a solver's own module."""

    def least(self, stop: Stop) -> tuple[int, ...] | None:
        """The choice of the least sum of criteria that still counts, None if none does; raises SearchStopped."""
        ...

    def leave_beaten(self, cost: FloatArray) -> None:
        """From now on only choices count that are better than this cost vector, shape (criteria,), in some criterion."""
        ...


@dataclass(frozen=True, eq=False)
class Shares:
    """A graph's costs as shares of the largest entry of each criterion, so that bytes (1e9) and seconds (1e-4) may mix.

    ``nodes[node]`` has the shape (strategies, criteria), ``edges[u, v]`` with u < v (strategies of u, of v, criteria); criteria
    that no choice changes are left out, and ``scale`` has those that stay in their places.
    """

    nodes: tuple[FloatArray, ...]
    edges: dict[tuple[int, int], FloatArray]
    scale: FloatArray
    deciding: tuple[int, ...]

    def of(self, cost: FloatArray) -> list[float]:
        """A cost vector as such shares."""
        return [float(cost[criterion] / self.scale[criterion]) for criterion in self.deciding]

    def most(self) -> list[float]:
        """The most that any choice can cost of each criterion."""
        ends = [costs.max(axis=0) for costs in self.nodes]
        pairs = [table.max(axis=(0, 1)) for table in self.edges.values()]
        return [float(most) for most in np.sum([*ends, *pairs], axis=0)]


def shares_of(graph: CriteriaGraph) -> Shares:
    """Return the costs of a graph as shares, edges between the same two nodes added up."""
    n = graph.n_objectives
    tables: dict[tuple[int, int], FloatArray] = {}
    for u, v, table in graph.edges:
        key, costs = ((u, v), table[:, :, :n]) if u < v else ((v, u), table[:, :, :n].transpose(1, 0, 2))
        tables[key] = tables[key] + costs if key in tables else costs
    tables = {key: table for key, table in tables.items() if table.any()}
    nodes = [costs[:, :n] for costs in graph.node_costs]
    every = [*nodes, *(table.reshape(-1, n) for table in tables.values())]
    largest = np.max([np.max(np.abs(costs), axis=0) for costs in every], axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    deciding = tuple(c for c in range(n) if any(np.ptp(costs[:, c]) > 0 for costs in every))
    kept = list(deciding)
    return Shares(
        tuple(costs[:, kept] / scale[kept] for costs in nodes),
        {key: tables[key][:, :, kept] / scale[kept] for key in sorted(tables)},
        scale,
        deciding,
    )
