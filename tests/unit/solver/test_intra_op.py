"""Operator sharding of a block: the whole frontier against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.solver.blocks.sharding_problem import IntraOpProblem, ReshardEdge, evaluate, frontier

Cost = tuple[float, ...]


def random_problem(seed: int) -> IntraOpProblem:
    """Up to 5 operators, 3 strategies, any graph; 3 objectives and one reported criterion; integers, so many ties."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    sizes = rng.integers(1, 4, n)
    nodes = tuple(rng.integers(0, 9, (k, 4)).astype(float) for k in sizes)
    edges = tuple(
        ReshardEdge(u, v, rng.integers(0, 5, (sizes[u], sizes[v], 4)).astype(float))
        for u, v in itertools.combinations(range(n), 2)
        if rng.random() < 0.5
    )
    return IntraOpProblem(nodes, edges, n_objectives=3)


def pareto_by_force(problem: IntraOpProblem) -> list[Cost]:
    choices = itertools.product(*(range(len(costs)) for costs in problem.node_costs))
    costs = {evaluate(problem, choice)[: problem.n_objectives] for choice in choices}
    return sorted(c for c in costs if not any(o != c and all(a <= b for a, b in zip(o, c, strict=True)) for o in costs))


@pytest.mark.parametrize("seed", range(60))
def test_elimination_finds_the_whole_frontier(seed: int) -> None:
    problem = random_problem(seed)
    points = frontier(problem)
    assert sorted(point.cost[:3] for point in points) == pareto_by_force(problem)
    assert all(point.cost == evaluate(problem, point.choice) for point in points)


def test_equal_costs_go_to_the_smallest_choice() -> None:
    same = np.ones((3, 2))
    problem = IntraOpProblem((same, same), (ReshardEdge(0, 1, np.zeros((3, 3, 2))),), n_objectives=2)
    assert [point.choice for point in frontier(problem)] == [(0, 0)]
