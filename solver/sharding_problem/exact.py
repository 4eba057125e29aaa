"""Exact solution of a core as a mixed-integer program in HiGHS.

Tight formulation: one variable per strategy, one marginal variable per allowed pair of strategies on an edge, whose
sums over either side equal that side's strategy variables (the local polytope; Alpa's product form is far weaker).
Memory rows are added at the time points where an answer exceeds the capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import highspy
import numpy as np
import scipy.sparse

from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.work import WorkStop
from meshwright.solver.sharding_problem.working_graph import FloatArray

_ROWS_AT_ONCE = 24
"""Memory rows added per round: enough to cover separate peaks, few enough to keep each program small."""

_OBJECTIVE_RANGE = 1e5
"""Objective values are scaled to this size: HiGHS works to absolute tolerances of 1e-6 to 1e-9."""

_FEASIBILITY_TOLERANCE = 1e-9

_WORK_PER_NONZERO = 4.0
"""Work of a step of HiGHS for each nonzero of the program: 4 10^7 of them take a second (contest instances M, N)."""


class ExactStatus(StrEnum):
    """The end of an exact solve."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"


@dataclass(frozen=True)
class ExactAnswer:
    """Best choice found within memory, if any, and the proven lower bound on the cost of every choice."""

    status: ExactStatus
    choice: IntArray | None
    bound: float


def solve_exactly(core: Core, stop: WorkStop, *, reference: float | None = None) -> ExactAnswer:
    """Minimise cost within memory; ``reference`` is a cost of the size that matters, to scale by (None: the largest entry)."""
    program = _Program(core, stop, reference)
    best: IntArray | None = None
    best_cost, bound = np.inf, -np.inf
    for is_integer in (False, True):
        if is_integer:
            program.require_integers()
        while not stop():
            status = program.run()
            if status is ExactStatus.INFEASIBLE:
                return ExactAnswer(status, None, np.inf)
            if status is ExactStatus.STOPPED and not is_integer:
                return ExactAnswer(status, best, bound)
            bound = max(bound, program.lower_bound())
            choice = program.rounded_choice() if is_integer else None
            fits = choice is not None and core.fits(choice)
            if choice is not None and fits and core.cost_of(choice) < best_cost:
                best, best_cost = choice, core.cost_of(choice)
                program.incumbent = choice
            if is_integer and status is ExactStatus.OPTIMAL and fits:
                return ExactAnswer(ExactStatus.OPTIMAL, best, min(bound, best_cost))
            if not program.add_violated_rows(choice) and not (is_integer and status is ExactStatus.OPTIMAL):
                break
    return ExactAnswer(ExactStatus.STOPPED, best, min(bound, best_cost))


