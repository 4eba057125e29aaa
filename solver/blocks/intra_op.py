"""The operator-sharding problem of a block, solved exactly.

One strategy per operator; each choice has a cost vector (time, memory, once-a-step costs), and each edge a resharding
cost vector that depends on both ends (Alpa, OSDI'22, eq. 1). Which memory is worth which time is known only to the
pipeline stage that holds the block, so the answer is the whole Pareto frontier, not one point.

The frontier is that of the sharding engine (`solver.sharding_problem.frontier`), which also shards whole graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.solver.control import Stop, never_stop
from meshwright.solver.sharding_problem.frontier import CriteriaGraph, frontier_choices

FloatArray = npt.NDArray[np.float64]


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


def frontier(problem: IntraOpProblem, stop: Stop = never_stop) -> tuple[IntraOpPoint, ...]:
    """Every Pareto-optimal cost vector with one choice each, sorted by cost; ties go to the smallest choice.

    Raises SearchStopped.
    """
    if all(len(costs) == 1 for costs in problem.node_costs):
        only = (0,) * len(problem.node_costs)
        return (IntraOpPoint(only, evaluate(problem, only)),)
    edges = tuple((edge.source, edge.target, edge.cost) for edge in problem.edges)
    choices = frontier_choices(CriteriaGraph(problem.node_costs, edges, problem.n_objectives), stop)
    points = [IntraOpPoint(choice, evaluate(problem, choice)) for choice in choices]
    return tuple(_undominated(points, problem.n_objectives))


def _undominated(points: Iterable[IntraOpPoint], n_objectives: int) -> list[IntraOpPoint]:
    """Points that no other beats or equals, sorted: sums in another order differ in their last bits."""
    kept: list[IntraOpPoint] = []
    for point in sorted(points, key=lambda item: (item.cost, item.choice)):
        if not any(_no_worse(other.cost, point.cost, n_objectives) for other in kept):
            kept.append(point)
    return kept


def _no_worse(cost: tuple[float, ...], other: tuple[float, ...], n_objectives: int) -> bool:
    return all(a <= b for a, b in zip(cost[:n_objectives], other[:n_objectives], strict=True))
