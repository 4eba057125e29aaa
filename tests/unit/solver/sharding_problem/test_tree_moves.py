"""Moves over trees: never worse, always within memory, and exact where the whole graph is one tree."""

from __future__ import annotations

import itertools

import numpy as np

from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.elimination import eliminate
from meshwright.solver.sharding_problem.local_moves import TreeMoves, repair
from meshwright.solver.sharding_problem.problem import problem_from_lists
from meshwright.solver.sharding_problem.working_graph import WorkingGraph
from tests.unit.solver.sharding_problem.random_problems import random_problem


def tree_core(rng: np.random.Generator) -> Core:
    """A random tree of 12 nodes without memory, its nodes in random order."""
    sizes = rng.integers(2, 5, 12).tolist()
    name = rng.permutation(12).tolist()
    edges = [(name[i], name[int(rng.integers(i))]) for i in range(1, 12)]
    problem = problem_from_lists(
        name="tree",
        intervals=[[0, 0]] * 12,
        node_costs=[rng.integers(0, 50, k).tolist() for k in sizes],
        node_usages=[[0] * k for k in sizes],
        edge_nodes=edges,
        edge_costs=[rng.integers(0, 50, sizes[u] * sizes[v]).tolist() for u, v in edges],
        usage_limit=None,
    )
    return core_of(WorkingGraph.of(problem))


def test_one_move_over_a_whole_tree_is_exact() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        core = tree_core(rng)
        best = eliminate(core)
        assert best is not None
        start = np.zeros(core.node_count, dtype=np.int64)
        moved, work = TreeMoves(core).improve(start, np.zeros(len(core.cost)), rng, moves=12)
        assert core.cost_of(moved) == core.cost_of(best)
        assert work > 0


def test_moves_keep_memory_and_never_cost_more() -> None:
    rng = np.random.default_rng(2)
    tried = gained = 0
    for seed in range(120):
        core = core_of(WorkingGraph.of(random_problem(seed)))
        if core.node_count < 2 or not np.isfinite(core.cost).all():
            continue
        first = repair(core, np.zeros(core.node_count, dtype=np.int64), max_moves=50)
        if first is None or not np.isfinite(core.cost_of(first)):
            continue
        moved, _ = TreeMoves(core).improve(first, rng.random(len(core.cost)), rng, moves=40)
        assert core.fits(moved), seed
        assert core.cost_of(moved) <= core.cost_of(first), seed
        least = min(
            core.cost_of(np.asarray(choice))
            for choice in itertools.product(*(range(k) for k in np.diff(core.offsets)))
            if core.fits(np.asarray(choice))
        )
        assert core.cost_of(moved) >= least, seed
        tried += 1
        gained += core.cost_of(moved) < core.cost_of(first)
    assert tried >= 20 and gained >= 10
