"""The exact program of ``exact`` written in PuLP, for any solver that PuLP can reach.

The portable path: the same tight formulation with all memory rows from the start, for small cores and for solvers
other than HiGHS, which stays the default.
"""

from __future__ import annotations

import numpy as np
import pulp

from solver.sharding_problem.core import Core
from solver.sharding_problem.problem import IntArray


def solve_with_pulp(core: Core, solver: pulp.LpSolver | None = None) -> IntArray | None:
    """The cheapest choice that fits, or None if there is none; ``solver`` must prove optimality."""
    program = pulp.LpProblem("sharding", pulp.LpMinimize)
    picks = [
        [program.add_variable(f"s_{i}_{s}", cat="Binary") for s in range(core.offsets[i + 1] - core.offsets[i])]
        for i in range(core.node_count)
    ]
    flat = [pick for mine in picks for pick in mine]
    objective = [pick * float(cost) for pick, cost in zip(flat, core.cost, strict=True)]
    for mine in picks:
        program += pulp.lpSum(mine) == 1
    for edge, (i, j) in enumerate(core.edge_nodes.tolist()):
        objective.append(_add_edge(program, core, edge, picks[i], picks[j]))
    for t in range(len(core.capacity)):
        used = [
            picks[core.item_nodes[item]][s] * float(usage)
            for item in np.flatnonzero((core.item_spans[:, 0] <= t) & (t < core.item_spans[:, 1])).tolist()
            for s, usage in enumerate(core.usage[core.item_offsets[item] : core.item_offsets[item + 1]])
        ]
        program += pulp.lpSum(used) <= float(core.capacity[t])
    program.setObjective(pulp.lpSum(objective))
    program.solve(solver or pulp.HiGHS(msg=False, threads=1, gapRel=0.0, random_seed=0))
    # PuLP says "Optimal" at a time limit too: sol_status tells.
    if program.sol_status != pulp.LpSolutionOptimal:
        return None
    return np.asarray([int(np.argmax([pick.value() for pick in mine])) for mine in picks], dtype=np.int64)


def _add_edge(
    program: pulp.LpProblem,
    core: Core,
    edge: int,
    of_first: list[pulp.LpVariable],
    of_second: list[pulp.LpVariable],
) -> pulp.LpAffineExpression:
    table = core.table(edge)
    pairs = {
        (s, r): program.add_variable(f"e_{edge}_{s}_{r}", lowBound=0)
        for s, r in zip(*(axis.tolist() for axis in np.nonzero(np.isfinite(table))), strict=True)
    }
    for s, pick in enumerate(of_first):
        program += pulp.lpSum(pair for (row, _), pair in pairs.items() if row == s) == pick
    for r, pick in enumerate(of_second):
        program += pulp.lpSum(pair for (_, column), pair in pairs.items() if column == r) == pick
    return pulp.lpSum(pair * float(table[key]) for key, pair in pairs.items())
