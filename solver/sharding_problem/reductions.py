"""Reductions: rewrites that make a sharding problem smaller and never lose an optimal answer.

Each rule takes the working graph and what to look at, and says whether it changed anything. ``reduce_problem`` applies
them until none changes anything. All are exact under the memory limit: a rule that hides a node from the memory
constraint applies only where the node holds no memory that could matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.solver.control import Stop, never_stop
from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.problem import IntArray, ShardingProblem
from meshwright.solver.sharding_problem.relaxation import DualCertificate
from meshwright.solver.sharding_problem.working_graph import (
    BoolArray,
    Fixed,
    FloatArray,
    FollowsTwo,
    ProvenInfeasible,
    Span,
    WorkingGraph,
)

_RULES_PER_ASK = 64
"""Edges looked at between two looks at the stopping rule."""

_DOMINANCE_WORK = 200_000
"""Largest number of table entries that one node's dominance test may compare (k_v^2 times neighbours' strategies)."""


def reduce_problem(problem: ShardingProblem, stop: Stop = never_stop) -> WorkingGraph:
    """The reduced graph of a whole problem; raises ProvenInfeasible when a node is left without strategies."""
    graph = WorkingGraph.of(problem)
    reduce_graph(graph, stop)
    return graph


def reduce_graph(graph: WorkingGraph, stop: Stop = never_stop) -> None:
    """Apply every rule until nothing changes; raises ProvenInfeasible when a node is left without strategies.

    Stopping early leaves a larger graph, equally valid.
    """
    while True:
        tighten_memory(graph)
        _settle(graph, stop)
        if not tighten_memory(graph) or stop():
            return


def _settle(graph: WorkingGraph, stop: Stop) -> None:
    while (graph.touched_edges or graph.touched_nodes) and not stop():
        for _ in range(_RULES_PER_ASK):
            if not graph.touched_edges:
                break
            u, v = next(iter(graph.touched_edges))
            del graph.touched_edges[u, v]
            examine_edge(graph, u, v)
        if graph.touched_nodes and not graph.touched_edges:
            v = next(iter(graph.touched_nodes))
            del graph.touched_nodes[v]
            examine_node(graph, v)


def examine_edge(graph: WorkingGraph, u: int, v: int) -> bool:
    """Apply the edge rules to one edge; True if one of them changed the graph."""
    return restore_arc_consistency(graph, u, v) or fold_separable_edge(graph, u, v) or contract_follower(graph, u, v)


def examine_node(graph: WorkingGraph, v: int) -> bool:
    """Apply the node rules to one node; True if one of them changed the graph."""
    return (
        drop_impossible_strategies(graph, v)
        or fold_single_strategy(graph, v)
        or fix_isolated_node(graph, v)
        or eliminate_leaf(graph, v)
        or eliminate_degree_two(graph, v)
        or drop_dominated_strategies(graph, v)
    )


def restore_arc_consistency(graph: WorkingGraph, u: int, v: int) -> bool:
    """Drop strategies that no strategy of the other end allows."""
    allowed = np.isfinite(graph.neighbors[u][v])
    rows: BoolArray = np.asarray(allowed.any(axis=1))
    columns: BoolArray = np.asarray(allowed.any(axis=0))
    if rows.all() and columns.all():
        return False
    graph.keep_strategies(u, rows)
    graph.keep_strategies(v, columns)
    return True


def fold_separable_edge(graph: WorkingGraph, u: int, v: int) -> bool:
    """Replace an edge R_ij = a_i + b_j by node costs a and b."""
    table = graph.neighbors[u][v]
    of_u = table[:, 0]
    if not np.isfinite(of_u).all() or not np.isfinite(table[0]).all():
        return False
    of_v = table[0] - table[0, 0]
    if not np.array_equal(of_u[:, None] + of_v, table):
        return False
    graph.cost[u] = graph.cost[u] + of_u
    graph.cost[v] = graph.cost[v] + of_v
    graph.drop_edge(u, v)
    return True


def contract_follower(graph: WorkingGraph, u: int, v: int) -> bool:
    """Merge an end whose strategy the other end's determines, where no table of its other edges grows."""
    allowed = np.isfinite(graph.neighbors[u][v])
    v_follows = bool((allowed.sum(axis=1) == 1).all())
    u_follows = bool((allowed.sum(axis=0) == 1).all())
    if u_follows and v_follows and len(graph.neighbors[u]) < len(graph.neighbors[v]):
        v_follows = False
    if v_follows and _may_merge(graph, v, u):
        graph.remove_follower(v, u, allowed.argmax(axis=1))
        return True
    if u_follows and _may_merge(graph, u, v):
        graph.remove_follower(u, v, allowed.argmax(axis=0))
        return True
    return False