class _Program:
    """The program in HiGHS, with the memory rows added so far; ``incumbent`` is the best choice that fits."""

    def __init__(self, core: Core, stop: WorkStop, reference: float | None):
        self.core = core
        self.stop = stop
        self.is_integer = False
        self.incumbent: IntArray | None = None
        self.strategies = len(core.cost)
        self.owner = np.repeat(np.arange(core.node_count), np.diff(core.offsets))
        cost, matrix, right_hand_side = _columns_and_rows(core)
        if reference is None:
            reference = float(np.max(cost, initial=0))
        self.scale = _OBJECTIVE_RANGE / reference if reference > 0 else 1.0
        self.rows: set[int] = set()
        self.highs = _new_highs()
        self.highs.passModel(_linear_program(cost * self.scale, matrix, right_hand_side))
        self.nonzeros = matrix.nnz
        self.highs.cbSimplexInterrupt += self._check
        self.highs.cbMipInterrupt += self._check

    def _check(self, event: highspy.highs.HighsCallbackEvent) -> None:
        # Both interrupts come about once per iteration of a simplex or once per step of the branching.
        self.stop.spend(_WORK_PER_NONZERO * self.nonzeros)
        if self.stop():
            event.interrupt()

    def require_integers(self) -> None:
        """From now on strategies are chosen whole."""
        self.is_integer = True
        columns = np.arange(self.strategies, dtype=np.int32)
        kinds = np.full(self.strategies, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        self.highs.changeColsIntegrality(self.strategies, columns, kinds)

    def run(self) -> ExactStatus:
        """Solve the program as it stands, from the incumbent if there is one."""
        if self.incumbent is not None:
            columns = (self.core.offsets[:-1] + self.incumbent).astype(np.int32)
            every = np.arange(self.strategies, dtype=np.int32)
            values = np.zeros(self.strategies)
            values[columns] = 1.0
            self.highs.setSolution(self.strategies, every, values)
        # HiGHS asks between iterations, but not within its presolve or its factorisations; its own clock covers these.
        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + max(self.stop.seconds_left(), 0.0))
        self.highs.run()
        status = self.highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return ExactStatus.INFEASIBLE
        return ExactStatus.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else ExactStatus.STOPPED

    def lower_bound(self) -> float:
        """Proven bound of the last run; a linear program that ran to its end, or the bound of the branching."""
        info = self.highs.getInfo()
        value = info.mip_dual_bound if self.is_integer else info.objective_function_value
        return float(value) / self.scale + self.core.constant

    def rounded_choice(self) -> IntArray | None:
        """The choice of the last run, or None if it found none."""
        info = self.highs.getInfo()
        if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            return None
        values = np.asarray(self.highs.getSolution().col_value[: self.strategies])
        order = np.lexsort((-values, self.owner))
        return (order[self.core.offsets[:-1]] - self.core.offsets[:-1]).astype(np.int64)

    def add_violated_rows(self, choice: IntArray | None) -> bool:
        """Add memory rows where the last answer (a whole choice, or the fractions) exceeds capacity; False if none."""
        core = self.core
        if len(core.capacity) == 0:
            return False
        if choice is None:
            if not len(self.highs.getSolution().col_value):
                return False
            shares = np.asarray(self.highs.getSolution().col_value[: self.strategies])
        else:
            shares = np.zeros(self.strategies)
            shares[core.offsets[:-1] + choice] = 1.0
        excess = _load_of_shares(core, shares) - core.capacity
        added = self._add_rows(excess, at_least=1e-6 if choice is None else 0.0)
        if not added and choice is not None and (excess > 0).any():
            self._forbid_combination(choice, int(np.argmax(excess)))
            return True
        return added

    def _add_rows(self, excess: FloatArray, *, at_least: float) -> bool:
        """Add rows at the largest relative excesses above ``at_least``, spread over time."""
        points = len(excess)
        relative = excess / max(float(self.core.capacity.max(initial=0)), 1.0)
        near = max(points // (2 * _ROWS_AT_ONCE), 1)
        is_open = np.ones(points, dtype=bool)
        added = 0
        for t in np.argsort(-relative, kind="stable"):
            if relative[t] <= at_least or added == _ROWS_AT_ONCE:
                break
            if is_open[t] and int(t) not in self.rows:
                is_open[max(t - near, 0) : t + near] = False
                self._add_row(int(t))
                added += 1
        return added > 0

    def _add_row(self, t: int) -> None:
        self.rows.add(t)
        usage = _usage_at(self.core, t)
        columns = np.flatnonzero(usage).astype(np.int32)
        unit = max(float(self.core.capacity[t]), float(usage.max(initial=0)), 1.0)
        self.highs.addRow(-highspy.kHighsInf, float(self.core.capacity[t]) / unit, len(columns), columns, usage[columns] / unit)

    def _forbid_combination(self, choice: IntArray, t: int) -> None:
        # The row at t holds within tolerance but not exactly: what uses memory at t can't all stay chosen.
        chosen = self.core.offsets[:-1] + choice
        columns = chosen[_usage_at(self.core, t)[chosen] > 0].astype(np.int32)
        self.highs.addRow(-highspy.kHighsInf, len(columns) - 1.0, len(columns), columns, np.ones(len(columns)))


def _columns_and_rows(core: Core) -> tuple[FloatArray, scipy.sparse.csc_matrix, FloatArray]:
    """Costs of the columns, the equality rows and their right-hand sides (1 for one-hot rows, 0 for marginal rows)."""
    strategies = len(core.cost)
    owner = np.repeat(np.arange(core.node_count), np.diff(core.offsets))
    rows, columns, values = [owner], [np.arange(strategies)], [np.ones(strategies)]
    cost = [core.cost]
    next_row, next_column = core.node_count, strategies
    for edge, (u, v) in enumerate(core.edge_nodes.tolist()):
        table = core.table(edge)
        i, j = np.nonzero(np.isfinite(table))
        pairs = np.arange(next_column, next_column + len(i))
        k_u, k_v = table.shape
        of_u, of_v = next_row + np.arange(k_u), next_row + k_u + np.arange(k_v)
        rows += [of_u[i], of_v[j], of_u, of_v]
        columns += [pairs, pairs, core.offsets[u] + np.arange(k_u), core.offsets[v] + np.arange(k_v)]
        values += [np.ones(2 * len(i)), -np.ones(k_u + k_v)]
        cost.append(table[i, j])
        next_row += k_u + k_v
        next_column += len(i)
    coordinates = (np.concatenate(rows), np.concatenate(columns))
    matrix = scipy.sparse.csc_matrix((np.concatenate(values), coordinates), shape=(next_row, next_column))
    right_hand_side = np.zeros(next_row)
    right_hand_side[: core.node_count] = 1.0
    return np.concatenate(cost), matrix, right_hand_side


def _linear_program(cost: FloatArray, matrix: scipy.sparse.csc_matrix, right_hand_side: FloatArray) -> highspy.HighsLp:
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.shape
    program.col_cost_ = cost
    program.col_lower_ = np.zeros(len(cost))
    program.col_upper_ = np.ones(len(cost))
    program.row_lower_ = right_hand_side
    program.row_upper_ = right_hand_side
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = matrix.indptr
    program.a_matrix_.index_ = matrix.indices
    program.a_matrix_.value_ = matrix.data
    return program


def _new_highs() -> highspy.Highs:
    highs = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-7),
        ("mip_feasibility_tolerance", _FEASIBILITY_TOLERANCE),
        ("primal_feasibility_tolerance", _FEASIBILITY_TOLERANCE),
    ):
        highs.setOptionValue(option, value)
    return highs


def _usage_at(core: Core, t: int) -> FloatArray:
    """Memory at time point t of every strategy, shape (sum k,)."""
    usage = np.zeros(len(core.cost))
    for item in np.flatnonzero((core.item_spans[:, 0] <= t) & (t < core.item_spans[:, 1])):
        start = core.offsets[core.item_nodes[item]]
        mine = core.usage[core.item_offsets[item] : core.item_offsets[item + 1]]
        usage[start : start + len(mine)] += mine
    return usage


def _load_of_shares(core: Core, shares: FloatArray) -> FloatArray:
    weights = core.usage * shares[core.strategy_of_usage]
    used = np.bincount(core.item_of_usage, weights=weights, minlength=len(core.item_nodes))
    return core.load_of_items(used.astype(np.float64))
