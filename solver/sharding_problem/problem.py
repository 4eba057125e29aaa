"""The operator-sharding problem: one strategy per node, costs on nodes and edges, memory limited at every time.

    min  sum_v c_v(s_v) + sum_(u,v) R_uv(s_u, s_v)    subject to    sum over v alive at t of m_v(s_v) <= limit, all t

Node v is alive at the times start <= t < end of its interval (never, if the interval is empty). Costs are integers;
FORBIDDEN marks a choice that no answer may make. Source: Alpa (OSDI'22) section 4.2 with memory over time, in the form
of the ASPLOS 2025 contest (google/iopddl).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.errors import InvalidInputError

IntArray = npt.NDArray[np.int64]

FORBIDDEN = 10**18
"""A cost of at least this much forbids the choice (contest format)."""

_LARGEST_TOTAL = 2**62
"""Any sum of allowed costs must stay below this, so that 64-bit integers hold every total with room to spare."""


@dataclass(frozen=True, eq=False)
class ShardingProblem:
    """Nodes, edges and the memory limit in flat arrays, all int64.

    node_offsets  (n + 1,)  strategies of node v are the entries node_offsets[v] .. node_offsets[v + 1] - 1
    node_costs    (sum k,)  cost of each strategy; FORBIDDEN where it may not be chosen
    node_usages   (sum k,)  memory of each strategy while its node is alive
    intervals     (n, 2)    start and end of each node's life, end excluded
    edge_nodes    (m, 2)    the two distinct nodes of each edge; parallel edges add up
    edge_offsets  (m + 1,)  entries of edge e, row-major over (first node's strategies, second node's strategies)
    edge_costs    (sum k_u k_v,)
    usage_limit   memory available at every time; None for no limit
    """

    name: str
    node_offsets: IntArray
    node_costs: IntArray
    node_usages: IntArray
    intervals: IntArray
    edge_nodes: IntArray
    edge_offsets: IntArray
    edge_costs: IntArray
    usage_limit: int | None

    def __post_init__(self) -> None:
        _check_nodes(self)
        _check_edges(self)
        _check_totals(self)

    @property
    def node_count(self) -> int:
        """The number of nodes that choose a strategy."""
        return len(self.intervals)

    @property
    def edge_count(self) -> int:
        """The number of edges that couple two nodes."""
        return len(self.edge_nodes)

    def strategy_counts(self) -> IntArray:
        """Number of strategies of each node, shape (n,)."""
        return np.diff(self.node_offsets)

    def cost_of(self, solution: Sequence[int] | IntArray) -> int | None:
        """Exact cost of one strategy index per node; None where it makes a forbidden choice."""
        chosen = np.asarray(solution, dtype=np.int64)
        entries = np.concatenate((self._chosen_node_costs(chosen), self._chosen_edge_costs(chosen)))
        return None if np.any(entries >= FORBIDDEN) else int(entries.sum())

    def usage_profile(self, solution: Sequence[int] | IntArray) -> IntArray:
        """Memory in use at each time from 0 to the end of the last interval, shape (last end,)."""
        chosen = np.asarray(solution, dtype=np.int64)
        alive = self.intervals[:, 0] < self.intervals[:, 1]
        steps = np.zeros(int(self.intervals.max(initial=0)) + 1, dtype=np.int64)
        usages = self.node_usages[self.node_offsets[:-1] + chosen][alive]
        np.add.at(steps, self.intervals[alive, 0], usages)
        np.subtract.at(steps, self.intervals[alive, 1], usages)
        profile: IntArray = np.cumsum(steps)[:-1]
        return profile

    def fits(self, solution: Sequence[int] | IntArray) -> bool:
        """Return True if memory stays within the limit at every time."""
        return self.usage_limit is None or int(self.usage_profile(solution).max(initial=0)) <= self.usage_limit

    def _chosen_node_costs(self, chosen: IntArray) -> IntArray:
        chosen_costs: IntArray = self.node_costs[self.node_offsets[:-1] + chosen]
        return chosen_costs

    def _chosen_edge_costs(self, chosen: IntArray) -> IntArray:
        first, second = self.edge_nodes[:, 0], self.edge_nodes[:, 1]
        width = self.strategy_counts()[second]
        chosen_costs: IntArray = self.edge_costs[self.edge_offsets[:-1] + chosen[first] * width + chosen[second]]
        return chosen_costs


def offsets_of(sizes: Sequence[int] | IntArray) -> IntArray:
    """Where parts of these sizes start when laid end to end, and where the last one ends, shape (parts + 1,)."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)))