def _may_merge(graph: WorkingGraph, follower: int, leader: int) -> bool:
    k_leader, k_follower = len(graph.cost[leader]), len(graph.cost[follower])
    entries_freed = k_leader * k_follower
    entries_grown = sum(
        table.shape[1] * (k_leader - k_follower) for w, table in graph.neighbors[follower].items() if w != leader
    )
    return bool(entries_grown <= entries_freed)


def drop_impossible_strategies(graph: WorkingGraph, v: int) -> bool:
    """Drop forbidden strategies and those whose memory alone exceeds what is left at some time."""
    possible = np.isfinite(graph.cost[v])
    for (start, end), usage in graph.items[v].items():
        possible &= usage <= graph.capacity[start:end].min()
    if possible.all():
        return False
    graph.keep_strategies(v, possible)
    return True


def fold_single_strategy(graph: WorkingGraph, v: int) -> bool:
    """Decide a node that has one strategy: its edges become node costs of its neighbours."""
    if len(graph.cost[v]) != 1:
        return False
    graph.trail.append(Fixed(v, 0))
    graph.constant += float(graph.cost[v][0])
    for w, table in list(graph.neighbors[v].items()):
        graph.cost[w] = graph.cost[w] + table[0]
        graph.drop_edge(v, w)
    for (start, end), usage in graph.items[v].items():
        graph.capacity[start:end] -= usage[0]
    graph.forget(v)
    return True


def fix_isolated_node(graph: WorkingGraph, v: int) -> bool:
    """Decide a node without edges when one strategy is best in cost and in memory."""
    if graph.neighbors[v]:
        return False
    best = _best_rows(graph, v, graph.cost[v][None, :])
    if best is None:
        return False
    keep = np.zeros(len(graph.cost[v]), dtype=bool)
    keep[best[0]] = True
    graph.keep_strategies(v, keep)
    return fold_single_strategy(graph, v)


def eliminate_leaf(graph: WorkingGraph, v: int) -> bool:
    """Remove a node of degree 1 when for each strategy of its neighbour one of its own is best in cost and memory."""
    if len(graph.neighbors[v]) != 1:
        return False
    ((leader, table),) = graph.neighbors[v].items()
    best = _best_rows(graph, v, table.T + graph.cost[v])
    if best is None:
        return False
    graph.remove_follower(v, leader, best)
    return True


def eliminate_degree_two(graph: WorkingGraph, v: int) -> bool:
    """Replace a node of degree 2 without memory by an edge between its neighbours, where no table grows."""
    if len(graph.neighbors[v]) != 2 or graph.items[v]:
        return False
    (a, table_a), (b, table_b) = graph.neighbors[v].items()
    k, k_a, k_b = len(graph.cost[v]), len(graph.cost[a]), len(graph.cost[b])
    freed = k * (k_a + k_b) + (k_a * k_b if b in graph.neighbors[a] else 0)
    if k_a * k_b > freed:
        return False
    # (k_a, k_b, k): cost of each triple; k is small here, since k_a k_b <= 2 k (k_a + k_b).
    triples = table_a.T[:, None, :] + table_b.T[None, :, :] + graph.cost[v]
    graph.trail.append(FollowsTwo(v, (a, b), triples.argmin(axis=2)))
    graph.drop_edge(v, a)
    graph.drop_edge(v, b)
    graph.forget(v)
    graph.add_edge(a, b, triples.min(axis=2))
    return True


def drop_dominated_strategies(graph: WorkingGraph, v: int) -> bool:
    """Drop strategies for which another costs no more whatever the neighbours choose, and holds no more memory."""
    k = len(graph.cost[v])
    width = sum(table.shape[1] for table in graph.neighbors[v].values())
    if k * k * (width + 1) > _DOMINANCE_WORK:
        return False
    # excess[i, j]: most that strategy i can cost beyond strategy j.
    with np.errstate(invalid="ignore"):
        excess = graph.cost[v][:, None] - graph.cost[v][None, :]
    for table in graph.neighbors[v].values():
        rest = np.where(np.isfinite(table), table, np.nan)
        with np.errstate(invalid="ignore"):
            differences = table[:, None, :] - rest[None, :, :]
            # Where j is forbidden, i is no worse; where only i is forbidden, i is infinitely worse.
            excess += np.where(np.isnan(differences), -np.inf, differences).max(axis=2)
    covers = excess <= 0
    for usage in graph.items[v].values():
        covers &= usage[:, None] <= usage[None, :]
    # Of strategies that cover each other the first stays.
    covers &= ~covers.T | (np.arange(k)[:, None] < np.arange(k)[None, :])
    np.fill_diagonal(covers, False)
    dominated: BoolArray = np.asarray(covers.any(axis=0))
    if not dominated.any():
        return False
    graph.keep_strategies(v, ~dominated)
    return True


