"""Lower bounds on a core: Lagrangian prices for memory over message passing on the priced pairwise problem.

    bound(prices, messages) = constant - prices . capacity + TRW-S bound of (cost + prices x memory) <= cost of any fit

Prices follow the averaged excess of the decoded choices, as in the volume algorithm (Barahona and Anbil, Mathematical
Programming 87, 2000): a step from the best prices so far, longer after a gain, shorter after a run of failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from meshwright.costmodels.compiling import kept_compiled, named_by_sources
from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray, offsets_of
from meshwright.solver.sharding_problem.working_graph import FloatArray

_EPSILON = float(np.finfo(np.float64).eps)
_AVERAGING = 0.1
_FIRST_STEP, _LONGEST_STEP, _STEP_GAIN, _STEP_LOSS, _PATIENCE = 0.1, 2.0, 1.1, 0.7, 3
"""Step control, as shares of the Polyak step: longer after a gain, shorter after so many failures. Patience 3 reached
bounds in 320 sweeps that patience 10 took over 1000 for (contest instances K, M, S)."""

_WORK_PER_ENTRY = 0.14
"""Work of touching a number in a compiled pass: 1.0 to 1.2 10^9 of them take a second (contest instances M, N)."""

_SMALLEST_TARGET, _LARGEST_TARGET = 0.002, 0.1
"""Gap to aim at, as a share of the bound: a poor first cost would make the first steps far too long."""


@dataclass(frozen=True, eq=False)
class DualCertificate:
    """Slack of every choice above a proven bound: cost of any fit >= bound + slack of its strategies and edges.

    bound     proven lower bound on the cost of every choice that fits, rounding accounted for
    edge      (entries of the tables,) least that the cost exceeds the bound when an edge takes this pair
    strategy  (sum k,) the same for a strategy, all its edges together
    memory    (sum k,) priced memory of each strategy
    """

    bound: float
    edge: FloatArray
    strategy: FloatArray
    memory: FloatArray


class Relaxation:
    """Prices and messages that improve with every ``improve``."""

    def __init__(self, core: Core):
        self.core = core
        self.messages = Messages(core)
        self.bound = -np.inf
        self.prices: FloatArray = np.zeros(len(core.capacity))
        self._trial = self.prices
        self._average: FloatArray | None = None
        self._step = _FIRST_STEP
        self._failures = 0
        self._most_usage = float(np.maximum.reduceat(core.usage, core.item_offsets[:-1]).sum()) if len(core.usage) else 0.0

    @property
    def work(self) -> float:
        """Work of one ``improve``: two passes over every table, one decode, and the memory of every item."""
        core = self.core
        touched = 6 * len(core.tables) + 20 * len(core.cost) + 4 * len(core.usage) + 10 * len(core.capacity)
        return _WORK_PER_ENTRY * touched

    def improve(self, upper: float | None) -> IntArray:
        """One sweep and one step of the prices towards ``upper``, a known cost; returns the decoded choice."""
        core = self.core
        value, error = self.messages.sweep(self.priced_cost(self._trial))
        bound = self._total(value, error, self._trial)
        choice = self.messages.choice.copy()
        if bound > self.bound:
            self.bound, self.prices = bound, self._trial
            self._failures = 0
            self._step = min(_LONGEST_STEP, self._step * _STEP_GAIN)
        else:
            self._failures += 1
            if self._failures >= _PATIENCE:
                self._failures = 0
                self._step *= _STEP_LOSS
        if len(core.capacity) and bound < math.inf:
            excess = core.load_of(choice) - core.capacity
            last = excess if self._average is None else self._average
            self._average = (1 - _AVERAGING) * last + _AVERAGING * excess
            self._trial = self._next_prices(bound, upper)
        return choice

    def _next_prices(self, bound: float, upper: float | None) -> FloatArray:
        assert self._average is not None
        reference = abs(self.bound)
        aim = (1 + _LARGEST_TARGET) * reference if upper is None else min(upper, (1 + _LARGEST_TARGET) * reference)
        target = max(aim - bound, _SMALLEST_TARGET * reference)
        direction = np.where((self.prices <= 0) & (self._average < 0), 0.0, self._average)
        norm = _dot(direction, direction)
        if norm == 0.0:
            return self.prices
        stepped: FloatArray = np.maximum(0.0, self.prices + self._step * target / norm * direction)
        return stepped

    def priced_cost(self, prices: FloatArray) -> FloatArray:
        """Node costs plus the price of their memory, shape (sum k,)."""
        core = self.core
        if not len(core.usage):
            return core.cost
        before = np.concatenate((np.zeros(1), np.cumsum(prices)))
        price = before[core.item_spans[:, 1]] - before[core.item_spans[:, 0]]
        weights = core.usage * price[core.item_of_usage]
        memory = np.bincount(core.strategy_of_usage, weights=weights, minlength=len(core.cost))
        priced: FloatArray = core.cost + memory
        return priced

    def _total(self, value: float, error: float, prices: FloatArray) -> float:
        core = self.core
        if value == math.inf:
            # A node is left without an allowed strategy, whatever memory costs.
            return math.inf
        sold = _dot(prices, core.capacity)
        # Rounding of the prefix sums of prices, times all memory they are applied to.
        error += len(prices) * _EPSILON * (sold + float(prices.sum()) * self._most_usage)
        return value - sold + core.constant - error - abs(core.constant) * _EPSILON

    def certificate(self) -> DualCertificate:
        """Slacks at the best prices, after one more sweep there."""
        core, messages = self.core, self.messages
        cost = self.priced_cost(self.prices)
        value, error = messages.sweep(cost)
        self.bound = max(self.bound, self._total(value, error, self.prices))
        edge = np.empty(len(core.tables))
        strategy = np.zeros(len(core.cost))
        value, magnitude = _slacks(
            core.offsets, core.link_offsets, core.links, core.link_ends, core.edge_offsets,
            core.tables, messages.offsets, messages.opposite, messages.values, cost.copy(), edge, strategy,
        )  # fmt: skip
        error = float(len(cost) + len(core.tables)) * _EPSILON * magnitude
        return DualCertificate(self._total(value, error, self.prices), edge, strategy, cost - core.cost)


def _dot(a: FloatArray, b: FloatArray) -> float:
    # Not the BLAS product: its order of summation, and so its last bit, differs between machines.
    return float(np.sum(a * b))


@kept_compiled
def _slacks(  # type: ignore[no-untyped-def]
    offsets, link_offsets, links, link_ends, edge_offsets, tables, message_offsets, opposite, messages, spare, edge,
    strategy,
):  # fmt: skip
    """Explicit decomposition: bound = sum of node minima + sum of edge minima of the reparametrised problem.

    ``spare`` comes as the costs of nodes and is written to; ``edge`` and ``strategy`` (zeros) receive the slacks.
    """
    bound = 0.0
    magnitude = 0.0
    nodes = len(offsets) - 1
    for i in range(nodes):
        first, k = offsets[i], offsets[i + 1] - offsets[i]
        for link in range(link_offsets[i], link_offsets[i + 1]):
            start = message_offsets[link]
            for s in range(k):
                spare[first + s] += messages[start + s]
        least = spare[first]
        for s in range(1, k):
            least = min(least, spare[first + s])
        bound += least
        magnitude += abs(least)
        degree = link_offsets[i + 1] - link_offsets[i]
        for s in range(k):
            # What a node costs above its least is shared among its edges.
            spare[first + s] = (spare[first + s] - least) / max(degree, 1)
            if degree == 0:
                strategy[first + s] = spare[first + s]
    for i in range(nodes):
        k = offsets[i + 1] - offsets[i]
        for link in range(link_offsets[i], link_offsets[i + 1]):
            j = link_ends[link]
            if j < i:
                continue
            k_j = offsets[j + 1] - offsets[j]
            into_i = message_offsets[link]
            into_j = message_offsets[opposite[link]]
            start = edge_offsets[links[link]]
            least = np.inf
            for s in range(k):
                for r in range(k_j):
                    left = (
                        tables[start + s * k_j + r]
                        - (messages[into_i + s] - spare[offsets[i] + s])
                        - (messages[into_j + r] - spare[offsets[j] + r])
                    )
                    edge[start + s * k_j + r] = left
                    least = min(least, left)
            bound += least
            magnitude += abs(least)
            for s in range(k):
                row_least = np.inf
                for r in range(k_j):
                    edge[start + s * k_j + r] -= least
                    row_least = min(row_least, edge[start + s * k_j + r])
                strategy[offsets[i] + s] += row_least
            for r in range(k_j):
                column_least = np.inf
                for s in range(k):
                    column_least = min(column_least, edge[start + s * k_j + r])
                strategy[offsets[j] + r] += column_least
    return bound, magnitude


# Sequential tree-reweighted message passing (TRW-S) over a core, compiled.
#
# Source: Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", TPAMI 2006, algorithm of
# section 4 with monotonic chains. A message of edge e to one of its ends is a vector over that end's strategies; the sum
# of messages into a node and its cost is its reparametrised cost. Any messages give a valid lower bound.


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
