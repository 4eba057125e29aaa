"""The engine equals exhaustive search on a thousand small problems, by each of its ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.solver.sharding_problem import solve as solve_module
from meshwright.solver.sharding_problem.core import core_of
from meshwright.solver.sharding_problem.elimination import eliminate
from meshwright.solver.sharding_problem.problem import ShardingProblem
from meshwright.solver.sharding_problem.second_opinion import Agreement, second_opinion
from meshwright.solver.sharding_problem.solve import SolveStatus, solve
from meshwright.solver.sharding_problem.work import NoLimit, WorkLimit
from meshwright.solver.sharding_problem.working_graph import WorkingGraph
from tests.unit.solver.sharding_problem.random_problems import exhaustive_optimum, random_problem


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("block", range(10))
def test_equals_exhaustive_search(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        problem = random_problem(seed)
        answer = solve(problem, stop=NoLimit())
        optimum = exhaustive_optimum(problem)
        if optimum is None:
            assert answer.status is SolveStatus.INFEASIBLE and answer.solution is None, seed
            continue
        assert (answer.status, answer.cost, answer.bound) == (SolveStatus.OPTIMAL, optimum, optimum), seed
        assert answer.solution is not None and problem.fits(answer.solution), seed
        assert problem.cost_of(answer.solution) == optimum, seed


def test_thousand_problems_cover_the_cases() -> None:
    optima = [exhaustive_optimum(random_problem(seed)) for seed in range(0, 1000, 7)]
    infeasible = sum(optimum is None for optimum in optima)
    assert len(optima) / 10 < infeasible < len(optima) / 2


@pytest.mark.slow
def test_bounds_and_search_without_the_exact_program(monkeypatch: pytest.MonkeyPatch) -> None:
    # What large cores go through: prices, message passing, repair, windows.
    monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    solved = tried = 0
    for seed in range(100):
        problem = random_problem(seed)
        optimum = exhaustive_optimum(problem)
        answer = solve(problem, stop=WorkLimit(1e6), seed=seed)
        if optimum is None:
            assert answer.solution is None, seed
            continue
        tried += 1
        assert answer.bound is not None and answer.bound <= optimum, seed
        if answer.cost is not None:
            assert answer.cost >= optimum and answer.solution is not None and problem.fits(answer.solution), seed
            solved += answer.cost == optimum
    assert solved >= 0.9 * tried


def test_elimination_equals_exhaustive_search_without_memory() -> None:
    for seed in range(0, 240, 4):
        problem = _without_limit(random_problem(seed))
        core = core_of(WorkingGraph.of(problem))
        choice = eliminate(core)
        assert choice is not None
        full = np.zeros(problem.node_count, dtype=np.int64)
        full[core.nodes] = choice
        assert problem.cost_of(full) == exhaustive_optimum(problem)


def test_second_opinion_equals_exhaustive_search() -> None:
    for seed in range(0, 60, 3):
        problem = random_problem(seed)
        optimum = exhaustive_optimum(problem)
        opinion = second_opinion(problem, solve(problem, stop=NoLimit()), solver="HiGHS", limit_s=None)
        assert (opinion.verdict, opinion.cost) == (Agreement.AGREES, optimum), seed


def test_second_opinion_contradicts_wrong_answers() -> None:
    contradicted = 0
    for seed in range(0, 60, 3):
        problem = random_problem(seed)
        answer = solve(problem, stop=NoLimit())
        if answer.bound is None:
            wrong = replace(answer, bound=0, cost=1, status=SolveStatus.OPTIMAL)
        else:
            wrong = replace(answer, bound=answer.bound + 1)
            nothing = replace(answer, solution=None, cost=None, bound=None, gap=None, status=SolveStatus.INFEASIBLE)
            assert second_opinion(problem, nothing, solver="HiGHS", limit_s=None).verdict is Agreement.DISAGREES
        contradicted += second_opinion(problem, wrong, solver="HiGHS", limit_s=None).verdict is Agreement.DISAGREES
    assert contradicted == 20


def _without_limit(problem: ShardingProblem) -> ShardingProblem:
    return ShardingProblem(
        problem.name, problem.node_offsets, problem.node_costs, problem.node_usages, problem.intervals,
        problem.edge_nodes, problem.edge_offsets, problem.edge_costs, None,
    )  # fmt: skip
