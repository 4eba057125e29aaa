"""Single-node moves within memory, compiled: descend in cost, and repair a choice that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.working_graph import FloatArray


def descend(core: Core, choice: IntArray, *, max_passes: int = 50) -> IntArray:
    """Improve a choice that fits by single-node changes until none helps; the result fits."""
    improved = choice.copy()
    load = core.load_of(choice)
    _descend(*(*core_arrays(core), improved, load, np.empty(core.most_strategies), max_passes))
    return improved


def repair(core: Core, choice: IntArray, *, max_moves: int) -> IntArray | None:
    """Make a choice fit by single-node changes, cheapest per byte freed at the fullest time; None if that gets stuck."""
    repaired = choice.copy()
    load = core.load_of(choice)
    _repair(*(*core_arrays(core), repaired, load, np.empty(core.most_strategies), max_moves))
    return repaired if core.fits(repaired) else None


def core_arrays(core: Core) -> tuple[Any, ...]:
    """Return the arrays that the compiled moves read, in the order of their arguments."""
    item_starts = np.searchsorted(core.item_nodes, np.arange(core.node_count + 1))
    return (
        core.offsets, core.cost, core.link_offsets, core.links, core.link_ends, core.edge_offsets, core.tables,
        core.transposed, item_starts, core.item_spans, core.item_offsets, core.usage, core.capacity,
    )  # fmt: skip


@kept_compiled
def _costs_at(  # type: ignore[no-untyped-def]
    i, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice, out
):  # fmt: skip
    k = offsets[i + 1] - offsets[i]
    # One by one, here and elsewhere: with a slice assignment numba compiles the text of its error on shapes, for seconds.
    for s in range(k):
        out[s] = cost[offsets[i] + s]
    for link in range(link_offsets[i], link_offsets[i + 1]):
        j = link_ends[link]
        # Entries of j's strategy are contiguous where j's strategies are the rows.
        table = tables if j < i else transposed
        start = edge_offsets[links[link]] + choice[j] * k
        for s in range(k):
            out[s] += table[start + s]


@kept_compiled
def shift(i, old, new, item_starts, item_spans, item_offsets, usage, load):  # type: ignore[no-untyped-def]
    """Change the load where a node goes from an old strategy to a new one."""
    for item in range(item_starts[i], item_starts[i + 1]):
        change = usage[item_offsets[item] + new] - usage[item_offsets[item] + old]
        if change != 0.0:
            for t in range(item_spans[item, 0], item_spans[item, 1]):
                load[t] += change


@kept_compiled
def _overflow(i, old, new, item_starts, item_spans, item_offsets, usage, load, capacity):  # type: ignore[no-untyped-def]
    """Largest excess over capacity at times where the move from old to new adds memory, after the move; -inf if none."""
    shift(i, old, new, item_starts, item_spans, item_offsets, usage, load)
    worst = -np.inf
    for item in range(item_starts[i], item_starts[i + 1]):
        if usage[item_offsets[item] + new] > usage[item_offsets[item] + old]:
            for t in range(item_spans[item, 0], item_spans[item, 1]):
                worst = max(worst, load[t] - capacity[t])
    shift(i, new, old, item_starts, item_spans, item_offsets, usage, load)
    return worst


@kept_compiled
def _descend(  # type: ignore[no-untyped-def]
    offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, item_starts, item_spans,
    item_offsets, usage, capacity, choice, load, here, max_passes,
):  # fmt: skip
    nodes = len(offsets) - 1
    for _ in range(max_passes):
        moved = False
        for i in range(nodes):
            k = offsets[i + 1] - offsets[i]
            _costs_at(i, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice, here)
            old = choice[i]
            while True:
                new = old
                for s in range(k):
                    if here[s] < here[new]:
                        new = s
                if new == old:
                    break
                if _overflow(i, old, new, item_starts, item_spans, item_offsets, usage, load, capacity) <= 0.0:
                    shift(i, old, new, item_starts, item_spans, item_offsets, usage, load)
                    choice[i] = new
                    moved = True
                    break
                here[new] = np.inf
        if not moved:
            return


@kept_compiled
def _repair(  # type: ignore[no-untyped-def]
    offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, item_starts, item_spans,
    item_offsets, usage, capacity, choice, load, here, max_moves,
):  # fmt: skip
    nodes = len(offsets) - 1
    for _ in range(max_moves):
        worst = 0
        for t in range(len(capacity)):
            if load[t] - capacity[t] > load[worst] - capacity[worst]:
                worst = t
        if len(capacity) == 0 or load[worst] <= capacity[worst]:
            return
        best_rate, best_node, best_new = np.inf, nodes, nodes
        over = load[worst] - capacity[worst]
        for i in range(nodes):
            k = offsets[i + 1] - offsets[i]
            holds = False
            for item in range(item_starts[i], item_starts[i + 1]):
                if item_spans[item, 0] <= worst < item_spans[item, 1] and usage[item_offsets[item] + choice[i]] > 0.0:
                    holds = True
            if not holds:
                continue
            _costs_at(i, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice, here)
            for s in range(k):
                freed = 0.0
                for item in range(item_starts[i], item_starts[i + 1]):
                    if item_spans[item, 0] <= worst < item_spans[item, 1]:
                        freed += usage[item_offsets[item] + choice[i]] - usage[item_offsets[item] + s]
                if freed <= 0.0:
                    continue
                rise = here[s] - here[choice[i]]
                # Freeing more than the excess is worth no more; a move that saves cost as well goes first.
                rate = rise / min(freed, over) if rise > 0.0 else rise
                if rate < best_rate and (
                    _overflow(i, choice[i], s, item_starts, item_spans, item_offsets, usage, load, capacity) < over
                ):
                    best_rate, best_node, best_new = rate, i, s
        if best_node == nodes:
            return
        shift(best_node, choice[best_node], best_new, item_starts, item_spans, item_offsets, usage, load)
        choice[best_node] = best_new


# Exact moves over random trees of a core, compiled: all nodes of a small tree choose anew, the rest stays.
#
# A tree is grown from a node so that the core has no other edges between its nodes; then dynamic programming finds its best
# joint choice in time linear in its tables (block coordinate descent over trees: Hamze and de Freitas, UAI 2004). Memory
# enters through prices; a move is kept where it fits and costs less without them.

_SIZES = (4, 16, 60, 250)
"""Most nodes of a tree, drawn at random: small ones are tried often, and one of the largest takes under a millisecond."""

_PRICE_SPREAD = 2.0
"""Prices of a move are the bound's, times a factor from 0 to this: those of the bound fit an average of many choices."""


