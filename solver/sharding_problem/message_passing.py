"""Sequential tree-reweighted message passing (TRW-S) over a core, compiled.

Source: Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", TPAMI 2006, algorithm of
section 4 with monotonic chains. A message of edge e to one of its ends is a vector over that end's strategies; the sum
of messages into a node and its cost is its reparametrised cost. Any messages give a valid lower bound.
"""

from __future__ import annotations

import numba
import numpy as np

from meshwright.costmodels.compiling import named_by_sources
from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray, offsets_of
from meshwright.solver.sharding_problem.working_graph import FloatArray


class Messages:
    """Messages along every link of a core, into the node that owns the link; updated in place by ``sweep``."""

    def __init__(self, core: Core):
        self.core = core
        widths = np.diff(core.offsets)[np.repeat(np.arange(core.node_count), np.diff(core.link_offsets))]
        self.offsets: IntArray = offsets_of(widths)
        self.values: FloatArray = np.zeros(int(self.offsets[-1]))
        self.opposite = _opposite_links(core)
        self.choice: IntArray = np.zeros(core.node_count, dtype=np.int64)

    def sweep(self, cost: FloatArray) -> tuple[float, float]:
        """One forward and one backward pass under these node costs.

        Returns the lower bound on the sum of node and edge costs and a limit on its rounding error. Leaves a decoded
        choice in ``choice``.
        """
        core = self.core
        scratch = np.empty(2 * core.most_strategies)
        arrays = (
            core.offsets, cost, core.link_offsets, core.links, core.link_ends, core.edge_offsets, core.tables,
            core.transposed, self.offsets, self.opposite, self.values, scratch,
        )  # fmt: skip
        _pass(*arrays, True, self.choice)
        bound, magnitude = _pass(*arrays, False, self.choice)
        # Standard error of summation: terms x unit roundoff x sum of magnitudes; degree and strategies enter each term.
        terms = float(len(cost) + core.node_count + 2 * len(core.links))
        return bound, terms * np.finfo(np.float64).eps * magnitude


def _opposite_links(core: Core) -> IntArray:
    by_edge = np.argsort(core.links, kind="stable").reshape(-1, 2)
    opposite = np.empty(len(core.links), dtype=np.int64)
    opposite[by_edge[:, 0]] = by_edge[:, 1]
    opposite[by_edge[:, 1]] = by_edge[:, 0]
    return opposite


@numba.njit(cache=True, fastmath={"nnan", "nsz"})
@named_by_sources
def _pass(  # type: ignore[no-untyped-def]
    offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, message_offsets, opposite,
    messages, scratch, forward, choice,
):  # fmt: skip
    """One pass over the nodes, forward or backward, which also decodes; returns the bound and its sum of magnitudes."""
    nodes = len(offsets) - 1
    bound = 0.0
    magnitude = 0.0
    for position in range(nodes):
        i = position if forward else nodes - 1 - position
        k = offsets[i + 1] - offsets[i]
        first_link, last_link = link_offsets[i], link_offsets[i + 1]
        total = scratch[:k]
        # One by one: with a slice assignment numba compiles the text of its error on shapes, for seconds.
        for s in range(k):
            total[s] = cost[offsets[i] + s]
        ahead = 0
        for link in range(first_link, last_link):
            incoming = messages[message_offsets[link] : message_offsets[link + 1]]
            for s in range(k):
                total[s] += incoming[s]
            if (link_ends[link] > i) == forward:
                ahead += 1
        if not forward:
            _decode(
                i, k, total, first_link, last_link, links, link_ends, edge_offsets, tables, transposed, offsets,
                message_offsets, messages, scratch, choice,
            )  # fmt: skip
        least = total[0]
        for s in range(1, k):
            least = total[s] if total[s] < least else least
        bound += least
        magnitude += abs(least)
        for s in range(k):
            total[s] -= least
        behind = last_link - first_link - ahead
        share = 1.0 / max(ahead, behind, 1)
        for link in range(first_link, last_link):
            j = link_ends[link]
            if (j > i) != forward:
                continue
            k_j = offsets[j + 1] - offsets[j]
            start = edge_offsets[links[link]]
            # Rows of this table are the strategies of i.
            table = tables if i < j else transposed
            incoming = messages[message_offsets[link] : message_offsets[link + 1]]
            there = opposite[link]
            outgoing = messages[message_offsets[there] : message_offsets[there + 1]]
            for r in range(k_j):
                outgoing[r] = np.inf
            for s in range(k):
                height = share * total[s] - incoming[s]
                row = table[start + s * k_j : start + (s + 1) * k_j]
                for r in range(k_j):
                    candidate = height + row[r]
                    outgoing[r] = candidate if candidate < outgoing[r] else outgoing[r]
            least = outgoing[0]
            for r in range(1, k_j):
                least = outgoing[r] if outgoing[r] < least else least
            for r in range(k_j):
                outgoing[r] -= least
            bound += least
            magnitude += abs(least)
    return bound, magnitude


@numba.njit(cache=True, fastmath={"nnan", "nsz"})
@named_by_sources
def _decode(  # type: ignore[no-untyped-def]
    i, k, total, first_link, last_link, links, link_ends, edge_offsets, tables, transposed, offsets, message_offsets,
    messages, scratch, choice,
):  # fmt: skip
    """Choose a strategy of node i, the nodes after which have chosen: their messages give way to the exact edge costs."""
    best_of = scratch[len(scratch) // 2 : len(scratch) // 2 + k]
    for s in range(k):
        best_of[s] = total[s]
    for link in range(first_link, last_link):
        j = link_ends[link]
        if j < i:
            continue
        start = edge_offsets[links[link]] + choice[j] * k
        row = transposed[start : start + k]
        incoming = messages[message_offsets[link] : message_offsets[link + 1]]
        for s in range(k):
            best_of[s] += row[s] - incoming[s]
    best = 0
    for s in range(1, k):
        if best_of[s] < best_of[best]:
            best = s
    choice[i] = best
