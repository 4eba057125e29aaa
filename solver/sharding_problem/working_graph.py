"""A sharding problem as a graph that reductions rewrite, and the trail that leads a core's answer back.

Every rewrite pushes one ``Lift``; undoing them in reverse order turns choices on the remaining nodes into choices on
all nodes. Costs here are float64 with inf for forbidden; memory is held as items, in excess of the smallest usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshwright.solver.sharding_problem.problem import FORBIDDEN, IntArray, ShardingProblem

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Span = tuple[int, int]
"""First time point and one past the last, of the working graph's own time points."""


class ProvenInfeasible(Exception):
    """Raised inside the reductions when a node is left without any strategy; never leaves the package."""


class Lift(Protocol):
    """Undoes one rewrite on a vector of choices, in place."""

    def undo(self, choice: IntArray) -> None:
        """Set the choices of the nodes that the rewrite removed or renumbered."""
        ...


@dataclass(frozen=True, slots=True)
class KeptStrategies:
    """The node kept only these strategies."""

    node: int
    kept: IntArray

    def undo(self, choice: IntArray) -> None:
        """Set the node's choice."""
        choice[self.node] = self.kept[choice[self.node]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The node has one strategy for every answer."""

    node: int
    strategy: int

    def undo(self, choice: IntArray) -> None:
        """Set the node's choice."""
        choice[self.node] = self.strategy


@dataclass(frozen=True, slots=True)
class Follows:
    """The node's strategy is a function of its leader's."""

    node: int
    leader: int
    strategy_of: IntArray

    def undo(self, choice: IntArray) -> None:
        """Set the node's choice."""
        choice[self.node] = self.strategy_of[choice[self.leader]]


@dataclass(frozen=True, slots=True)
class FollowsTwo:
    """The node's strategy is a function of two other nodes' strategies."""

    node: int
    leaders: tuple[int, int]
    strategy_of: IntArray

    def undo(self, choice: IntArray) -> None:
        """Set the node's choice."""
        choice[self.node] = self.strategy_of[choice[self.leaders[0]], choice[self.leaders[1]]]


@dataclass
class WorkingGraph:
    """Mutable state of the reductions.

    cost[v]         (k_v,) finite costs of node v's remaining strategies
    neighbors[v]    {w: (k_v, k_w) table}; neighbors[w][v] is the transposed view of the same memory
    items[v]        {span: (k_v,)} memory above the item's smallest usage, at all time points of the span
    rank[v]         place of node v in time; message passing and windows follow it, whatever the numbering
    capacity        (time points,) memory left above the sum of smallest usages
    constant        cost already decided
    """

    cost: list[FloatArray]
    neighbors: list[dict[int, FloatArray]]
    items: list[dict[Span, FloatArray]]
    rank: list[int]
    capacity: FloatArray
    constant: float = 0.0
    trail: list[Lift] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    touched_edges: dict[tuple[int, int], None] = field(default_factory=dict)
    touched_nodes: dict[int, None] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: ShardingProblem) -> WorkingGraph:
        """The whole problem, parallel edges merged, forbidden entries inf."""
        costs = np.where(problem.node_costs >= FORBIDDEN, np.inf, problem.node_costs.astype(np.float64))
        bounds = problem.node_offsets
        cost = [costs[bounds[v] : bounds[v + 1]].copy() for v in range(problem.node_count)]
        rank = _places_in_time(problem).tolist()
        graph = cls(cost, [{} for _ in cost], [{} for _ in cost], rank, np.empty(0), alive=set(range(len(cost))))
        graph._set_items(problem)
        edge_costs = np.where(problem.edge_costs >= FORBIDDEN, np.inf, problem.edge_costs.astype(np.float64))
        for e, (u, v) in enumerate(problem.edge_nodes.tolist()):
            table = edge_costs[problem.edge_offsets[e] : problem.edge_offsets[e + 1]]
            graph.add_edge(u, v, table.reshape(len(cost[u]), len(cost[v])))
        graph.touched_nodes = dict.fromkeys(range(len(cost)))
        return graph

    def _set_items(self, problem: ShardingProblem) -> None:
        if problem.usage_limit is None:
            return
        last = int(problem.intervals.max(initial=0))
        self.capacity = np.full(last, float(problem.usage_limit))
        usages = problem.node_usages.astype(np.float64)
        for v, (start, end) in enumerate(problem.intervals.tolist()):
            if start < end:
                mine = usages[problem.node_offsets[v] : problem.node_offsets[v + 1]]
                self.items[v][start, end] = mine.copy()

    def add_edge(self, u: int, v: int, table: FloatArray) -> None:
        """Add a table of costs, rows for u, to the edge between u and v; the table may be kept and written to."""
        existing = self.neighbors[u].get(v)
        if existing is None:
            self.neighbors[u][v] = table
            self.neighbors[v][u] = table.T
        else:
            # A fresh table: the existing one may be a read-only or shared view.
            merged = existing + table
            self.neighbors[u][v] = merged
            self.neighbors[v][u] = merged.T
        self.touch_edge(u, v)

    def touch_edge(self, u: int, v: int) -> None:
        """Note that the edge has to be looked at again."""
        self.touched_edges[(u, v) if u < v else (v, u)] = None

    def touch_node(self, v: int) -> None:
        """Note that the node has to be looked at again."""
        self.touched_nodes[v] = None

    def drop_edge(self, u: int, v: int) -> None:
        """Remove the edge between u and v."""
        del self.neighbors[u][v]
        del self.neighbors[v][u]
        self.touched_edges.pop((u, v) if u < v else (v, u), None)
        self.touch_node(u)
        self.touch_node(v)

    def keep_strategies(self, v: int, mask: BoolArray) -> None:
        """Remove the strategies of v that the mask leaves out; raises ProvenInfeasible if none is left."""
        kept = np.flatnonzero(mask)
        if len(kept) == len(mask):
            return
        if len(kept) == 0:
            raise ProvenInfeasible
        self.trail.append(KeptStrategies(v, kept))
        self.cost[v] = self.cost[v][kept]
        for w, table in self.neighbors[v].items():
            smaller = table[kept]
            self.neighbors[v][w] = smaller
            self.neighbors[w][v] = smaller.T
            self.touch_edge(v, w)
        self.items[v] = {span: usage[kept] for span, usage in self.items[v].items()}
        self.touch_node(v)

    def remove_follower(self, v: int, leader: int, strategy_of: IntArray) -> None:
        """Merge v into its leader: costs, memory and other edges of v become the leader's."""
        self.trail.append(Follows(v, leader, strategy_of))
        self.cost[leader] = self.cost[leader] + self.cost[v][strategy_of]
        table = self.neighbors[leader].get(v)
        if table is not None:
            self.cost[leader] = self.cost[leader] + table[np.arange(len(strategy_of)), strategy_of]
            self.drop_edge(leader, v)
        for w, other in list(self.neighbors[v].items()):
            self.drop_edge(v, w)
            self.add_edge(leader, w, other[strategy_of])
        self.add_items(leader, ((span, usage[strategy_of]) for span, usage in self.items[v].items()))
        self.forget(v)
        self.touch_node(leader)

    def add_items(self, v: int, items: Iterable[tuple[Span, FloatArray]]) -> None:
        """Let v hold more memory; items of the same span are added up."""
        mine = self.items[v]
        for span, usage in items:
            mine[span] = mine[span] + usage if span in mine else usage

    def forget(self, v: int) -> None:
        """Drop a node that has no edges left."""
        self.alive.discard(v)
        self.touched_nodes.pop(v, None)
        self.items[v] = {}

    def lift(self, choice: IntArray) -> IntArray:
        """Choices of all original nodes from those of the remaining ones; the input has one entry per original node."""
        full = choice.copy()
        for step in reversed(self.trail):
            step.undo(full)
        return full


def _places_in_time(problem: ShardingProblem) -> IntArray:
    """Place of each node when sorted by start; one that is alive before all its neighbours goes to the first of them.

    Parameters are alive from the start, yet belong where they are first used.
    """
    starts, ends = problem.intervals[:, 0], problem.intervals[:, 1]
    first_neighbor = np.full(problem.node_count, np.iinfo(np.int64).max)
    u, v = problem.edge_nodes[:, 0], problem.edge_nodes[:, 1]
    np.minimum.at(first_neighbor, u, starts[v])
    np.minimum.at(first_neighbor, v, starts[u])
    has_neighbor = first_neighbor < np.iinfo(np.int64).max
    key = np.where(has_neighbor, np.maximum(starts, first_neighbor), starts)
    rank = np.empty(problem.node_count, dtype=np.int64)
    rank[np.lexsort((ends, key))] = np.arange(problem.node_count)
    return rank