def _best_rows(graph: WorkingGraph, v: int, costs: FloatArray) -> IntArray | None:
    """For each row of costs (one column per strategy of v), the strategy that is least in cost and in every item."""
    usages = list(graph.items[v].values())
    if not usages:
        return np.asarray(costs.argmin(axis=1))
    total = np.sum(usages, axis=0)
    # Among the cheapest, the one with least memory in total; it must be least in every item among allowed strategies.
    cheapest = costs.min(axis=1, keepdims=True)
    best = np.where(costs == cheapest, total, np.inf).argmin(axis=1)
    allowed = np.isfinite(costs)
    for usage in usages:
        least = np.where(allowed, usage, np.inf).min(axis=1)
        if (usage[best] > least).any():
            return None
    return np.asarray(best)


# The memory limit over time, kept at the time points that can matter.


def tighten_memory(graph: WorkingGraph) -> bool:
    """Move the smallest usage of every item into the capacity and drop the time points that can't bind.

    A time point can't bind when even the largest usages fit, or when its items are among those of a neighbouring point
    with no more capacity. Returns whether an item changed; raises ProvenInfeasible where the smallest usages don't fit.
    """
    changed = _normalise_items(graph)
    if (graph.capacity < 0).any():
        raise ProvenInfeasible
    return _drop_time_points(graph) or changed


def _normalise_items(graph: WorkingGraph) -> bool:
    changed = False
    for v in graph.alive:
        items = graph.items[v]
        if not items:
            continue
        for (start, end), usage in list(items.items()):
            least = usage.min()
            if least > 0:
                graph.capacity[start:end] -= least
                items[start, end] = usage = usage - least
                changed = True
            if not usage.any():
                del items[start, end]
                graph.touch_node(v)
                changed = True
    return changed


def _drop_time_points(graph: WorkingGraph) -> bool:
    points = len(graph.capacity)
    if points == 0:
        return False
    starts, ends, most = np.zeros(points + 1), np.zeros(points + 1), np.zeros(points + 1)
    for v in graph.alive:
        for (start, end), usage in graph.items[v].items():
            starts[start] += 1
            ends[end] += 1
            most[start] += usage.max()
            most[end] -= usage.max()
    kept = _undominated_points(graph.capacity, starts, ends, np.cumsum(most)[:-1] > graph.capacity)
    if len(kept) == points:
        return False
    rank = np.searchsorted(kept, np.arange(points + 1))
    graph.capacity = graph.capacity[kept]
    for v in graph.alive:
        if graph.items[v]:
            _renumber_items(graph, v, rank)
    return True


def _undominated_points(capacity: FloatArray, starts: FloatArray, ends: FloatArray, may_bind: BoolArray) -> IntArray:
    kept: list[int] = []
    started = ended = False
    for t in range(len(capacity)):
        # Whether any item started or ended between the last kept point and this one.
        started, ended = started or starts[t] > 0, ended or ends[t] > 0
        if not may_bind[t]:
            continue
        if kept and not started and capacity[kept[-1]] <= capacity[t]:
            continue
        if kept and not ended and capacity[t] <= capacity[kept[-1]]:
            kept.pop()
        kept.append(t)
        started = ended = False
    return np.asarray(kept, dtype=np.int64)


def _renumber_items(graph: WorkingGraph, v: int, rank: IntArray) -> None:
    renumbered: dict[Span, FloatArray] = {}
    for (start, end), usage in graph.items[v].items():
        span = int(rank[start]), int(rank[end])
        if span[0] < span[1]:
            renumbered[span] = renumbered[span] + usage if span in renumbered else usage
    if len(renumbered) != len(graph.items[v]):
        graph.touch_node(v)
    graph.items[v] = renumbered


# A core with some nodes held at their choice and the others limited to promising strategies, as a new problem.


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
    core: Core, choice: IntArray, *, free: IntArray, certificate: DualCertificate, slack: float, stop: Stop
) -> ReducedPart:
    """The subproblem of the ``free`` nodes around a choice that fits, strategies beyond ``slack`` left out, reduced."""
    graph, kept = _restricted(core, choice, free=free, certificate=certificate, slack=slack)
    try:
        reduce_graph(graph, stop)
    except ProvenInfeasible as error:
        raise AssertionError("a part always holds the current choice") from error
    return ReducedPart(core_of(graph), graph, free, kept, choice)


def _restricted(
    core: Core, choice: IntArray, *, free: IntArray, certificate: DualCertificate, slack: float
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
    core: Core, edge: int, choice: IntArray, kept: tuple[IntArray, IntArray], certificate: DualCertificate, slack: float
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
