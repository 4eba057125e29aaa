"""Sharding searches ended at any of their looks at the stopping rule: the answer is a choice that fits with its bound, or that
nothing is decided, and never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.sharding_problem import solve as solve_module
from meshwright.solver.sharding_problem.problem import ShardingProblem
from meshwright.solver.sharding_problem.solve import SolveStatus, solve
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import shard_model
from tests.support.requests_given import resolved, tiny_graph, training
from tests.support.stopping import FIRST_LOOKS, TIE, LookLimit
from tests.unit.solver.sharding_problem.certificates import chain_of_blocks
from tests.unit.solver.sharding_problem.random_problems import exhaustive_optimum, random_problem

MOST_LOOKS = 200
"""Looks that a search with windows is ended at, at most; it has no end of its own that comes soon."""


def assert_answers(problem: ShardingProblem, looks: Iterable[int], *, optimum: float | None) -> None:
    for at in looks:
        answer = solve(problem, stop=LookLimit(at))
        match answer.status:
            case SolveStatus.UNKNOWN:
                continue
            case SolveStatus.INFEASIBLE:
                assert optimum is None
                continue
        assert optimum is not None and answer.solution is not None and problem.fits(answer.solution)
        assert answer.cost is not None and answer.bound is not None
        assert answer.bound <= optimum <= answer.cost
        assert answer.status is SolveStatus.FEASIBLE or answer.cost == optimum


@pytest.mark.parametrize("windows", [pytest.param(False, id="exactly"), pytest.param(True, id="by_windows")])
def test_a_problem_is_answered_whatever_look_ends_its_search(monkeypatch: pytest.MonkeyPatch, windows: bool) -> None:
    if windows:
        monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    for seed in range(36):
        problem = random_problem(seed)
        assert_answers(problem, FIRST_LOOKS, optimum=exhaustive_optimum(problem))


@pytest.mark.slow
def test_a_long_chain_is_answered_whatever_look_ends_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_of_blocks(40)
    optimum = solve(problem, stop=LookLimit(math.inf)).cost
    monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    assert_answers(problem, (*FIRST_LOOKS, *range(30, MOST_LOOKS, 15)), optimum=optimum)


@pytest.mark.slow
def test_a_model_is_sharded_whatever_look_ends_the_search() -> None:
    workload = training()["workload"] | {"global_batch": 16, "seq_len": 512}
    request = resolved(training(model={"graph": tiny_graph()}, workload=workload))
    assert isinstance(request, TrainingRequest)
    mesh, whole = device_mesh(request.cluster, {"data": 2, "tensor": 4}), LookLimit(math.inf)
    with calibrations_in_force(request.calibrations):
        best = shard_model(request, mesh, ties=Ties.EQUAL_BLOCKS, stop=whole).best
        assert best is not None and best.step_s is not None
        for at in sorted({*FIRST_LOOKS, *range(1, whole.looks.so_far + 1, 1 + whole.looks.so_far // 20)}):
            found = shard_model(request, mesh, ties=Ties.EQUAL_BLOCKS, stop=LookLimit(at))
            assert found.status is not SolveStatus.INFEASIBLE
            assert found.bound_s is None or found.bound_s <= best.step_s * (1.0 + TIE)
            if found.best is not None and found.best.step_s is not None:
                assert best.step_s <= found.best.step_s * (1.0 + TIE)
