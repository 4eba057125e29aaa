"""The operator-sharding problem of a block, solved exactly.

One strategy per operator; each choice has a cost vector (time, memory, once-a-step costs), and each edge a resharding
cost vector that depends on both ends (Alpa, OSDI'22, eq. 1). Which memory is worth which time is known only to the
pipeline stage that holds the block, so the answer is the whole Pareto frontier, not one point.

Blocks are nearly series-parallel: eliminating operators one by one keeps few of them open at a time and yields the exact
frontier in well under a millisecond. Where an operator has too many neighbours for that, the frontier is enumerated by
integer programs (PuLP over HiGHS) instead; tests compare both with brute force.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.intra_op_ilp import pareto_by_integer_programs

FloatArray = npt.NDArray[np.float64]

MAX_TABLE = 50_000
"""Largest table of open combinations that elimination builds before the integer programs take over (about 50 MB)."""


@dataclass(frozen=True)
class ReshardEdge:
    """Resharding between two operators: cost vector ``cost[i, j]`` for strategy i of ``source`` and j of ``target``."""

    source: int
    target: int
    cost: FloatArray


@dataclass(frozen=True)
class IntraOpProblem:
    """Operators, and for each its strategies' cost vectors, shape (strategies, criteria).

    The first ``n_objectives`` criteria decide which choice beats which; the rest are carried along for reports.
    """

    node_costs: tuple[FloatArray, ...]
    edges: tuple[ReshardEdge, ...]
    n_objectives: int


@dataclass(frozen=True)
class IntraOpPoint:
    """A point of the frontier: the strategy index of each operator and the block's cost vector."""

    choice: tuple[int, ...]
    cost: tuple[float, ...]


def evaluate(problem: IntraOpProblem, choice: Sequence[int]) -> tuple[float, ...]:
    """Cost vector of a choice of strategies."""
    total = np.sum([costs[i] for costs, i in zip(problem.node_costs, choice, strict=True)], axis=0)
    for edge in problem.edges:
        total = total + edge.cost[choice[edge.source], choice[edge.target]]
    return tuple(float(value) for value in total)


def frontier(problem: IntraOpProblem) -> tuple[IntraOpPoint, ...]:
    """Every Pareto-optimal cost vector with one choice each, sorted by cost; ties go to the smallest choice."""
    if all(len(costs) == 1 for costs in problem.node_costs):
        only = (0,) * len(problem.node_costs)
        return (IntraOpPoint(only, evaluate(problem, only)),)
    order, largest_table = _elimination_order(problem)
    if largest_table > MAX_TABLE:
        n = problem.n_objectives
        choices = pareto_by_integer_programs(
            [costs[:, :n] for costs in problem.node_costs], [(e.source, e.target, e.cost[:, :, :n]) for e in problem.edges]
        )
    else:
        choices = _eliminate(problem, order)
    points = [IntraOpPoint(choice, evaluate(problem, choice)) for choice in choices]
    return tuple(sorted(_undominated(points, problem.n_objectives), key=lambda point: (point.cost, point.choice)))


def _elimination_order(problem: IntraOpProblem) -> tuple[list[int], int]:
    """Min-degree order of all operators, and the size of the largest table it opens."""
    sizes = [len(costs) for costs in problem.node_costs]
    neighbours: dict[int, set[int]] = {node: set() for node in range(len(sizes))}
    for edge in problem.edges:
        if edge.source != edge.target:
            neighbours[edge.source].add(edge.target)
            neighbours[edge.target].add(edge.source)
    order, largest = [], 1
    while neighbours:
        node = min(neighbours, key=lambda n: (len(neighbours[n]), n))
        around = neighbours.pop(node)
        order.append(node)
        largest = max(largest, sizes[node] * math.prod(sizes[n] for n in around))
        for other in around:
            neighbours[other] |= around - {other}
            neighbours[other].discard(node)
    return order, largest


_Label = tuple[tuple[float, ...], tuple[tuple[int, int], ...]]
"""Cost vector so far, and the (node, strategy) pairs that it stands for."""


@dataclass(frozen=True)
class _Factor:
    scope: tuple[int, ...]
    table: dict[tuple[int, ...], list[_Label]]


def _eliminate(problem: IntraOpProblem, order: list[int]) -> list[tuple[int, ...]]:
    """Bucket elimination with Pareto sets: each step removes one operator and leaves a factor over its open neighbours."""
    sizes, n_objectives = [len(costs) for costs in problem.node_costs], problem.n_objectives
    factors = [
        _Factor((node,), {(i,): [(tuple(map(float, row)), ((node, i),))] for i, row in enumerate(costs)})
        for node, costs in enumerate(problem.node_costs)
    ]
    factors += [
        _Factor(
            (edge.source, edge.target),
            {
                (i, j): [(tuple(map(float, edge.cost[i, j])), ())]
                for i in range(sizes[edge.source])
                for j in range(sizes[edge.target])
            },
        )
        for edge in problem.edges
    ]
    for node in order:
        touching = [factor for factor in factors if node in factor.scope]
        factors = [factor for factor in factors if node not in factor.scope]
        scope = tuple(sorted({n for factor in touching for n in factor.scope} - {node}))
        table = {}
        for assignment in itertools.product(*(range(sizes[n]) for n in scope)):
            fixed = dict(zip(scope, assignment, strict=True))
            labels: list[_Label] = []
            for strategy in range(sizes[node]):
                fixed[node] = strategy
                labels += _combine((factor.table[tuple(fixed[n] for n in factor.scope)] for factor in touching), n_objectives)
            table[assignment] = _prune(labels, n_objectives)
        factors.append(_Factor(scope, table))
    final = _prune(_combine((factor.table[()] for factor in factors), n_objectives), n_objectives)
    return [tuple(strategy for _, strategy in sorted(picked)) for _, picked in final]


def _combine(groups: Iterable[list[_Label]], n_objectives: int) -> list[_Label]:
    """All sums of one label from each group."""
    total: list[_Label] | None = None
    for group in groups:
        if total is None:
            total = group
        else:
            total = [
                (tuple(a + b for a, b in zip(left, right, strict=True)), (*chosen, *more))
                for left, chosen in total
                for right, more in group
            ]
            if len(total) > 16:
                total = _prune(total, n_objectives)
    return total or []


def _prune(labels: list[_Label], n_objectives: int) -> list[_Label]:
    """Labels that no other beats or equals; of equal ones the smallest choice stays."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda item: (item[0], sorted(item[1]))):
        if not any(_no_worse(other[0], label[0], n_objectives) for other in kept):
            kept.append(label)
    return kept


def _undominated(points: Iterable[IntraOpPoint], n_objectives: int) -> list[IntraOpPoint]:
    kept: list[IntraOpPoint] = []
    for point in sorted(points, key=lambda item: (item.cost, item.choice)):
        if not any(_no_worse(other.cost, point.cost, n_objectives) for other in kept):
            kept.append(point)
    return kept


def _no_worse(cost: tuple[float, ...], other: tuple[float, ...], n_objectives: int) -> bool:
    return all(a <= b for a, b in zip(cost[:n_objectives], other[:n_objectives], strict=True))