def problem_from_lists(
    *,
    name: str,
    intervals: Sequence[Sequence[int]],
    node_costs: Sequence[Sequence[int]],
    node_usages: Sequence[Sequence[int]],
    edge_nodes: Sequence[Sequence[int]],
    edge_costs: Sequence[Sequence[int]],
    usage_limit: int | None,
) -> ShardingProblem:
    """Build a problem from one list per node and per edge; raises InvalidInputError naming the first that is wrong."""
    if not len(intervals) == len(node_costs) == len(node_usages):
        raise InvalidInputError(
            "nodes need one interval, one list of costs and one list of usages each",
            given={"intervals": len(intervals), "costs": len(node_costs), "usages": len(node_usages)},
        )
    if len(edge_nodes) != len(edge_costs):
        raise InvalidInputError(
            "edges need one pair of nodes and one list of costs each",
            given={"nodes": len(edge_nodes), "costs": len(edge_costs)},
        )
    for v, (costs, usages) in enumerate(zip(node_costs, node_usages, strict=True)):
        if len(costs) != len(usages):
            raise InvalidInputError(
                f"node {v} needs as many usages as costs", given={"costs": len(costs), "usages": len(usages)}
            )
    return ShardingProblem(
        name=name,
        node_offsets=offsets_of([len(costs) for costs in node_costs]),
        node_costs=_flat(node_costs),
        node_usages=_flat(node_usages),
        intervals=_pairs(intervals, "interval"),
        edge_nodes=_pairs(edge_nodes, "edge"),
        edge_offsets=offsets_of([len(costs) for costs in edge_costs]),
        edge_costs=_flat(edge_costs),
        usage_limit=usage_limit,
    )


def _flat(lists: Sequence[Sequence[int]]) -> IntArray:
    try:
        return np.fromiter((value for values in lists for value in values), dtype=np.int64)
    except OverflowError as error:
        raise InvalidInputError("a cost or usage does not fit 64 bits", allowed="below 2^63") from error


def _pairs(pairs: Sequence[Sequence[int]], what: str) -> IntArray:
    for index, pair in enumerate(pairs):
        if len(pair) != 2:
            raise InvalidInputError(f"{what} {index} is not a pair", given=list(pair), allowed="two integers")
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


def _check_nodes(problem: ShardingProblem) -> None:
    counts = problem.strategy_counts()
    _reject_first(counts < 1, "node {} has no strategy", remedy="give every node at least one strategy")
    for label, values in (("cost", problem.node_costs), ("usage", problem.node_usages)):
        owner = np.repeat(np.arange(len(counts)), counts)
        _reject_first(values < 0, f"node {{}} has a negative {label}", owner=owner, values=values)
    _reject_first(_any_in_row(problem.intervals < 0), "node {} is alive before time 0")
    _reject_first(problem.intervals[:, 1] > _LARGEST_TIME, "node {} ends too late", values=problem.intervals[:, 1])
    if problem.usage_limit is not None and problem.usage_limit < 0:
        raise InvalidInputError("the usage limit is negative", given=problem.usage_limit, allowed="0 or more")


_LARGEST_TIME = 2**24
"""Times index arrays, so a stray time stamp must not ask for gigabytes; real instances end near 6 10^4."""


def _check_edges(problem: ShardingProblem) -> None:
    ends = problem.edge_nodes
    outside = _any_in_row((ends < 0) | (ends >= problem.node_count))
    _reject_first(outside, f"edge {{}} names a node outside 0 .. {problem.node_count - 1}", values=ends)
    _reject_first(ends[:, 0] == ends[:, 1], "edge {} joins a node to itself", values=ends)
    counts = problem.strategy_counts()
    given = np.diff(problem.edge_offsets)
    _reject_first(
        given != counts[ends[:, 0]] * counts[ends[:, 1]],
        "edge {} needs one cost per pair of its nodes' strategies",
        values=given,
    )
    owner = np.repeat(np.arange(problem.edge_count), given)
    _reject_first(problem.edge_costs < 0, "edge {} has a negative cost", owner=owner, values=problem.edge_costs)


def _any_in_row(wrong: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    return np.asarray(wrong.any(axis=1))


def _check_totals(problem: ShardingProblem) -> None:
    total = 0.0
    for values, offsets in (
        (problem.node_costs, problem.node_offsets),
        (problem.edge_costs, problem.edge_offsets),
        (problem.node_usages, problem.node_offsets),
    ):
        if len(values):
            allowed = np.where(values >= FORBIDDEN, 0, values)
            total = max(total, float(np.maximum.reduceat(allowed, offsets[:-1]).astype(np.float64).sum()))
    if total >= _LARGEST_TOTAL:
        raise InvalidInputError(
            "costs or usages add up to more than 64-bit integers hold",
            given=f"{total:.3g}",
            allowed=f"below {_LARGEST_TOTAL:.3g}",
            remedy="use a coarser unit",
        )


def _reject_first(
    wrong: npt.NDArray[np.bool_],
    message: str,
    *,
    owner: IntArray | None = None,
    values: IntArray | None = None,
    remedy: str | None = None,
) -> None:
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    given = None if values is None else values[first].tolist()
    raise InvalidInputError(message.format(first if owner is None else int(owner[first])), given=given, remedy=remedy)
