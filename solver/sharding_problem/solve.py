"""The sharding engine: one strategy per operator of a whole graph, within memory, with a certified bound.

Reduce exactly; solve a small core exactly; bound a large one by priced message passing, then search it by exact
windows, going back and forth between the two. Every answer is checked against the problem before it leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from meshwright.solver.control import OnProgress, Progress, ignore_progress
from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.elimination import eliminate
from meshwright.solver.sharding_problem.exact import ExactStatus, solve_exactly
from meshwright.solver.sharding_problem.local_moves import descend, repair
from meshwright.solver.sharding_problem.problem import IntArray, ShardingProblem
from meshwright.solver.sharding_problem.reductions import reduce_problem
from meshwright.solver.sharding_problem.relaxation import Certificate, Relaxation
from meshwright.solver.sharding_problem.search import Search
from meshwright.solver.sharding_problem.subproblem import reduced_part
from meshwright.solver.sharding_problem.work import Until, WorkStop
from meshwright.solver.sharding_problem.working_graph import ProvenInfeasible, WorkingGraph

_EXACT_ENTRIES = 80_000
"""Table entries of a core up to which the exact program is tried first: some 10^5 columns, seconds in HiGHS."""

_NARROWING_SWEEPS, _NARROWING_REPAIR = 100, 10
"""Sweeps before an exact try, and how often a decoded choice is repaired in them: milliseconds at that size."""

_EXACT_SHARE, _BOUND_SHARE = 0.5, 0.3
_TURN_SEARCH, _TURN_BOUND = 0.1, 0.02
"""Shares of the budget: for the first exact try, for the first bounds, and for each later turn of the two."""

_SWEEPS_PER_REPAIR = 5
"""Decoded choices rarely fit; every so many sweeps one is repaired and improved by single moves, half a sweep's time."""

_SWEEPS_PER_MARK, _STALLED = 60, 0.03
"""Bounds give way to the search when so many sweeps close less than this share of the gap."""

_TOLERANCE, _RELATIVE_TOLERANCE = 1e-6, 1e-12
"""The largest excess of a bound over a whole cost at which it still stands for it: HiGHS and sums of float64 are exact up to so
much."""

_REDUCTION_WORK = 8000.0
"""Work of the reductions for each node and edge: about 50 us."""


