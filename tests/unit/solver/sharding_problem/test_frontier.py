"""Pareto frontiers of several criteria: elimination and exact programs against brute force and another kind of solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ortools.sat.python import cp_model

from meshwright.solver.sharding_problem import elimination
from meshwright.solver.sharding_problem.frontier import (
    CriteriaGraph,
    cheapest_within,
    frontier_by_elimination,
    frontier_by_programs,
    frontier_choices,
)

Cost = tuple[float, ...]


def random_graph(seed: int) -> CriteriaGraph:
    """Up to 5 nodes, 3 strategies, any graph, parallel edges too; 3 objectives and a tie-breaker; integers, so many ties."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    sizes = rng.integers(1, 4, n)
    nodes = tuple(rng.integers(0, 9, (k, 4)).astype(float) for k in sizes)
    ends = [(u, v) for u, v in itertools.permutations(range(n), 2) if rng.random() < 0.3]
    edges = tuple((u, v, rng.integers(0, 5, (sizes[u], sizes[v], 4)).astype(float)) for u, v in ends)
    return CriteriaGraph(nodes, edges, n_objectives=3)


def every_choice(graph: CriteriaGraph) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(costs)) for costs in graph.node_costs)))


def objectives(graph: CriteriaGraph, choice: tuple[int, ...]) -> Cost:
    return tuple(graph.cost_of(choice).tolist()[: graph.n_objectives])


def pareto_by_force(graph: CriteriaGraph) -> dict[Cost, tuple[int, ...]]:
    """Each undominated cost with the choice of least tie-breaker, and of these the smallest."""
    best: dict[Cost, tuple[float, tuple[int, ...]]] = {}
    for choice in every_choice(graph):
        ranked = (float(graph.cost_of(choice)[-1]), choice)
        cost = objectives(graph, choice)
        best[cost] = min(best.get(cost, ranked), ranked)
    kept = [c for c in best if not any(o != c and all(a <= b for a, b in zip(o, c, strict=True)) for o in best)]
    return {cost: best[cost][1] for cost in sorted(kept)}


@pytest.mark.parametrize("seed", range(60))
def test_elimination_finds_the_whole_frontier_with_the_smallest_choices(seed: int) -> None:
    graph = random_graph(seed)
    assert frontier_by_elimination(graph) == list(pareto_by_force(graph).values())


def test_many_costs_in_a_cell_are_pruned_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "_BLOCK", 2)
    monkeypatch.setattr(elimination, "_PAIRS_AT_ONCE", 8)
    for seed in range(20):
        graph = random_graph(seed)
        assert frontier_by_elimination(graph) == list(pareto_by_force(graph).values())


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(12))
def test_exact_programs_find_the_same_frontier(seed: int) -> None:
    graph = random_graph(seed)
    found = {objectives(graph, choice) for choice in frontier_by_programs(graph)}
    assert sorted(found) == list(pareto_by_force(graph))


def test_a_graph_too_wide_for_elimination_goes_to_the_exact_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(7)
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 10)
    assert frontier_by_elimination(graph) is None
    assert sorted(objectives(graph, choice) for choice in frontier_choices(graph)) == list(pareto_by_force(graph))


def test_ranks_of_more_choices_than_a_float_counts_keep_the_order() -> None:
    same = np.ones((8, 2))
    graph = CriteriaGraph((same,) * 40, (), n_objectives=2)
    assert frontier_choices(graph) == [(0,) * 40]
    cheaper = same - np.arange(8)[:, None] // 7
    assert frontier_choices(CriteriaGraph((*(same,) * 39, cheaper), (), n_objectives=2)) == [(*(0,) * 39, 7)]


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_program_is_optimal_under_a_limit(seed: int) -> None:
    graph = random_graph(seed)
    every = [(graph.cost_of(choice)[:2].tolist(), choice) for choice in every_choice(graph)]
    limit = float(np.median([cost[1] for cost, _ in every]))
    choice = cheapest_within(graph, weights=np.array([1.0, 0.0]), limits=[np.inf, limit])
    assert choice is not None
    assert graph.cost_of(choice)[0] == min(cost[0] for cost, _ in every if cost[1] <= limit)
    assert graph.cost_of(choice)[1] <= limit


def test_an_impossible_limit_is_infeasible() -> None:
    graph = CriteriaGraph((np.array([[1.0, 5.0]]),), (), n_objectives=2)
    assert cheapest_within(graph, weights=np.array([1.0, 0.0]), limits=[np.inf, 4.0]) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_exact_programs_agree_with_cp_sat_where_force_is_too_slow(seed: int) -> None:
    """12 nodes with 4 strategies each, under a limit: HiGHS against another kind of solver."""
    rng = np.random.default_rng(seed)
    nodes = [rng.integers(0, 50, (4, 2)).astype(float) for _ in range(12)]
    pairs = [(u, v) for u, v in itertools.combinations(range(12), 2) if rng.random() < 0.25]
    edges = [(u, v, np.stack([rng.integers(0, 30, (4, 4)), np.zeros((4, 4), int)], axis=2).astype(float)) for u, v in pairs]
    limit = float(sum(np.median(costs[:, 1]) for costs in nodes)) * 0.8
    graph = CriteriaGraph(tuple(nodes), tuple(edges), n_objectives=2)
    choice = cheapest_within(graph, weights=np.array([1.0, 0.0]), limits=[np.inf, limit])

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
    assert choice is not None
    time_s, memory = graph.cost_of(choice)
    assert memory <= limit
    assert time_s == solver.objective_value
