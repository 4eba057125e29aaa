"""The operator-sharding problem as integer programs: PuLP as the language, HiGHS as the solver.

The formulation is the tight one: a one-hot vector per operator and a marginal variable per pair of strategies on an
edge, whose sums must equal the one-hot vectors (local polytope), not the big-M product form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pulp

FloatArray = npt.NDArray[np.float64]
Edge = tuple[int, int, FloatArray]

RESOLUTION = 2e-6
"""Relative difference below which two costs count as equal: twice HiGHS's default feasibility tolerance of 1e-6."""


@dataclass(frozen=True)
class IlpAnswer:
    """Best choice under the limits, its weighted cost, and HiGHS's proven lower bound on it."""

    choice: tuple[int, ...]
    cost: float
    bound: float


def solve_weighted(
    node_costs: Sequence[FloatArray],
    edges: Sequence[Edge],
    *,
    weights: Sequence[float],
    limits: Sequence[float | None] = (),
) -> IlpAnswer | None:
    """Minimise the weighted sum of the cost vector subject to an upper limit on each criterion; None if infeasible.

    Costs are scaled per criterion before they reach the solver, so that bytes (1e9) and seconds (1e-4) may mix.
    """
    n_criteria = node_costs[0].shape[1]
    scale = _criterion_scale(node_costs, edges)
    problem = pulp.LpProblem("operator_sharding", pulp.LpMinimize)
    picks = [
        [problem.add_variable(f"s_{v}_{i}", cat="Binary") for i in range(len(costs))] for v, costs in enumerate(node_costs)
    ]
    marginals = [
        [[problem.add_variable(f"e_{e}_{i}_{j}", lowBound=0) for j in range(table.shape[1])] for i in range(table.shape[0])]
        for e, (_, _, table) in enumerate(edges)
    ]
    totals = []
    for criterion in range(n_criteria):
        terms = [
            picks[v][i] * float(costs[i, criterion] / scale[criterion])
            for v, costs in enumerate(node_costs)
            for i in range(len(costs))
        ]
        terms += [
            marginals[e][i][j] * float(table[i, j, criterion] / scale[criterion])
            for e, (_, _, table) in enumerate(edges)
            for i, j in np.ndindex(*table.shape[:2])
            if table[i, j, criterion]
        ]
        totals.append(pulp.lpSum(terms))
    problem += pulp.lpSum(total * weight for total, weight in zip(totals, weights, strict=True))
    for variables in picks:
        problem += pulp.lpSum(variables) == 1
    for e, (source, target, _) in enumerate(edges):
        for i, pick in enumerate(picks[source]):
            problem += pulp.lpSum(marginals[e][i]) == pick
        for j, pick in enumerate(picks[target]):
            problem += pulp.lpSum(row[j] for row in marginals[e]) == pick
    for criterion, limit in enumerate(limits):
        if limit is not None:
            problem += totals[criterion] <= float(limit / scale[criterion])
    problem.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, random_seed=0))
    if problem.sol_status != pulp.LpSolutionOptimal:
        return None
    choice = tuple(int(np.argmax([pick.value() for pick in variables])) for variables in picks)
    bound = float(problem.solverModel.getInfo().mip_dual_bound)
    return IlpAnswer(choice, float(pulp.value(problem.objective)), bound)


def pareto_by_integer_programs(node_costs: Sequence[FloatArray], edges: Sequence[Edge]) -> list[tuple[int, ...]]:
    """One choice for each Pareto-optimal cost vector, by the epsilon-constraint method.

    Each box of the criteria beyond the first is searched for its smallest weighted cost; the point found splits the box
    into one smaller box per criterion, in which at least that criterion must improve by RESOLUTION of its largest
    entry. Finite, since every box is smaller than its parent by at least that.
    """
    n_criteria = node_costs[0].shape[1]
    scale = _criterion_scale(node_costs, edges)
    # A tiny weight on every criterion beyond time makes the point found Pareto-optimal, not only weakly so.
    weights = [1.0, *[RESOLUTION] * (n_criteria - 1)]
    found: dict[tuple[int, ...], None] = {}
    boxes: list[tuple[float | None, ...]] = [(None,) * n_criteria]
    seen = set(boxes)
    while boxes:
        limits = boxes.pop()
        answer = solve_weighted(node_costs, edges, weights=weights, limits=limits)
        if answer is None:
            continue
        found.setdefault(answer.choice)
        cost = np.sum([costs[i] for costs, i in zip(node_costs, answer.choice, strict=True)], axis=0)
        for source, target, table in edges:
            cost = cost + table[answer.choice[source], answer.choice[target]]
        for criterion in range(1, n_criteria):
            bound = float(cost[criterion] - RESOLUTION * scale[criterion])
            tighter = tuple(bound if c == criterion else limits[c] for c in range(n_criteria))
            if tighter not in seen:
                seen.add(tighter)
                boxes.append(tighter)
    return list(found)


def _criterion_scale(node_costs: Sequence[FloatArray], edges: Sequence[Edge]) -> FloatArray:
    largest = np.max([np.max(np.abs(costs), axis=0) for costs in node_costs], axis=0)
    for _, _, table in edges:
        largest = np.maximum(largest, np.max(np.abs(table), axis=(0, 1)))
    return np.where(largest > 0, largest, 1.0)
