"""Operator sharding of a block: elimination and integer programs against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ortools.sat.python import cp_model

from solver.intra_op import IntraOpProblem, ReshardEdge, evaluate, frontier
from solver.intra_op_ilp import pareto_by_integer_programs, solve_weighted

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


@pytest.mark.parametrize("seed", range(12))
def test_integer_programs_find_the_same_frontier(seed: int) -> None:
    problem = random_problem(seed)
    edges = [(e.source, e.target, e.cost[:, :, :3]) for e in problem.edges]
    choices = pareto_by_integer_programs([costs[:, :3] for costs in problem.node_costs], edges)
    assert sorted({evaluate(problem, choice)[:3] for choice in choices}) == pareto_by_force(problem)


@pytest.mark.parametrize("seed", range(12))
def test_the_integer_program_is_optimal_under_a_memory_limit(seed: int) -> None:
    problem = random_problem(seed)
    edges = [(e.source, e.target, e.cost) for e in problem.edges]
    every = [
        (evaluate(problem, choice), choice)
        for choice in itertools.product(*(range(len(costs)) for costs in problem.node_costs))
    ]
    limit = float(np.median([cost[1] for cost, _ in every]))
    answer = solve_weighted(problem.node_costs, edges, weights=[1, 0, 0, 0], limits=[None, limit, None, None])
    assert answer is not None
    best = min(cost[0] for cost, _ in every if cost[1] <= limit)
    assert evaluate(problem, answer.choice)[0] == best
    assert answer.bound == pytest.approx(answer.cost)


def test_an_impossible_limit_is_infeasible() -> None:
    problem = IntraOpProblem((np.array([[1.0, 5.0]]),), (), n_objectives=2)
    assert solve_weighted(problem.node_costs, [], weights=[1, 0], limits=[None, 4.0]) is None


def test_equal_costs_go_to_the_smallest_choice() -> None:
    same = np.ones((3, 2))
    problem = IntraOpProblem((same, same), (ReshardEdge(0, 1, np.zeros((3, 3, 2))),), n_objectives=2)
    assert [point.choice for point in frontier(problem)] == [(0, 0)]


def test_a_wide_graph_goes_to_the_integer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(7)
    expected = [point.cost[:3] for point in frontier(problem)]
    monkeypatch.setattr("solver.intra_op.MAX_TABLE", 0)
    assert [point.cost[:3] for point in frontier(problem)] == expected


@pytest.mark.parametrize("seed", range(4))
def test_integer_programs_agree_with_cp_sat_where_force_is_too_slow(seed: int) -> None:
    """12 operators with 4 strategies each, under a memory limit: HiGHS by PuLP against another kind of solver."""
    rng = np.random.default_rng(seed)
    nodes = [rng.integers(0, 50, (4, 2)).astype(float) for _ in range(12)]
    pairs = [(u, v) for u, v in itertools.combinations(range(12), 2) if rng.random() < 0.25]
    edges = [(u, v, np.stack([rng.integers(0, 30, (4, 4)), np.zeros((4, 4), int)], axis=2).astype(float)) for u, v in pairs]
    limit = float(sum(np.median(costs[:, 1]) for costs in nodes)) * 0.8
    answer = solve_weighted(nodes, edges, weights=[1, 0], limits=[None, limit])

    model = cp_model.CpModel()
    picks = [[model.new_bool_var(f"s{v}{i}") for i in range(4)] for v in range(12)]
    for options in picks:
        model.add_exactly_one(options)
    model.add(
        sum(p * int(c) for options, costs in zip(picks, nodes, strict=True) for p, c in zip(options, costs[:, 1], strict=True))
        <= int(limit)
    )
    total = sum(
        p * int(c) for options, costs in zip(picks, nodes, strict=True) for p, c in zip(options, costs[:, 0], strict=True)
    )
    for u, v, table in edges:
        for i, j in np.ndindex(4, 4):
            both = model.new_bool_var(f"e{u}{v}{i}{j}")
            model.add_bool_or([picks[u][i].negated(), picks[v][j].negated(), both])
            total += both * int(table[i, j, 0])
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    assert answer is not None
    problem = IntraOpProblem(tuple(nodes), tuple(ReshardEdge(u, v, table) for u, v, table in edges), n_objectives=2)
    time_s, memory = evaluate(problem, answer.choice)
    assert memory <= limit
    assert time_s == solver.objective_value
