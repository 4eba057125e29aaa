"""Single-node moves within memory, compiled: descend in cost, and repair a choice that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.costmodels.compiling import kept_compiled
from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray


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