class TreeMoves:
    """Moves over one core."""

    def __init__(self, core: Core):
        self.core = core
        self._arrays = core_arrays(core)
        of_tree = (max(_SIZES), core.most_strategies)
        self._scratch = (
            np.full(core.node_count, -1, dtype=np.int64),
            np.zeros(core.node_count, dtype=np.int64),
            np.empty(of_tree),
            np.empty(of_tree, dtype=np.int64),
        )

    def improve(
        self, choice: IntArray, memory_cost: FloatArray, rng: np.random.Generator, *, moves: int
    ) -> tuple[IntArray, float]:
        """The choice, which fits, after so many tries, and the table entries that they touched; the result fits.

        ``memory_cost`` is the priced memory of every strategy, shape (sum k,).
        """
        core = self.core
        if core.node_count == 0:
            return choice, 0.0
        improved, load = choice.copy(), core.load_of(choice)
        roots = rng.integers(core.node_count, size=moves)
        sizes = rng.choice(np.asarray(_SIZES), size=moves)
        factors = rng.uniform(0.0, _PRICE_SPREAD, size=moves)
        factors[rng.random(moves) < 0.5] = 0.0
        drawn = (roots, sizes, factors, int(rng.integers(2**32)))
        touched = _improve(*(*self._arrays, memory_cost, *drawn, *self._scratch, improved, load))
        return improved, float(touched)


@kept_compiled
def _improve(  # type: ignore[no-untyped-def]
    offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, item_starts, item_spans,
    item_offsets, usage, capacity, memory_cost, roots, sizes, factors, seed, place, contacts,
    total, best, choice, load,
):  # fmt: skip
    """Try one move for each root; returns entries touched. ``place`` (all -1) and ``contacts`` (all 0) stay as they came."""
    np.random.seed(seed)
    most = total.shape[0]
    tree = np.empty(most, dtype=np.int64)
    parent = np.empty(most, dtype=np.int64)
    parent_link = np.empty(most, dtype=np.int64)
    old = np.empty(most, dtype=np.int64)
    touched = 0.0
    for move in range(len(roots)):
        count = _grow(roots[move], sizes[move], link_offsets, link_ends, place, contacts, tree, parent, parent_link)
        for p in range(count):
            old[p] = choice[tree[p]]
        touched += _gather(
            count, tree, place, factors[move], offsets, cost, memory_cost, link_offsets, links, link_ends, edge_offsets,
            tables, transposed, choice, total,
        )  # fmt: skip
        before = _cost_of_tree(
            count, tree, place, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice
        )
        touched += _choose(
            count, tree, parent, parent_link, offsets, links, edge_offsets, tables, transposed, total, best, choice
        )
        after = _cost_of_tree(
            count, tree, place, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice
        )
        if not (
            after < before
            and _move_load(count, tree, old, choice, item_starts, item_spans, item_offsets, usage, load, capacity)
        ):
            for p in range(count):
                choice[tree[p]] = old[p]
        _clear(count, tree, link_offsets, link_ends, place, contacts)
    return touched


