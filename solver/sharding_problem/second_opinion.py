"""A second opinion on an answer: the whole problem, none of it reduced, as an integer program for any solver that PuLP reaches.

Nothing of the engine's reductions, bounds and search is in it: one binary for each strategy, one variable for each pair of
an edge, tied to both its strategies, and one row of memory for each time at which a node's life begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pulp

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.sharding_problem.ilp import require_solver
from meshwright.solver.sharding_problem.problem import FORBIDDEN, ShardingProblem
from meshwright.solver.sharding_problem.solve import ShardingAnswer

MOST_ENTRIES = 500_000
"""Pairs of strategies of all edges: as many variables, of which PuLP writes some 50,000 a second."""

_Picks = list[list[pulp.LpVariable]]
"""One binary for each strategy of each node."""


class Agreement(StrEnum):
    """The verdict of another solver on an answer."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class SecondOpinion:
    """The other solver's proven optimum, None where it proves that nothing fits or proves nothing in its time."""

    solver: str
    verdict: Agreement
    cost: int | None


def second_opinion(problem: ShardingProblem, answer: ShardingAnswer, *, solver: str, limit_s: float | None) -> SecondOpinion:
    """Solve a problem again with ``solver``, for at most ``limit_s`` seconds, and compare.

    It disagrees where it proves a cost below the answer's bound, or that something fits, or nothing does, against the
    answer's word. Raises InvalidInputError for a solver that is not there and for more pairs than MOST_ENTRIES.
    """
    require_solver(solver)
    if len(problem.edge_costs) > MOST_ENTRIES:
        given = f"{len(problem.edge_costs):,} pairs of strategies"
        raise InvalidInputError("too large for a second opinion", given=given, allowed=f"up to {MOST_ENTRIES:,}")
    program, picks = _program(problem)
    program.solve(_configured(solver, limit_s))
    if program.status == pulp.LpStatusInfeasible:
        return _compared(solver, answer, cost=None)
    # PuLP says "Optimal" at a time limit too: sol_status tells.
    if program.sol_status != pulp.LpSolutionOptimal:
        return SecondOpinion(solver, Agreement.UNFINISHED, None)
    choice = [int(np.argmax([pick.value() for pick in mine])) for mine in picks]
    return _compared(solver, answer, cost=problem.cost_of(choice))


def _configured(solver: str, limit_s: float | None) -> pulp.LpSolver:
    same_everywhere = {"threads": 1, "random_seed": 0} if solver == "HiGHS" else {}
    return pulp.getSolver(solver, msg=False, gapRel=0.0, timeLimit=limit_s, **same_everywhere)


def _compared(solver: str, answer: ShardingAnswer, *, cost: int | None) -> SecondOpinion:
    agrees = answer.cost is None if cost is None else answer.bound is not None and answer.bound <= cost
    return SecondOpinion(solver, Agreement.AGREES if agrees else Agreement.DISAGREES, cost)


def _program(problem: ShardingProblem) -> tuple[pulp.LpProblem, _Picks]:
    program = pulp.LpProblem("sharding", pulp.LpMinimize)
    picks = [
        [program.add_variable(f"s_{v}_{s}", cat="Binary") for s in range(count)]
        for v, count in enumerate(problem.strategy_counts().tolist())
    ]
    objective = []
    for pick, cost in zip((pick for mine in picks for pick in mine), problem.node_costs.tolist(), strict=True):
        if cost >= FORBIDDEN:
            program += pick == 0
        else:
            objective.append(pick * cost)
    for mine in picks:
        program += pulp.lpSum(mine) == 1
    objective.extend(_add_edge(program, problem, edge, picks) for edge in range(problem.edge_count))
    if problem.usage_limit is not None:
        _add_memory(program, problem, picks, limit=problem.usage_limit)
    program.setObjective(pulp.lpSum(objective))
    return program, picks


def _add_edge(program: pulp.LpProblem, problem: ShardingProblem, edge: int, picks: _Picks) -> pulp.LpAffineExpression:
    """Return the cost of an edge, and add its constraints.

    The pairs of a row add up to the strategy of the row, those of a column to that of the column.
    """
    first, second = (picks[node] for node in problem.edge_nodes[edge].tolist())
    entries = problem.edge_costs[problem.edge_offsets[edge] : problem.edge_offsets[edge + 1]]
    costs = entries.reshape(len(first), len(second)).tolist()
    pairs = {
        (s, r): program.add_variable(f"e_{edge}_{s}_{r}", lowBound=0)
        for s, row in enumerate(costs)
        for r, cost in enumerate(row)
        if cost < FORBIDDEN
    }
    for s, pick in enumerate(first):
        program += pulp.lpSum(pair for (row, _), pair in pairs.items() if row == s) == pick
    for r, pick in enumerate(second):
        program += pulp.lpSum(pair for (_, column), pair in pairs.items() if column == r) == pick
    return pulp.lpSum(pair * costs[s][r] for (s, r), pair in pairs.items())


def _add_memory(program: pulp.LpProblem, problem: ShardingProblem, picks: _Picks, *, limit: int) -> None:
    """Memory grows only where a life begins, so those times stand for all."""
    lives = problem.intervals
    for time in sorted({start for start, end in lives.tolist() if start < end}):
        alive = np.flatnonzero((lives[:, 0] <= time) & (time < lives[:, 1])).tolist()
        usages = [(pick, problem.node_offsets[v] + s) for v in alive for s, pick in enumerate(picks[v])]
        program += pulp.lpSum(pick * int(problem.node_usages[entry]) for pick, entry in usages) <= limit
