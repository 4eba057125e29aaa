"""The whole Pareto frontier of a small graph with several criteria: by elimination, or by programs for a solver of integers.

A program is asked again and again for the choice of the least sum of criteria that no choice found before beats or equals,
until there is none: each answer is Pareto-optimal, since whatever beat it would be cheaper, and all are found (Sylva and Crema
2004, "A method for finding the set of non-dominated vectors for multiple objective integer linear programs").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import Stop, heed, never_stop
from meshwright.solver.problem.choices import OperatorSolver
from meshwright.solver.problem.search import DEFAULT_ILP
from meshwright.solver.sharding_problem.criteria_graph import CriteriaGraph, FrontierProgram
from meshwright.solver.sharding_problem.elimination import Factor, pareto_choices
from meshwright.solver.sharding_problem.working_graph import FloatArray

_LARGEST_WHOLE = 2**53
"""Whole numbers up to here have a float64 of their own."""


@dataclass
class OperatorSearch:
    """How the operators of blocks are sharded: by which solver, and which solvers have proven a frontier so far.

    AUTO eliminates, and takes the ILP for a graph that is too wide for that. ``ilp`` is the solver that PuLP finds.
    """

    solver: OperatorSolver = OperatorSolver.AUTO
    ilp: str = DEFAULT_ILP
    proven: set[OperatorSolver] = field(default_factory=set)

    @property
    def solvers(self) -> tuple[OperatorSolver, ...]:
        """The solvers that have proven a frontier, in the order of their names."""
        return tuple(sorted(self.proven))

    def choices(self, graph: CriteriaGraph, stop: Stop = never_stop) -> list[tuple[int, ...]]:
        """One choice for each cost vector that no other one beats. Elimination takes the smallest of equal ones in
        lexicographic order, a program any.

        Raises SearchStopped: a part of a frontier is none; InvalidInputError for an ILP solver that is not there, or a block
        that is too wide for the elimination that was asked for.
        """
        free = [node for node, costs in enumerate(graph.node_costs) if len(costs) > 1]
        if not free:
            return [(0,) * len(graph.node_costs)]
        small = _without_decided(graph, {node: i for i, node in enumerate(free)})
        choices, by = self._solved(small, stop)
        self.proven.add(by)
        whole = np.zeros((len(choices), len(graph.node_costs)), dtype=np.int64)
        whole[:, free] = choices
        return [tuple(choice) for choice in whole.tolist()]

    def _solved(self, graph: CriteriaGraph, stop: Stop) -> tuple[list[tuple[int, ...]], OperatorSolver]:
        if self.solver in (OperatorSolver.AUTO, OperatorSolver.ELIMINATION):
            choices = frontier_by_elimination(graph, stop)
            if choices is not None:
                return choices, OperatorSolver.ELIMINATION
            if self.solver is OperatorSolver.ELIMINATION:
                raise InvalidInputError(
                    "a block is too wide to eliminate its operators",
                    given=f"search.operator_solver: {self.solver.value}",
                    allowed=", ".join(other.value for other in OperatorSolver if other is not self.solver),
                )
        # Each of these libraries is loaded where it solves, and nowhere else.
        if self.solver is OperatorSolver.CP_SAT:
            from meshwright.solver.sharding_problem.cp_sat import CpSatProgram

            return frontier_by_program(graph, CpSatProgram(graph), stop), OperatorSolver.CP_SAT
        from meshwright.solver.sharding_problem.ilp import IlpProgram

        return frontier_by_program(graph, IlpProgram(graph, self.ilp), stop), OperatorSolver.ILP


def _without_decided(graph: CriteriaGraph, index: dict[int, int]) -> CriteriaGraph:
    """The graph of the nodes in ``index`` only, edges to the others, which have one strategy, made node costs."""
    costs = [graph.node_costs[node] for node in index]
    edges = []
    for u, v, table in graph.edges:
        if u in index and v in index:
            edges.append((index[u], index[v], table))
        elif u in index:
            costs[index[u]] = costs[index[u]] + table[:, 0]
        elif v in index:
            costs[index[v]] = costs[index[v]] + table[0]
    return CriteriaGraph(tuple(costs), tuple(edges), graph.n_objectives)


def frontier_by_elimination(graph: CriteriaGraph, stop: Stop = never_stop) -> list[tuple[int, ...]] | None:
    """The frontier by dynamic programming; None where a table would be too large."""
    ranks = _lexicographic_ranks([len(costs) for costs in graph.node_costs])
    factors = [
        Factor((node,), np.concatenate((costs.T, rank))[:, :, None])
        for node, (costs, rank) in enumerate(zip(graph.node_costs, ranks, strict=True))
    ]
    for u, v, table in graph.edges:
        (first, second), axes = ((u, v), (2, 0, 1)) if u < v else ((v, u), (2, 1, 0))
        labels = table.transpose(axes)[..., None]
        factors.append(Factor((first, second), np.pad(labels, ((0, len(ranks[0])), (0, 0), (0, 0), (0, 0)))))
    return pareto_choices([len(costs) for costs in graph.node_costs], factors, n_objectives=graph.n_objectives, stop=stop)


def _lexicographic_ranks(sizes: Sequence[int]) -> list[FloatArray]:
    """For each node, criteria of its strategies, shape (criteria, strategies), whose sums order choices lexicographically.

    Each criterion is a number in mixed radix, of as many nodes as 53 bits hold.
    """
    digits: list[tuple[int, int]] = []
    group, weight = 0, 1
    for size in reversed(sizes):
        if weight * size > _LARGEST_WHOLE:
            group, weight = group + 1, 1
        digits.append((group, weight))
        weight *= size
    ranks = [np.zeros((group + 1, size)) for size in sizes]
    for rank, (of, weight) in zip(ranks, reversed(digits), strict=True):
        rank[group - of] = weight * np.arange(rank.shape[1])
    return ranks


def frontier_by_program(graph: CriteriaGraph, program: FrontierProgram, stop: Stop = never_stop) -> list[tuple[int, ...]]:
    """The frontier by a program that is asked until nothing is left that was not beaten."""
    found: list[tuple[int, ...]] = []
    while True:
        heed(stop)
        choice = program.least(stop)
        # A solver of floats may, within its tolerance, come back to what it found.
        if choice is None or choice in found:
            return found
        found.append(choice)
        program.leave_beaten(graph.cost_of(choice)[: graph.n_objectives])
