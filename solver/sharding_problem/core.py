"""The core that reductions leave, in flat arrays for the compiled loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.solver.sharding_problem.problem import IntArray, offsets_of
from meshwright.solver.sharding_problem.working_graph import FloatArray, Span, WorkingGraph


@dataclass(frozen=True, eq=False)
class Core:
    """Nodes 0 .. n - 1 in order of time; nodes[i] is the original index.

    offsets       (n + 1,)   strategies of node i
    cost          (sum k,)   finite costs
    edge_nodes    (m, 2)     first < second, sorted
    edge_offsets  (m + 1,)   entries of edge e in ``tables`` (first node's strategies are the rows) and in ``transposed``
    links         (2 m,)     edge of each link; the links of node i are link_offsets[i] .. link_offsets[i + 1] - 1
    link_ends     (2 m,)     the node at the other end of each link; a node's links are sorted by it
    item_nodes    (items,)   owner of each memory item, ascending
    item_spans    (items, 2) first time point and one past the last
    item_offsets  (items + 1,) entries of each item in ``usage``, one per strategy of its node
    capacity      (time points,)
    constant      cost already decided
    """

    nodes: IntArray
    offsets: IntArray
    cost: FloatArray
    edge_nodes: IntArray
    edge_offsets: IntArray
    tables: FloatArray
    transposed: FloatArray
    links: IntArray
    link_ends: IntArray
    link_offsets: IntArray
    item_nodes: IntArray
    item_spans: IntArray
    item_offsets: IntArray
    usage: FloatArray
    capacity: FloatArray
    constant: float

    @property
    def node_count(self) -> int:
        """The number of nodes that still choose."""
        return len(self.nodes)

    @cached_property
    def most_strategies(self) -> int:
        """Strategies of the node that has most, at least 1."""
        return int(np.diff(self.offsets).max(initial=1))

    def table(self, edge: int) -> FloatArray:
        """Costs of one edge, rows for its first node."""
        u, v = self.edge_nodes[edge]
        shape = (self.offsets[u + 1] - self.offsets[u], self.offsets[v + 1] - self.offsets[v])
        return self.tables[self.edge_offsets[edge] : self.edge_offsets[edge + 1]].reshape(shape)

    @cached_property
    def item_of_usage(self) -> IntArray:
        """Item of each entry of ``usage``."""
        return np.repeat(np.arange(len(self.item_nodes)), np.diff(self.item_offsets))

    @cached_property
    def strategy_of_usage(self) -> IntArray:
        """Entry of ``cost`` that each entry of ``usage`` belongs to."""
        item = self.item_of_usage
        strategies: IntArray = np.arange(len(self.usage)) - self.item_offsets[item] + self.offsets[self.item_nodes[item]]
        return strategies

    def chosen_pairs(self, choice: IntArray) -> IntArray:
        """Entry of ``tables`` that a choice takes of each edge, shape (m,)."""
        first, second = self.edge_nodes[:, 0], self.edge_nodes[:, 1]
        entries: IntArray = self.edge_offsets[:-1] + choice[first] * np.diff(self.offsets)[second] + choice[second]
        return entries

    def cost_of(self, choice: IntArray) -> float:
        """Cost of one strategy per core node, the constant included."""
        of_nodes, of_edges = self.cost[self.offsets[:-1] + choice], self.tables[self.chosen_pairs(choice)]
        return self.constant + float(of_nodes.sum() + of_edges.sum())

    def used_by_items(self, choice: IntArray) -> FloatArray:
        """Memory that each item holds under a choice, shape (items,)."""
        used: FloatArray = self.usage[self.item_offsets[:-1] + choice[self.item_nodes]]
        return used

    def load_of_items(self, used: FloatArray) -> FloatArray:
        """Memory used at every time point where each item holds so much, shape (time points,)."""
        steps = np.zeros(len(self.capacity) + 1)
        np.add.at(steps, self.item_spans[:, 0], used)
        np.subtract.at(steps, self.item_spans[:, 1], used)
        return np.cumsum(steps)[:-1]

    def load_of(self, choice: IntArray) -> FloatArray:
        """Memory used at every time point, shape (time points,)."""
        return self.load_of_items(self.used_by_items(choice))

    def fits(self, choice: IntArray) -> bool:
        """Return True if memory stays within capacity."""
        return bool((self.load_of(choice) <= self.capacity).all())


def core_of(graph: WorkingGraph) -> Core:
    """Flatten what is left of a working graph."""
    nodes = sorted(graph.alive, key=lambda node: graph.rank[node])
    index = {node: i for i, node in enumerate(nodes)}
    edges = [(i, j) for i, v in enumerate(nodes) for j in sorted(index[w] for w in graph.neighbors[v]) if i < j]
    return assemble_core(
        nodes=nodes,
        cost=[graph.cost[v] for v in nodes],
        edges={(i, j): graph.neighbors[nodes[i]][nodes[j]] for i, j in edges},
        items=[graph.items[v] for v in nodes],
        capacity=graph.capacity.copy(),
        constant=graph.constant,
    )


def assemble_core(
    *,
    nodes: list[int],
    cost: list[FloatArray],
    edges: Mapping[tuple[int, int], FloatArray],
    items: list[dict[Span, FloatArray]],
    capacity: FloatArray,
    constant: float,
) -> Core:
    """Build a core from per-node and per-edge arrays; edges are sorted pairs of positions in ``nodes``."""
    edge_nodes = np.asarray(list(edges), dtype=np.int64).reshape(-1, 2)
    count = len(edge_nodes)
    order = np.lexsort((np.concatenate((edge_nodes[:, 1], edge_nodes[:, 0])), edge_nodes.T.ravel()))
    link_offsets = np.searchsorted(edge_nodes.T.ravel()[order], np.arange(len(nodes) + 1))
    spans = [(i, span, usage) for i, mine in enumerate(items) for span, usage in sorted(mine.items())]
    return Core(
        nodes=np.asarray(nodes, dtype=np.int64),
        offsets=offsets_of([len(values) for values in cost]),
        cost=_joined(cost),
        edge_nodes=edge_nodes,
        edge_offsets=offsets_of([table.size for table in edges.values()]),
        tables=_joined([table.ravel() for table in edges.values()]),
        transposed=_joined([table.T.ravel() for table in edges.values()]),
        links=(order % max(count, 1)).astype(np.int64),
        link_ends=np.concatenate((edge_nodes[:, 1], edge_nodes[:, 0]))[order],
        link_offsets=link_offsets.astype(np.int64),
        item_nodes=np.asarray([i for i, _, _ in spans], dtype=np.int64),
        item_spans=np.asarray([span for _, span, _ in spans], dtype=np.int64).reshape(-1, 2),
        item_offsets=offsets_of([len(usage) for _, _, usage in spans]),
        usage=_joined([usage for _, _, usage in spans]),
        capacity=capacity,
        constant=constant,
    )


def _joined(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts) if parts else np.empty(0)