class Status(StrEnum):
    """The knowledge of a problem after a solve."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Work:
    """The work of a solve: nodes and table entries left after the reductions, sweeps of message passing, windows."""

    core_nodes: int
    core_entries: int
    sweeps: int
    windows: int


@dataclass(frozen=True)
class ShardingAnswer:
    """The best solution found (a strategy index per node) and a proven lower bound on every solution's cost.

    gap is (cost - bound) / cost, 0 where both are 0; solution, cost and gap are None where none was found, and the
    bound is None only for an infeasible problem.
    """

    solution: tuple[int, ...] | None
    cost: int | None
    bound: int | None
    gap: float | None
    status: Status
    work: Work


def solve(problem: ShardingProblem, *, stop: WorkStop, seed: int = 0, progress: OnProgress | None = None) -> ShardingAnswer:
    """Solve to optimality, or as far as ``stop`` allows.

    Deterministic when ``stop`` is (a ``WorkLimit``, or ``NoLimit``). ``seed`` picks the windows of the search.
    """
    try:
        graph = reduce_problem(problem, stop)
    except ProvenInfeasible:
        return ShardingAnswer(None, None, None, None, Status.INFEASIBLE, Work(0, 0, 0, 0))
    stop.spend(_REDUCTION_WORK * (problem.node_count + problem.edge_count))
    core = core_of(graph)
    run = _Run(core, stop, seed, progress or ignore_progress)
    run.solve()
    return _answer(problem, graph, run)


class _Run:
    """One solve of a core: the best choice and bound so far, and the phases that improve them."""

    def __init__(self, core: Core, stop: WorkStop, seed: int, progress: OnProgress):
        self.core = core
        self.stop = stop
        self.progress = progress
        self.rng = np.random.default_rng(seed)
        self.choice: IntArray | None = None
        self.cost = math.inf
        self.bound = 0.0
        self.is_infeasible = False
        self.sweeps = 0
        self.windows = 0

    def solve(self) -> None:
        """Run the phases until the gap is closed or the budget is gone."""
        if self.core.node_count == 0:
            self._take(np.zeros(0, dtype=np.int64))
            self.bound = self.core.constant
            return
        if not len(self.core.item_nodes):
            self._eliminate()
        if len(self.core.tables) <= _EXACT_ENTRIES and not self._is_done():
            self._solve_exactly(Until(self.stop, share=_EXACT_SHARE))
        if not self.is_infeasible and self.bound <= self.cost - 1:
            self._bound_and_search()

    def _eliminate(self) -> None:
        choice = eliminate(self.core)
        if choice is not None:
            self._take(choice)
            self.bound = self.cost

    def _solve_exactly(self, stop: WorkStop) -> None:
        """The exact program, over the strategies that a few priced sweeps can't exclude."""
        certificate = self._narrow(stop)
        if self._is_done():
            return
        if certificate is None or self.choice is None:
            self._solve_whole(stop)
        else:
            self._solve_rest(self.choice, certificate, stop)

    def _solve_whole(self, stop: WorkStop) -> None:
        answer = solve_exactly(self.core, stop)
        self.bound = max(self.bound, answer.bound)
        if answer.status is ExactStatus.INFEASIBLE:
            self.is_infeasible = True
        elif answer.choice is not None:
            self._take(answer.choice)

    def _solve_rest(self, choice: IntArray, certificate: Certificate, stop: WorkStop) -> None:
        """The program over all that may be in a choice that costs no more than this one."""
        cost, every = self.cost, np.arange(self.core.node_count)
        slack = cost - certificate.bound
        part = reduced_part(self.core, choice, free=every, certificate=certificate, slack=slack, stop=stop)
        if part.core.node_count:
            found = solve_exactly(part.core, stop, reference=cost)
            inner, bound = found.choice, found.bound
        else:
            inner, bound = np.zeros(0, dtype=np.int64), part.core.constant
        if inner is not None:
            whole = part.whole(inner)
            if self.core.fits(whole):
                self._take(whole)
        self.bound = max(self.bound, min(bound + self.core.constant, cost))

    def _narrow(self, stop: WorkStop) -> Certificate | None:
        """Bounds and choices of a few priced sweeps, with slacks where a choice was found."""
        relaxation = Relaxation(self.core)
        for sweep in range(_NARROWING_SWEEPS):
            choice = relaxation.improve(self.cost if self.choice is not None else None)
            stop.spend(relaxation.work)
            self.sweeps += 1
            self.bound = max(self.bound, relaxation.bound)
            if self.core.fits(choice) or sweep % _NARROWING_REPAIR == 0:
                self._repair(choice)
            if self._is_done():
                return None
        if self.choice is None:
            return None
        certificate = relaxation.certificate()
        self.bound = max(self.bound, relaxation.bound, certificate.bound)
        return certificate

    def _bound_and_search(self) -> None:
        relaxation = Relaxation(self.core)
        self._look_for_a_first_choice(relaxation)
        self._improve_bound(relaxation, Until(self.stop, share=self._share_after(_BOUND_SHARE)))
        search: Search | None = None
        while not self._is_done():
            certificate = relaxation.certificate()
            self.bound = max(self.bound, relaxation.bound, certificate.bound)
            if search is None and self.choice is not None:
                search = Search(self.core, self.choice, self.cost, self.rng)
            if search is not None:
                search.run(Until(self.stop, share=self._share_after(_TURN_SEARCH)), certificate)
                self.windows = search.windows
                self._take(search.choice)
                self.bound = max(self.bound, search.bound)
            self._improve_bound(relaxation, Until(self.stop, share=self._share_after(_TURN_BOUND)))
            if search is not None and self.choice is not None:
                search.offer(self.choice)

    def _look_for_a_first_choice(self, relaxation: Relaxation) -> None:
        """One decoded choice, repaired, whatever is left of the budget: a poor answer is better than none."""
        if self.choice is None and not self.is_infeasible:
            self._repair(relaxation.improve(None))
            self.stop.spend(relaxation.work)
            self.bound = max(self.bound, relaxation.bound)

    def _share_after(self, share: float) -> float:
        return min(1.0, self.stop.used() + share)

    def _improve_bound(self, relaxation: Relaxation, stop: WorkStop) -> None:
        gap = self.cost - self.bound
        while not self._is_done():
            choice = relaxation.improve(self.cost if self.choice is not None else None)
            self.stop.spend(relaxation.work)
            self.bound = max(self.bound, relaxation.bound)
            self.sweeps += 1
            if self.core.fits(choice) or self.sweeps % _SWEEPS_PER_REPAIR == 0:
                self._repair(choice)
            if self.sweeps % _SWEEPS_PER_MARK == 0:
                left = self.cost - self.bound
                if stop() or left > (1 - _STALLED) * gap:
                    return
                gap = left

    def _repair(self, choice: IntArray) -> None:
        if not self.core.fits(choice):
            repaired = repair(self.core, choice, max_moves=2 * self.core.node_count)
            if repaired is None:
                return
            choice = repaired
        self._take(choice)

    def _take(self, choice: IntArray) -> None:
        cost = self.core.cost_of(choice)
        if not cost < self.cost:
            return
        if self.core.node_count and self.core.fits(choice):
            choice = descend(self.core, choice)
            cost = self.core.cost_of(choice)
        self.choice, self.cost = choice, cost
        share = min(self.stop.used(), 1.0)
        self.progress(Progress(done=round(100 * share), total=100, best=self.cost, bound=min(self.bound, self.cost)))

    def _is_done(self) -> bool:
        # Costs are integers: a bound above cost - 1 proves it.
        return self.is_infeasible or self.bound > self.cost - 1 or self.stop()


def _answer(problem: ShardingProblem, graph: WorkingGraph, run: _Run) -> ShardingAnswer:
    work = Work(run.core.node_count, len(run.core.tables), run.sweeps, run.windows)
    if run.is_infeasible:
        return ShardingAnswer(None, None, None, None, Status.INFEASIBLE, work)
    bound = math.ceil(run.bound - max(_TOLERANCE, abs(run.bound) * _RELATIVE_TOLERANCE))
    if run.choice is None:
        return ShardingAnswer(None, None, bound, None, Status.UNKNOWN, work)
    full = np.zeros(problem.node_count, dtype=np.int64)
    full[run.core.nodes] = run.choice
    solution = graph.lift(full)
    cost = problem.cost_of(solution)
    assert cost is not None and problem.fits(solution), "the engine's own answer breaks the problem's constraints"
    bound = min(bound, cost)
    gap = (cost - bound) / cost if cost else 0.0
    status = Status.OPTIMAL if bound == cost else Status.FEASIBLE
    return ShardingAnswer(tuple(solution.tolist()), cost, bound, gap, status, work)