@kept_compiled
def _grow(root, size, link_offsets, link_ends, place, contacts, tree, parent, parent_link):  # type: ignore[no-untyped-def]
    """Nodes of a tree in order of growth: each next one touches the tree by one edge only."""
    tree[0] = root
    place[root] = 0
    parent[0] = -1
    count = 1
    head = 0
    for link in range(link_offsets[root], link_offsets[root + 1]):
        contacts[link_ends[link]] += 1
    while head < count and count < size:
        i = tree[head]
        degree = link_offsets[i + 1] - link_offsets[i]
        first = np.random.randint(max(degree, 1))
        for step in range(degree):
            link = link_offsets[i] + (first + step) % degree
            j = link_ends[link]
            if count < size and place[j] < 0 and contacts[j] == 1:
                tree[count] = j
                place[j] = count
                parent[count] = head
                parent_link[count] = link
                count += 1
                for other in range(link_offsets[j], link_offsets[j + 1]):
                    contacts[link_ends[other]] += 1
        head += 1
    return count


@kept_compiled
def _clear(count, tree, link_offsets, link_ends, place, contacts):  # type: ignore[no-untyped-def]
    for p in range(count):
        i = tree[p]
        place[i] = -1
        contacts[i] = 0
        for link in range(link_offsets[i], link_offsets[i + 1]):
            contacts[link_ends[link]] = 0


@kept_compiled
def _gather(  # type: ignore[no-untyped-def]
    count, tree, place, factor, offsets, cost, memory_cost, link_offsets, links, link_ends, edge_offsets, tables,
    transposed, choice, total,
):  # fmt: skip
    """Cost of every strategy of the tree's nodes, memory and edges out of the tree included; returns entries touched."""
    touched = 0
    for p in range(count):
        i = tree[p]
        k = offsets[i + 1] - offsets[i]
        for s in range(k):
            total[p, s] = cost[offsets[i] + s] + factor * memory_cost[offsets[i] + s]
        for link in range(link_offsets[i], link_offsets[i + 1]):
            j = link_ends[link]
            if place[j] < 0:
                table = tables if j < i else transposed
                start = edge_offsets[links[link]] + choice[j] * k
                for s in range(k):
                    total[p, s] += table[start + s]
                touched += k
    return touched


@kept_compiled
def _choose(  # type: ignore[no-untyped-def]
    count, tree, parent, parent_link, offsets, links, edge_offsets, tables, transposed, total, best, choice
):  # fmt: skip
    """Dynamic programming from the leaves up, then the best strategies from the root down; returns entries touched."""
    touched = 0
    for p in range(count - 1, 0, -1):
        i, q = tree[p], parent[p]
        j = tree[q]
        k, k_parent = offsets[i + 1] - offsets[i], offsets[j + 1] - offsets[j]
        # Rows of this table are the parent's strategies.
        table = tables if j < i else transposed
        start = edge_offsets[links[parent_link[p]]]
        for r in range(k_parent):
            least, at = np.inf, 0
            for s in range(k):
                value = total[p, s] + table[start + r * k + s]
                if value < least:
                    least, at = value, s
            total[q, r] += least
            best[p, r] = at
        touched += k * k_parent
    root = tree[0]
    at = 0
    for s in range(offsets[root + 1] - offsets[root]):
        if total[0, s] < total[0, at]:
            at = s
    choice[root] = at
    for p in range(1, count):
        choice[tree[p]] = best[p, choice[tree[parent[p]]]]
    return touched


@kept_compiled
def _move_load(  # type: ignore[no-untyped-def]
    count, tree, old, choice, item_starts, item_spans, item_offsets, usage, load, capacity
):  # fmt: skip
    """Change the load from the old strategies to the new ones if that fits; whether it did."""
    for p in range(count):
        i = tree[p]
        if choice[i] != old[p]:
            shift(i, old[p], choice[i], item_starts, item_spans, item_offsets, usage, load)
    for p in range(count):
        i = tree[p]
        if choice[i] != old[p] and not _fits(i, item_starts, item_spans, load, capacity):
            for q in range(count):
                j = tree[q]
                if choice[j] != old[q]:
                    shift(j, choice[j], old[q], item_starts, item_spans, item_offsets, usage, load)
            return False
    return True


@kept_compiled
def _cost_of_tree(  # type: ignore[no-untyped-def]
    count, tree, place, offsets, cost, link_offsets, links, link_ends, edge_offsets, tables, transposed, choice
):  # fmt: skip
    """Cost of the tree's nodes and of all their edges."""
    total = 0.0
    for p in range(count):
        i = tree[p]
        total += cost[offsets[i] + choice[i]]
        k = offsets[i + 1] - offsets[i]
        for link in range(link_offsets[i], link_offsets[i + 1]):
            j = link_ends[link]
            if place[j] < 0 or j < i:
                table = tables if j < i else transposed
                total += table[edge_offsets[links[link]] + choice[j] * k + choice[i]]
    return total


@kept_compiled
def _fits(i, item_starts, item_spans, load, capacity):  # type: ignore[no-untyped-def]
    for item in range(item_starts[i], item_starts[i + 1]):
        for t in range(item_spans[item, 0], item_spans[item, 1]):
            if load[t] > capacity[t]:
                return False
    return True
