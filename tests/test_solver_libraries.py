"""The mixed-integer solvers of our dependencies live in one process: highspy 1.15 and ortools can not be imported together."""

from __future__ import annotations

import highspy
import pulp
from ortools.sat.python import cp_model

PRIZES = (6, 5, 4)
WEIGHTS = (3, 2, 2)
CAPACITY = 4
BEST = 9
"""A knapsack whose best choice is the last two."""


def test_highs_through_pulp_and_cp_sat_agree_in_one_process() -> None:
    problem = pulp.LpProblem("knapsack", pulp.LpMaximize)
    picks = [problem.add_variable(f"x{i}", cat="Binary") for i in range(3)]
    problem += pulp.lpSum(pick * prize for pick, prize in zip(picks, PRIZES, strict=True))
    problem += pulp.lpSum(pick * weight for pick, weight in zip(picks, WEIGHTS, strict=True)) <= CAPACITY
    problem.solve(pulp.HiGHS(msg=False))
    assert problem.sol_status == pulp.LpSolutionOptimal
    assert pulp.value(problem.objective) == BEST

    model = cp_model.CpModel()
    chosen = [model.new_bool_var(f"x{i}") for i in range(3)]
    model.add(sum(c * w for c, w in zip(chosen, WEIGHTS, strict=True)) <= CAPACITY)
    model.maximize(sum(c * p for c, p in zip(chosen, PRIZES, strict=True)))
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == BEST


def test_highs_says_its_bound_through_pulp() -> None:
    """PuLP says optimal at a time limit; bound and gap are read from HiGHS itself."""
    problem = pulp.LpProblem("one", pulp.LpMinimize)
    x = problem.add_variable("x", lowBound=0.5, cat="Integer")
    problem += x + 0
    problem.solve(pulp.HiGHS(msg=False))
    assert isinstance(problem.solverModel, highspy.Highs)
    assert problem.solverModel.getInfo().mip_dual_bound == 1.0
