"""Each reduction on its own keeps an optimal answer, and each one really applies to the random problems."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from meshwright.solver.sharding_problem import reductions
from meshwright.solver.sharding_problem.problem import ShardingProblem, problem_from_lists
from meshwright.solver.sharding_problem.reductions import tighten_memory
from meshwright.solver.sharding_problem.working_graph import ProvenInfeasible, WorkingGraph
from tests.unit.solver.sharding_problem.random_problems import exhaustive_optimum, random_problem

EDGE_RULES = ["restore_arc_consistency", "fold_separable_edge", "contract_follower"]
NODE_RULES = [
    "drop_impossible_strategies",
    "fold_single_strategy",
    "fix_isolated_node",
    "eliminate_leaf",
    "eliminate_degree_two",
    "drop_dominated_strategies",
]


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("name", EDGE_RULES + NODE_RULES)
def test_rule_alone_keeps_an_optimum(name: str) -> None:
    rule: Callable[..., bool] = getattr(reductions, name)
    applied = 0
    for seed in range(160):
        problem = random_problem(seed)
        graph = WorkingGraph.of(problem)
        optimum = exhaustive_optimum(problem)
        try:
            tighten_memory(graph)
            applied += _apply_everywhere(rule, graph, is_edge_rule=name in EDGE_RULES)
        except ProvenInfeasible:
            assert optimum is None, seed
            continue
        assert _optimum_of(graph, problem) == optimum, (name, seed)
    assert applied >= (3 if name == "fix_isolated_node" else 20)


@pytest.mark.slow
def test_time_points_alone_keep_an_optimum() -> None:
    dropped = 0
    for seed in range(200):
        problem = random_problem(seed)
        graph = WorkingGraph.of(problem)
        before = len(graph.capacity)
        optimum = exhaustive_optimum(problem)
        try:
            while tighten_memory(graph):
                pass
        except ProvenInfeasible:
            assert optimum is None, seed
            continue
        dropped += before - len(graph.capacity)
        assert _fits_agree(graph, problem), seed
        assert _optimum_of(graph, problem) == optimum, seed
    assert dropped >= 200


def test_parallel_edges_add_up_in_both_directions() -> None:
    problem = problem_from_lists(
        name="parallel",
        intervals=[[0, 1], [0, 1]],
        node_costs=[[0, 0], [0, 0, 0]],
        node_usages=[[0, 0], [0, 0, 0]],
        edge_nodes=[[0, 1], [1, 0]],
        edge_costs=[[1, 2, 3, 4, 5, 6], [10, 40, 20, 50, 30, 60]],
        usage_limit=None,
    )
    graph = WorkingGraph.of(problem)
    assert graph.neighbors[0][1].tolist() == [[11, 22, 33], [44, 55, 66]]
    assert graph.neighbors[1][0].tolist() == [[11, 44], [22, 55], [33, 66]]


def test_memory_keeps_the_dearer_leaf_strategy() -> None:
    # The cheap strategy of the leaf does not fit beside node 0: elimination by cost alone would lose the only answer.
    problem = problem_from_lists(
        name="leaf",
        intervals=[[0, 2], [0, 2]],
        node_costs=[[0, 0], [0, 100]],
        node_usages=[[3, 3], [5, 0]],
        edge_nodes=[[0, 1]],
        edge_costs=[[1, 2, 3, 5]],
        usage_limit=4,
    )
    graph = reductions.reduce_problem(problem)
    assert _optimum_of(graph, problem) == 102


def _apply_everywhere(rule: Callable[..., bool], graph: WorkingGraph, *, is_edge_rule: bool) -> int:
    applied = 0
    changed = True
    while changed:
        changed = False
        for v in sorted(graph.alive):
            targets: list[tuple[int, ...]] = [(v,)]
            if is_edge_rule:
                targets = [(v, w) for w in sorted(graph.neighbors[v]) if v < w]
            for target in targets:
                is_there = all(u in graph.alive for u in target) and (not is_edge_rule or target[-1] in graph.neighbors[v])
                if is_there and rule(graph, *target):
                    applied += 1
                    changed = True
    return applied


def _optimum_of(graph: WorkingGraph, problem: ShardingProblem) -> int | None:
    """Best cost over the remaining choices, each lifted to the whole problem and judged there."""
    nodes = sorted(graph.alive)
    best: int | None = None
    for states in itertools.product(*(range(len(graph.cost[v])) for v in nodes)):
        choice = np.zeros(problem.node_count, dtype=np.int64)
        choice[nodes] = states
        full = graph.lift(choice)
        cost = problem.cost_of(full)
        if cost is not None and problem.fits(full) and (best is None or cost < best):
            best = cost
    return best


def _fits_agree(graph: WorkingGraph, problem: ShardingProblem) -> bool:
    """Return True if the kept time points accept exactly the choices that the problem accepts."""
    nodes = sorted(graph.alive)
    for states in itertools.product(*(range(len(graph.cost[v])) for v in nodes)):
        load = np.zeros(len(graph.capacity))
        for v, s in zip(nodes, states, strict=True):
            for (start, end), usage in graph.items[v].items():
                load[start:end] += usage[s]
        if bool((load <= graph.capacity).all()) != problem.fits(states):
            return False
    return True
