"""The frontier's program as an integer program, for any solver that PuLP reaches: HiGHS by default, CBC or another by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pulp

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.control import SearchStopped, Stop, heed
from meshwright.solver.sharding_problem.criteria_graph import FIRST_RUN_S, RESOLUTION, CriteriaGraph, shares_of
from meshwright.solver.sharding_problem.working_graph import FloatArray

_TOLERANCE = 1e-9
"""Of feasibility and of whole numbers, the least that HiGHS takes is 1e-10."""


def usable_solvers() -> list[str]:
    """Names of the solvers that PuLP finds on this machine, sorted, but for the CBC in its own package, which it will drop."""
    return sorted(set(pulp.listSolvers(onlyAvailable=True)) - {"PULP_CBC_CMD"})


def require_solver(name: str) -> None:
    """Raise InvalidInputError for a solver that PuLP does not find here."""
    if name not in usable_solvers():
        raise InvalidInputError("a solver that PuLP does not find here", given=name, allowed=", ".join(usable_solvers()))


class IlpProgram:
    """One binary for each strategy, one variable for each pair of an edge, tied to both its strategies (the local polytope)."""

    def __init__(self, graph: CriteriaGraph, solver: str):
        """Raise InvalidInputError for a solver that PuLP does not find here."""
        require_solver(solver)
        self._solver = solver
        self._shares = shares = shares_of(graph)
        self._most = shares.most()
        self._program = program = pulp.LpProblem("operators", pulp.LpMinimize)
        self._found = 0
        self._picks = [
            [program.add_variable(f"s_{node}_{s}", cat="Binary") for s in range(len(costs))]
            for node, costs in enumerate(shares.nodes)
        ]
        for picks in self._picks:
            program += pulp.lpSum(picks) == 1
        terms: list[list[pulp.LpAffineExpression]] = [[] for _ in shares.deciding]
        for picks, costs in zip(self._picks, shares.nodes, strict=True):
            _add_terms(terms, picks, costs)
        for (u, v), table in shares.edges.items():
            pairs = [
                [program.add_variable(f"e_{u}_{v}_{s}_{r}", lowBound=0, upBound=1) for r in range(table.shape[1])]
                for s in range(table.shape[0])
            ]
            for pick, row in zip(self._picks[u], pairs, strict=True):
                program += pulp.lpSum(row) == pick
            for pick, column in zip(self._picks[v], zip(*pairs, strict=True), strict=True):
                program += pulp.lpSum(column) == pick
            _add_terms(terms, [pair for row in pairs for pair in row], table.reshape(-1, table.shape[2]))
        self._totals = [program.add_variable(f"t_{c}", lowBound=0) for c in range(len(terms))]
        for total, parts in zip(self._totals, terms, strict=True):
            program += pulp.lpSum(parts) == total
        program.setObjective(pulp.lpSum(self._totals))

    def least(self, stop: Stop) -> tuple[int, ...] | None:
        """The choice of the least sum of criteria that still counts, None if none does; raises SearchStopped."""
        limit_s = math.inf if self._solver == "HiGHS" else FIRST_RUN_S
        while True:
            self._program.solve(_configured(self._solver, stop, limit_s))
            if self._program.status == pulp.LpStatusInfeasible:
                return None
            # PuLP says "Optimal" where a limit ended it too: sol_status tells.
            if self._program.sol_status == pulp.LpSolutionOptimal:
                return tuple(int(np.argmax([pick.value() for pick in picks])) for picks in self._picks)
            heed(stop)
            if math.isinf(limit_s):
                raise SearchStopped
            limit_s *= 2

    def leave_beaten(self, cost: FloatArray) -> None:
        """From now on only choices count that are better than this cost vector in some criterion."""
        better = []
        for c, share in enumerate(self._shares.of(cost)):
            is_better = self._program.add_variable(f"b_{self._found}_{c}", cat="Binary")
            room = self._most[c] - share + RESOLUTION
            self._program += self._totals[c] + room * is_better <= self._most[c]
            better.append(is_better)
        self._program += pulp.lpSum(better) >= 1
        self._found += 1


def _add_terms(terms: list[list[pulp.LpAffineExpression]], variables: list[pulp.LpVariable], costs: FloatArray) -> None:
    """Add the cost of each variable, shape (variables, criteria), to the terms of its criteria."""
    for criterion, mine in enumerate(terms):
        mine.extend(variable * cost for variable, cost in zip(variables, costs[:, criterion].tolist(), strict=True) if cost)


def _configured(solver: str, stop: Stop, limit_s: float) -> pulp.LpSolver:
    if solver != "HiGHS":
        return pulp.getSolver(solver, msg=False, gapRel=0.0, timeLimit=limit_s)

    def interrupt(_kind: Any, _message: str, _out: Any, given: Any, _data: Any) -> None:
        given.user_interrupt = stop()

    kinds = pulp.HiGHS.hscb.HighsCallbackType
    return pulp.HiGHS(
        msg=False,
        gapRel=0.0,
        gapAbs=_TOLERANCE,
        threads=1,
        random_seed=0,
        mip_feasibility_tolerance=_TOLERANCE,
        primal_feasibility_tolerance=_TOLERANCE,
        callbackTuple=(interrupt, None),
        callbacksToActivate=[kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt],
    )
