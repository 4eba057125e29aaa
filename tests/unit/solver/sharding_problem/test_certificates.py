"""The claims of a certificate hold for every choice, and a solve does not depend on the form in which the problem is told."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import Progress
from meshwright.solver.sharding_problem import solve as solve_module
from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.local_moves import descend, repair
from meshwright.solver.sharding_problem.problem import ShardingProblem, problem_from_lists
from meshwright.solver.sharding_problem.reductions import drop_impossible_strategies, restore_arc_consistency
from meshwright.solver.sharding_problem.relaxation import Relaxation
from meshwright.solver.sharding_problem.solve import SolveStatus, solve
from meshwright.solver.sharding_problem.work import NoLimit, WorkLimit
from meshwright.solver.sharding_problem.working_graph import ProvenInfeasible, WorkingGraph
from tests.unit.solver.sharding_problem.certificates import chain_of_blocks
from tests.unit.solver.sharding_problem.random_problems import random_problem


def test_every_choice_costs_at_least_bound_plus_slack() -> None:
    for seed in range(80):
        core = _arc_consistent_core(random_problem(seed))
        if core is None:
            continue
        relaxation = Relaxation(core)
        for _ in range(15):
            relaxation.improve(None)
        certificate = relaxation.certificate()
        assert certificate.bound <= relaxation.bound + 1e-6 * abs(relaxation.bound)
        for states in itertools.product(*(range(k) for k in np.diff(core.offsets))):
            choice = np.asarray(states)
            if not core.fits(choice):
                continue
            cost = core.cost_of(choice)
            assert relaxation.bound <= cost
            entries = core.offsets[:-1] + choice
            assert certificate.bound + certificate.strategy[entries].max() <= cost + 1e-6 * max(cost, 1.0), seed
            for edge, (i, j) in enumerate(core.edge_nodes.tolist()):
                shape = core.table(edge).shape
                start, end = core.edge_offsets[edge : edge + 2]
                slack = certificate.edge[start:end].reshape(shape)[choice[i], choice[j]]
                assert certificate.bound + slack <= cost + 1e-6 * max(cost, 1.0), seed


def test_local_moves_keep_memory_and_never_cost_more() -> None:
    rng = np.random.default_rng(0)
    repaired_count = 0
    for seed in range(200):
        core = core_of(WorkingGraph.of(random_problem(seed)))
        if not np.isfinite(core.cost).all():
            continue
        choice = (rng.random(core.node_count) * np.diff(core.offsets)).astype(np.int64)
        repaired = repair(core, choice, max_moves=50)
        if repaired is None:
            continue
        repaired_count += not core.fits(choice)
        assert core.fits(repaired)
        improved = descend(core, repaired)
        assert core.fits(improved)
        assert core.cost_of(improved) <= core.cost_of(repaired)
    assert repaired_count >= 10


@pytest.mark.slow
def test_same_work_limit_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    problem = chain_of_blocks(40)
    first = solve(problem, stop=WorkLimit(1e7), seed=3)
    second = solve(problem, stop=WorkLimit(1e7), seed=3)
    assert first == second
    assert first.work.windows > 0


def test_a_budget_that_is_gone_at_once_still_gives_an_answer_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    problem = chain_of_blocks(40)
    answer = solve(problem, stop=WorkLimit(1.0))
    assert answer.solution is not None and problem.fits(answer.solution)
    assert answer.bound is not None and answer.cost is not None and answer.bound <= answer.cost


@pytest.mark.slow
def test_search_reaches_the_optimum_of_a_long_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_of_blocks(40)
    exact = solve(problem, stop=NoLimit())
    assert exact.status is SolveStatus.OPTIMAL and exact.cost is not None
    monkeypatch.setattr(solve_module, "_EXACT_ENTRIES", -1)
    costs: list[float] = []

    def listen(progress: Progress) -> None:
        assert progress.best is not None and progress.bound is not None and progress.bound <= progress.best
        costs.append(progress.best)

    answer = solve(problem, stop=WorkLimit(4e7), progress=listen)
    assert answer.cost is not None and answer.bound is not None
    assert answer.bound <= exact.cost <= answer.cost <= 1.02 * exact.cost
    assert costs == sorted(costs, reverse=True)


def test_order_of_nodes_and_edges_changes_nothing() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        order = list(range(problem.node_count))
        random.Random(seed).shuffle(order)
        assert solve(_renumbered(problem, order), stop=NoLimit()).cost == solve(problem, stop=NoLimit()).cost


def test_more_memory_never_costs_more() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        if problem.usage_limit is None:
            continue
        costs = [solve(_with_limit(problem, problem.usage_limit + extra), stop=NoLimit()).cost for extra in (0, 1, 4, 100)]
        known = [cost for cost in costs if cost is not None]
        assert known == sorted(known, reverse=True)
        assert costs[len(costs) - len(known) :] == known


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_nodes": [[0, 2]]}, "edge 0 names a node outside"),
        ({"edge_nodes": [[1, 1]]}, "joins a node to itself"),
        ({"edge_costs": [[1, 2, 3]]}, "one cost per pair"),
        ({"node_costs": [[1, -1], [1, 2]]}, "negative cost"),
        ({"node_costs": [[], [1, 2]], "node_usages": [[], [1, 2]]}, "no strategy"),
        ({"node_usages": [[1], [1, 2]]}, "as many usages as costs"),
        ({"intervals": [[0], [0, 1]]}, "not a pair"),
        ({"intervals": [[-1, 2], [0, 1]]}, "before time 0"),
        ({"node_costs": [[1, 2**63], [1, 2]]}, "64 bits"),
        ({"usage_limit": -1}, "limit is negative"),
    ],
)
def test_bad_problems_are_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "name": "p",
        "intervals": [[0, 1], [0, 1]],
        "node_costs": [[1, 2], [1, 2]],
        "node_usages": [[1, 2], [1, 2]],
        "edge_nodes": [[0, 1]],
        "edge_costs": [[1, 2, 3, 4]],
        "usage_limit": 9,
    }
    assert problem_from_lists(**good).node_count == 2  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=message):
        problem_from_lists(**(good | change))  # type: ignore[arg-type]


def _arc_consistent_core(problem: ShardingProblem) -> Core | None:
    # Message passing needs a finite entry in every row and column, as the reductions leave it.
    graph = WorkingGraph.of(problem)
    try:
        while graph.touched_nodes or graph.touched_edges:
            for v in list(graph.touched_nodes):
                del graph.touched_nodes[v]
                drop_impossible_strategies(graph, v)
            for u, v in list(graph.touched_edges):
                del graph.touched_edges[u, v]
                restore_arc_consistency(graph, u, v)
    except ProvenInfeasible:
        return None
    return core_of(graph)


def _with_limit(problem: ShardingProblem, limit: int) -> ShardingProblem:
    return ShardingProblem(
        problem.name, problem.node_offsets, problem.node_costs, problem.node_usages, problem.intervals,
        problem.edge_nodes, problem.edge_offsets, problem.edge_costs, limit,
    )  # fmt: skip


def _renumbered(problem: ShardingProblem, order: list[int]) -> ShardingProblem:
    """Node order[i] becomes node i, and every edge is named from its other end."""
    new_index = {old: new for new, old in enumerate(order)}
    nodes = [slice(*problem.node_offsets[old : old + 2]) for old in order]
    tables = []
    for edge, (u, v) in enumerate(problem.edge_nodes.tolist()):
        shape = problem.strategy_counts()[[u, v]]
        table = problem.edge_costs[problem.edge_offsets[edge] : problem.edge_offsets[edge + 1]].reshape(shape)
        tables.append(table.T.ravel().tolist())
    return problem_from_lists(
        name=problem.name,
        intervals=problem.intervals[order].tolist(),
        node_costs=[problem.node_costs[node].tolist() for node in nodes],
        node_usages=[problem.node_usages[node].tolist() for node in nodes],
        edge_nodes=[[new_index[v], new_index[u]] for u, v in problem.edge_nodes.tolist()],
        edge_costs=tables,
        usage_limit=problem.usage_limit,
    )
