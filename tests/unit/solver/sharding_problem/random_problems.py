"""Small random problems and their exhaustive solution: the oracle of the sharding engine's tests."""

from __future__ import annotations

import itertools
import random
from enum import StrEnum

from meshwright.solver.sharding_problem.problem import FORBIDDEN, ShardingProblem, problem_from_lists


class Shape(StrEnum):
    """The shape of the graph of a random problem."""

    TREE = "tree"
    SERIES_PARALLEL = "series_parallel"
    SPARSE = "sparse"


class Memory(StrEnum):
    """The tightness of the memory limit."""

    NONE = "none"
    LOOSE = "loose"
    TIGHT = "tight"
    IMPOSSIBLE = "impossible"


def random_problem(seed: int) -> ShardingProblem:
    """A problem of 2 to 7 nodes with 1 to 4 strategies; every 100 seeds cover all shapes and memories."""
    rng = random.Random(seed)
    shape = list(Shape)[seed % 3]
    memory = list(Memory)[seed // 3 % 4]
    count = rng.randint(2, 7)
    ks = [rng.randint(1, 4) for _ in range(count)]
    edges = _edges(shape, count, rng)
    forbidden_share = rng.choice([0.0, 0.2, 0.5])
    largest = rng.choice([3, 20, 1000])
    end = rng.randint(2, 12)

    def cost() -> int:
        return FORBIDDEN if rng.random() < forbidden_share else rng.randint(0, largest)

    def table(u: int, v: int) -> list[int]:
        kind = rng.random()
        if kind < 0.15:
            left, right = [rng.randint(0, 9) for _ in range(ks[u])], [rng.randint(0, 9) for _ in range(ks[v])]
            return [a + b for a in left for b in right]
        if kind < 0.35:
            # A follower: one allowed partner for each strategy of u.
            partner = [rng.randrange(ks[v]) for _ in range(ks[u])]
            return [rng.randint(0, largest) if j == partner[i] else FORBIDDEN for i in range(ks[u]) for j in range(ks[v])]
        return [cost() for _ in range(ks[u] * ks[v])]

    usages = [[rng.randint(0, 9) for _ in range(k)] for k in ks]
    intervals = [sorted((rng.randint(0, end), rng.randint(0, end))) for _ in range(count)]
    return problem_from_lists(
        name=f"random-{seed}",
        intervals=intervals,
        node_costs=[[rng.randint(0, largest) if rng.random() < 0.95 else FORBIDDEN for _ in range(k)] for k in ks],
        node_usages=usages,
        edge_nodes=edges,
        edge_costs=[table(u, v) for u, v in edges],
        usage_limit=_limit(memory, usages, intervals, rng),
    )


def exhaustive_optimum(problem: ShardingProblem) -> int | None:
    """Least cost over all combinations that fit and make no forbidden choice; None if there is none."""
    ks = problem.strategy_counts().tolist()
    costs = [problem.cost_of(choice) for choice in itertools.product(*(range(k) for k in ks)) if problem.fits(choice)]
    return min((cost for cost in costs if cost is not None), default=None)


def _edges(shape: Shape, count: int, rng: random.Random) -> list[list[int]]:
    if shape is Shape.TREE:
        edges = [[rng.randrange(v), v] for v in range(1, count)]
    elif shape is Shape.SERIES_PARALLEL:
        edges = [[0, 1]]
        for v in range(2, count):
            a, b = edges[rng.randrange(len(edges))]
            if rng.random() < 0.5:
                edges.remove([a, b])
            edges += [[a, v], [v, b]]
        edges += [list(edge) for edge in edges if rng.random() < 0.2]
    else:
        pairs = list(itertools.combinations(range(count), 2))
        edges = [list(pair) for pair in pairs if rng.random() < 3 / count]
    return [edge if rng.random() < 0.5 else edge[::-1] for edge in edges]


def _limit(memory: Memory, usages: list[list[int]], intervals: list[list[int]], rng: random.Random) -> int | None:
    if memory is Memory.NONE:
        return None
    alive = [[v for v, (a, b) in enumerate(intervals) if a <= t < b] for t in range(13)]
    least = max(sum(min(usages[v]) for v in nodes) for nodes in alive)
    most = max(sum(max(usages[v]) for v in nodes) for nodes in alive)
    if memory is Memory.IMPOSSIBLE:
        return max(least - rng.randint(0, 1), 0)
    return least + (most - least) // (5 if memory is Memory.TIGHT else 2)
