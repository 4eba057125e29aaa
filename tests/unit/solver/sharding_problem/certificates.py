"""Shared by the tests of certificates and others: chain_of_blocks."""

from __future__ import annotations

import random

from meshwright.solver.sharding_problem.problem import ShardingProblem, problem_from_lists


def chain_of_blocks(length: int) -> ShardingProblem:
    """Repeated blocks with skips, memory tight enough to bind: too large to enumerate."""
    rng = random.Random(5)
    edges = [[i, i + 1] for i in range(length - 1)] + [[i, i + 3] for i in range(0, length - 3, 2)]
    return problem_from_lists(
        name="chain",
        intervals=[[i, min(i + 8, length)] for i in range(length)],
        node_costs=[[rng.randint(0, 500) for _ in range(4)] for _ in range(length)],
        node_usages=[[rng.randint(0, 50) for _ in range(4)] for _ in range(length)],
        edge_nodes=edges,
        edge_costs=[[rng.randint(0, 900) for _ in range(16)] for _ in edges],
        usage_limit=130,
    )
