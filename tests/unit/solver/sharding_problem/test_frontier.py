"""Pareto frontiers of several criteria: elimination, and programs for two kinds of solvers, against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import SearchStopped
from meshwright.solver.problem.choices import OperatorSolver
from meshwright.solver.problem.search import DEFAULT_ILP
from meshwright.solver.sharding_problem import elimination
from meshwright.solver.sharding_problem.criteria_graph import CriteriaGraph
from meshwright.solver.sharding_problem.frontier import OperatorSearch, frontier_by_elimination
from meshwright.solver.sharding_problem.ilp import usable_solvers

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


@pytest.mark.parametrize("seed", range(8))
def test_a_label_stays_unless_one_before_it_beats_or_equals_it(seed: int) -> None:
    whole = np.random.default_rng(seed).integers(0, 4, (3, 40, 1 + seed % 3)).astype(float)
    cells = np.array([cell[np.lexsort(cell.T[::-1])] for cell in whole])
    cells[0, 30:] = np.inf  # A cell that has fewer labels than others is filled up.
    for cell, kept in zip(cells, elimination.unbeaten(cells), strict=True):
        assert kept.tolist() == [not (cell[:i] <= label).all(axis=1).any() for i, label in enumerate(cell)]


PROGRAMS = (OperatorSolver.ILP, OperatorSolver.CP_SAT)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize(("solver", "seed"), [(solver, seed) for seed in range(12) for solver in PROGRAMS])
def test_programs_find_the_same_frontier(solver: OperatorSolver, seed: int) -> None:
    graph = random_graph(seed)
    search = OperatorSearch(solver)
    assert sorted(objectives(graph, choice) for choice in search.choices(graph)) == list(pareto_by_force(graph))
    assert search.solvers == ((solver,) if any(len(costs) > 1 for costs in graph.node_costs) else ())


@pytest.mark.parametrize("seed", [0, 3])
def test_another_solver_of_pulp_finds_it_as_well(seed: int) -> None:
    others = [name for name in usable_solvers() if name != DEFAULT_ILP]
    if not others:
        pytest.skip("PuLP finds no solver but HiGHS here")
    graph = random_graph(seed)
    found = OperatorSearch(OperatorSolver.ILP, others[0]).choices(graph)
    assert sorted(objectives(graph, choice) for choice in found) == list(pareto_by_force(graph))


def test_a_solver_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInputError, match="a solver that PuLP does not find here") as raised:
        OperatorSearch(OperatorSolver.ILP, "SCIP_NOWHERE").choices(random_graph(7))
    assert DEFAULT_ILP in str(raised.value)


def test_a_graph_too_wide_for_elimination_goes_to_the_ilp(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(7)
    monkeypatch.setattr(elimination, "MOST_ENTRIES", 10)
    search = OperatorSearch()
    assert sorted(objectives(graph, choice) for choice in search.choices(graph)) == list(pareto_by_force(graph))
    assert search.solvers == (OperatorSolver.ILP,)
    with pytest.raises(InvalidInputError, match="too wide"):
        OperatorSearch(OperatorSolver.ELIMINATION).choices(graph)


@pytest.mark.parametrize("solver", PROGRAMS)
def test_a_program_that_is_stopped_has_no_frontier(solver: OperatorSolver) -> None:
    with pytest.raises(SearchStopped):
        OperatorSearch(solver).choices(random_graph(7), lambda: True)


def test_ranks_of_more_choices_than_a_float_counts_keep_the_order() -> None:
    same = np.ones((8, 2))
    choices = OperatorSearch().choices
    assert choices(CriteriaGraph((same,) * 40, (), n_objectives=2)) == [(0,) * 40]
    cheaper = same - np.arange(8)[:, None] // 7
    assert choices(CriteriaGraph((*(same,) * 39, cheaper), (), n_objectives=2)) == [(*(0,) * 39, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_two_programs_agree_where_force_is_too_slow(seed: int) -> None:
    """9 nodes with 4 strategies each, and two criteria."""
    rng = np.random.default_rng(seed)
    nodes = [rng.integers(0, 50, (4, 2)).astype(float) for _ in range(9)]
    pairs = [(u, v) for u, v in itertools.combinations(range(9), 2) if rng.random() < 0.25]
    edges = [(u, v, np.stack([rng.integers(0, 30, (4, 4)), np.zeros((4, 4), int)], axis=2).astype(float)) for u, v in pairs]
    graph = CriteriaGraph(tuple(nodes), tuple(edges), n_objectives=2)
    found = [{objectives(graph, choice) for choice in OperatorSearch(solver).choices(graph)} for solver in PROGRAMS]
    assert found[0] == found[1]
    assert len(found[0]) > 5
