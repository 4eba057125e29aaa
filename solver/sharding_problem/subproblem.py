"""A core with some nodes held at their choice and the others limited to promising strategies, as a new problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.solver.control import Stop
from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.reductions import reduce_graph
from meshwright.solver.sharding_problem.relaxation import Certificate
from meshwright.solver.sharding_problem.working_graph import BoolArray, FloatArray, ProvenInfeasible, Span, WorkingGraph


@dataclass(frozen=True, eq=False)
class ReducedPart:
    """A reduced subproblem and the way back: ``core`` is what is left to decide, the rest follows."""

    core: Core
    graph: WorkingGraph
    free: IntArray
    kept: list[IntArray]
    choice: IntArray

    def whole(self, inner: IntArray) -> IntArray:
        """The choice of the whole core that a choice of the part's core stands for."""
        decided = np.zeros(len(self.free), dtype=np.int64)
        decided[self.core.nodes] = inner
        whole = self.choice.copy()
        whole[self.free] = [states[s] for states, s in zip(self.kept, self.graph.lift(decided).tolist(), strict=True)]
        return whole


def reduced_part(
    core: Core, choice: IntArray, *, free: IntArray, certificate: Certificate, slack: float, stop: Stop
) -> ReducedPart:
    """The subproblem of the ``free`` nodes around a choice that fits, strategies beyond ``slack`` left out, reduced."""
    graph, kept = _restricted(core, choice, free=free, certificate=certificate, slack=slack)
    try:
        reduce_graph(graph, stop)
    except ProvenInfeasible as error:
        raise AssertionError("a part always holds the current choice") from error
    return ReducedPart(core_of(graph), graph, free, kept, choice)


def _restricted(
    core: Core, choice: IntArray, *, free: IntArray, certificate: Certificate, slack: float
) -> tuple[WorkingGraph, list[IntArray]]:
    """The problem over the ``free`` nodes (ascending), and the strategies that it keeps of each; its node i is free[i].

    Strategies and pairs whose certified slack exceeds ``slack`` are left out, never the current choice. Nodes that are
    not free keep their choice: their edges become costs and their memory is taken from the capacity.
    """
    position = np.full(core.node_count, -1, dtype=np.int64)
    position[free] = np.arange(len(free))
    allowed: BoolArray = certificate.strategy <= slack
    allowed[core.offsets[:-1] + choice] = True
    kept = [np.flatnonzero(allowed[core.offsets[i] : core.offsets[i + 1]]) for i in free.tolist()]
    graph = WorkingGraph(
        [core.cost[core.offsets[i] + states] for i, states in zip(free.tolist(), kept, strict=True)],
        [{} for _ in kept],
        [{} for _ in kept],
        list(range(len(kept))),
        np.empty(0),
        alive=set(range(len(kept))),
    )
    for p, i in enumerate(free.tolist()):
        for link in range(core.link_offsets[i], core.link_offsets[i + 1]):
            j, edge = int(core.link_ends[link]), int(core.links[link])
            q = int(position[j])
            if q < 0:
                table = core.table(edge)
                fixed = table[:, choice[j]] if i < j else table[choice[j]]
                graph.cost[p] = graph.cost[p] + fixed[kept[p]]
            elif i < j:
                graph.add_edge(p, q, _allowed_pairs(core, edge, choice, (kept[p], kept[q]), certificate, slack))
    _take_memory(core, choice, position, kept, graph)
    graph.touched_nodes = dict.fromkeys(range(len(kept)))
    return graph, kept


def _allowed_pairs(
    core: Core, edge: int, choice: IntArray, kept: tuple[IntArray, IntArray], certificate: Certificate, slack: float
) -> FloatArray:
    table = core.table(edge)
    rows, columns = kept
    small: FloatArray = table[rows[:, None], columns]
    slacks = certificate.edge[core.edge_offsets[edge] : core.edge_offsets[edge + 1]].reshape(table.shape)
    limited: FloatArray = np.where(slacks[rows[:, None], columns] <= slack, small, np.inf)
    i, j = core.edge_nodes[edge]
    row, column = np.searchsorted(rows, choice[i]), np.searchsorted(columns, choice[j])
    limited[row, column] = small[row, column]
    return limited


def _take_memory(core: Core, choice: IntArray, position: IntArray, kept: list[IntArray], graph: WorkingGraph) -> None:
    of_free = np.flatnonzero(position[core.item_nodes] >= 0)
    if not len(of_free):
        return
    used = core.used_by_items(choice)
    used[of_free] = 0.0
    left = core.capacity - core.load_of_items(used)
    # Between two starts or ends of the free items only the least capacity matters.
    breaks = np.unique(core.item_spans[of_free])
    starts = breaks[:-1] if breaks[-1] == len(left) else breaks
    graph.capacity = np.minimum.reduceat(left, starts)
    rank = np.searchsorted(breaks, core.item_spans[of_free])
    for (first, last), item in zip(rank.tolist(), of_free.tolist(), strict=True):
        p = int(position[core.item_nodes[item]])
        usage = core.usage[core.item_offsets[item] : core.item_offsets[item + 1]]
        span: Span = (first, last)
        graph.items[p][span] = usage[kept[p]]
