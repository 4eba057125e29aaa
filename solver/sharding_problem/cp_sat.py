"""The frontier's program as constraints over whole numbers, for CP-SAT of OR-Tools."""

from __future__ import annotations

from ortools.sat.python import cp_model

from meshwright.solver.control import Stop, heed
from meshwright.solver.sharding_problem.criteria_graph import FIRST_RUN_S, RESOLUTION, CriteriaGraph, shares_of
from meshwright.solver.sharding_problem.working_graph import FloatArray

_UNITS = 10**9
"""Of the largest entry of a criterion: sums of thousands of entries fit 64 bits, and rounding is far below RESOLUTION."""


class CpSatProgram:
    """One Boolean for each strategy, and for each pair of an edge, tied to both its strategies."""

    def __init__(self, graph: CriteriaGraph):
        self._shares = shares = shares_of(graph)
        self._model = model = cp_model.CpModel()
        self._picks = [[model.new_bool_var("") for _ in costs] for costs in shares.nodes]
        for picks in self._picks:
            model.add_exactly_one(picks)
        chosen = [pick for picks in self._picks for pick in picks]
        costs = [cost for node in shares.nodes for cost in node.tolist()]
        for (u, v), table in shares.edges.items():
            pairs = [[model.new_bool_var("") for _ in range(table.shape[1])] for _ in range(table.shape[0])]
            for pick, row in zip(self._picks[u], pairs, strict=True):
                model.add(cp_model.LinearExpr.sum(row) == pick)
            for pick, column in zip(self._picks[v], zip(*pairs, strict=True), strict=True):
                model.add(cp_model.LinearExpr.sum(list(column)) == pick)
            chosen += [pair for row in pairs for pair in row]
            costs += table.reshape(-1, table.shape[2]).tolist()
        self._totals = [
            cp_model.LinearExpr.weighted_sum(chosen, [round(cost[c] * _UNITS) for cost in costs])
            for c in range(len(shares.deciding))
        ]
        model.minimize(cp_model.LinearExpr.sum(self._totals))

    def least(self, stop: Stop) -> tuple[int, ...] | None:
        """The choice of the least sum of criteria that still counts, None if none does; raises SearchStopped."""
        for presolved in (True, False):
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = 1
            solver.parameters.random_seed = 0
            # Programs as small as these are solved faster without what prepares for large ones. Without probing, presolve of
            # OR-Tools 9.15 takes some for infeasible that are not, so that nothing is left is proven without presolve as well.
            solver.parameters.linearization_level = 0
            solver.parameters.symmetry_level = 0
            solver.parameters.cp_model_presolve = presolved
            solver.parameters.max_time_in_seconds = FIRST_RUN_S
            while (status := solver.solve(self._model)) not in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
                heed(stop)
                solver.parameters.max_time_in_seconds *= 2
            if status == cp_model.OPTIMAL:
                return tuple([solver.boolean_value(pick) for pick in picks].index(True) for picks in self._picks)
        return None

    def leave_beaten(self, cost: FloatArray) -> None:
        """From now on only choices count that are better than this cost vector in some criterion."""
        better = []
        for total, share in zip(self._totals, self._shares.of(cost), strict=True):
            is_better = self._model.new_bool_var("")
            self._model.add(total <= round((share - RESOLUTION) * _UNITS)).only_enforce_if(is_better)
            better.append(is_better)
        self._model.add_bool_or(better)
