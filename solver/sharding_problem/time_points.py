"""The memory limit over time, kept at the time points that can matter."""

from __future__ import annotations

import numpy as np

from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.working_graph import BoolArray, FloatArray, ProvenInfeasible, Span, WorkingGraph


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
