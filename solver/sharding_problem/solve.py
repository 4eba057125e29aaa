"""The sharding engine: one strategy per operator of a whole graph, within memory, with a certified bound.

Reduce exactly; solve a small core exactly; bound a large one by priced message passing, then search it by exact
windows, going back and forth between the two. Every answer is checked against the problem before it leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from meshwright.solver.control import OnProgress, Progress, ignore_progress
from meshwright.solver.sharding_problem.core import Core, core_of
from meshwright.solver.sharding_problem.elimination import eliminate
from meshwright.solver.sharding_problem.exact import ExactStatus, solve_exactly
from meshwright.solver.sharding_problem.local_moves import TreeMoves, descend, repair
from meshwright.solver.sharding_problem.problem import IntArray, ShardingProblem
from meshwright.solver.sharding_problem.reductions import reduce_problem, reduced_part
from meshwright.solver.sharding_problem.relaxation import DualCertificate, Relaxation
from meshwright.solver.sharding_problem.work import Until, WorkStop
from meshwright.solver.sharding_problem.working_graph import FloatArray, ProvenInfeasible, WorkingGraph

# Large-neighbourhood search: exact moves over small trees and exact subproblems over parts of a core, by certified slacks.
#
# The slacks of the current choice add up to its distance from the bound, so parts where they are zero can't improve and
# windows start where they are large. Within a window strategies with large slack are left out, as many as it takes for
# the reduced subproblem to be one that can be solved.

_FIRST_ENTRIES, _FEWEST_ENTRIES, _MOST_ENTRIES = 60_000.0, 8_000.0, 1e6
"""Table entries that a window may hold before its reductions; how many remain after them varies much, so this adapts."""

_SHRINK, _GROW, _EASY = 0.7, 1.4, 0.2
"""Windows shrink after one that was given up and grow after one that took less than this share of its work."""

_WINDOW_WORK = 3e8
"""Work after which a window is given up: about 2 s."""

_MOST_REDUCED_ENTRIES = 25_000
"""Windows that are larger after their reductions are not tried: HiGHS rarely closes them within their work."""

_WHOLE = 4
"""Factor on both limits for a window over the whole core."""

_CURIOSITY, _MEMORY = 0.3, 0.9
"""Chance of a window picked whatever its record, and how much of the record stays after a window."""

_BUILD_WORK_PER_NODE, _BUILD_WORK_PER_ENTRY = 40_000.0, 4.0
"""Work of building and reducing a window, measured: about 0.2 ms a node."""


class _Kind(StrEnum):
    NEIGHBORS = "neighbors"
    STRETCH = "stretch"
    MOMENT = "moment"
    WHOLE = "whole"
    KICKS = "kicks"
    TREES = "trees"


_PARTS = (_Kind.NEIGHBORS, _Kind.STRETCH, _Kind.MOMENT)
_WINDOWS: list[tuple[_Kind, int]] = [(kind, count) for kind in _PARTS for count in (60, 150, 400, 1000)]
_WINDOWS += [(_Kind.KICKS, 0), (_Kind.WHOLE, 0), (_Kind.TREES, 0)]
"""Ways to pick a window, and about how many nodes each takes; the last are many small trees, one after the other, and kicks
the same after some moves under disturbed costs."""

_TREES_AT_ONCE, _TREES_PER_ASK = 4000, 500
"""Trees tried in one turn, about 0.5 s, and between two looks at the stopping rule."""

_KICKS_AT_ONCE, _TREES_PER_KICK, _KICK = 3, 3, 0.5
"""Kicks of one turn, turns of trees after each, and the mean of what a kick adds to every strategy's cost, in costs of a
mean node. On contest instance N with 1.3 times its memory, 6 s of kicks at 0.1, 0.5 and 2 reached 1.175, 1.166 and 1.171 of
its best known cost, none 1.190."""


@dataclass
class SearchState:
    """State of a search: the best choice so far, how large its windows are, and the bound that whole windows prove."""

    core: Core
    choice: IntArray
    cost: float
    rng: np.random.Generator
    bound: float = 0.0
    windows: int = 0
    entries: dict[int, float] = field(default_factory=dict)
    fatigue: FloatArray = field(init=False)
    gains: FloatArray = field(init=False)
    works: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.fatigue = np.zeros(self.core.node_count)
        self.gains = np.zeros(len(_WINDOWS))
        self.works = np.ones(len(_WINDOWS))
        self.trees = TreeMoves(self.core)

    def run(self, stop: WorkStop, certificate: DualCertificate) -> None:
        """Improve ``choice`` window by window until stopped or until every slack is zero."""
        while not stop() and self.cost > max(certificate.bound, self.bound):
            pick = self._pick_window()
            cost, budget = self.cost, Until(stop)
            if _WINDOWS[pick][0] is _Kind.TREES:
                self._move_trees(certificate, budget)
            elif _WINDOWS[pick][0] is _Kind.KICKS:
                self._kick(certificate, budget)
            else:
                free = self._window(*_WINDOWS[pick], certificate)
                self._solve_window(free, certificate, budget)
                self.fatigue[free] = 0.0 if self.cost < cost else self.fatigue[free] + 1.0
            self.gains[pick] = _MEMORY * self.gains[pick] + (cost - self.cost)
            self.works[pick] = _MEMORY * self.works[pick] + budget.spent
            self.windows += 1

    def _pick_window(self) -> int:
        """Trees first, the whole core next, then mostly what gained most for its work."""
        if self.windows < 2:
            return len(_WINDOWS) - 1 - self.windows
        rates = self.gains / self.works
        if rates.sum() <= 0 or self.rng.random() < _CURIOSITY:
            return int(self.rng.integers(len(_WINDOWS)))
        return int(self.rng.choice(len(_WINDOWS), p=rates / rates.sum()))

    def _window(self, kind: _Kind, count: int, certificate: DualCertificate) -> IntArray:
        core = self.core
        if kind is _Kind.WHOLE or count >= core.node_count:
            return np.arange(core.node_count)
        weight = _current_slacks(core, self.choice, certificate) / (1.0 + self.fatigue) ** 2
        total = float(weight.sum())
        chances = weight / total if total > 0 else np.full(core.node_count, 1 / core.node_count)
        seed = int(self.rng.choice(core.node_count, p=chances))
        if kind is _Kind.STRETCH:
            first = min(max(seed - int(self.rng.integers(count)), 0), core.node_count - count)
            return np.arange(first, first + count)
        if kind is _Kind.MOMENT and len(core.item_nodes):
            return self._alive_with(seed, count)
        return self._around(seed, count)

    def _around(self, seed: int, count: int) -> IntArray:
        """Nodes near the seed, breadth first in random order; a hub shows a random part of its neighbours."""
        core = self.core
        taken = {seed}
        queue = [seed]
        for i in queue:
            ends = np.unique(core.link_ends[core.link_offsets[i] : core.link_offsets[i + 1]])
            for j in self.rng.permutation(ends)[:12].tolist():
                if j not in taken:
                    taken.add(j)
                    queue.append(j)
            if len(taken) >= count:
                break
        return np.asarray(sorted(taken), dtype=np.int64)

    def _alive_with(self, seed: int, count: int) -> IntArray:
        """Nodes that hold memory at a time when the seed does, the seed's neighbours, and no more than count."""
        core = self.core
        mine = np.flatnonzero(core.item_nodes == seed)
        item = int(self.rng.choice(mine)) if len(mine) else int(self.rng.integers(len(core.item_nodes)))
        load = core.load_of(self.choice)
        first, last = core.item_spans[item]
        t = first + int(np.argmax(load[first:last] - core.capacity[first:last]))
        alive = np.unique(core.item_nodes[(core.item_spans[:, 0] <= t) & (t < core.item_spans[:, 1])])
        around = self._around(seed, count // 3)
        picked = self.rng.permutation(alive)[: count - len(around)]
        return np.unique(np.concatenate((around, picked)))

    def _solve_window(self, free: IntArray, certificate: DualCertificate, stop: WorkStop) -> None:
        is_whole = len(free) == self.core.node_count
        size = len(free).bit_length()
        target = self.entries.setdefault(size, _FIRST_ENTRIES * (_WHOLE if is_whole else 1))
        slack = self._affordable_slack(free, certificate, target)
        stop.spend(_BUILD_WORK_PER_NODE * len(free) + _BUILD_WORK_PER_ENTRY * target)
        part = reduced_part(self.core, self.choice, free=free, certificate=certificate, slack=slack, stop=stop)
        inner = np.zeros(0, dtype=np.int64)
        factor = _WHOLE if is_whole else 1
        budget = Until(stop, work_limit=_WINDOW_WORK * factor)
        if len(part.core.tables) > _MOST_REDUCED_ENTRIES * factor:
            self.entries[size] = max(_FEWEST_ENTRIES, target * _SHRINK)
            return
        is_solved = True
        if part.core.node_count:
            answer = solve_exactly(part.core, budget, reference=self.cost)
            is_solved = answer.status is ExactStatus.OPTIMAL
            if budget.spent >= budget.work_limit:
                self.entries[size] = max(_FEWEST_ENTRIES, target * _SHRINK)
            if answer.choice is None:
                return
            inner = answer.choice
        gap = self.cost - certificate.bound
        if budget.spent < _EASY * budget.work_limit and slack < gap:
            self.entries[size] = min(_MOST_ENTRIES, target * _GROW)
        self.offer(part.whole(inner))
        if is_whole and is_solved and slack >= gap:
            # What was left out costs more than the choice before did.
            self.bound = max(self.bound, self.cost)

    def _move_trees(self, certificate: DualCertificate, stop: WorkStop) -> None:
        for _ in range(_TREES_AT_ONCE // _TREES_PER_ASK):
            choice, work = self.trees.improve(self.choice, certificate.memory, self.rng, moves=_TREES_PER_ASK)
            stop.spend(work)
            self.offer(choice)
            if stop():
                return

    def _kick(self, certificate: DualCertificate, stop: WorkStop) -> None:
        """Moves under disturbed costs leave a local optimum, moves under the true ones find another (iterated local search)."""
        for _ in range(_KICKS_AT_ONCE):
            mean = _KICK * self.cost / self.core.node_count
            disturbed = replace(self.core, cost=self.core.cost + self.rng.exponential(mean, len(self.core.cost)))
            choice, work = TreeMoves(disturbed).improve(self.choice, certificate.memory, self.rng, moves=_TREES_PER_ASK)
            stop.spend(work)
            for _ in range(_TREES_PER_KICK):
                choice, work = self.trees.improve(choice, certificate.memory, self.rng, moves=_TREES_PER_ASK)
                stop.spend(work)
            self.offer(choice)
            if stop():
                return

    def offer(self, candidate: IntArray) -> bool:
        """Take the candidate if it fits and costs no more; True if it costs less."""
        cost = self.core.cost_of(candidate)
        if cost > self.cost or not self.core.fits(candidate):
            return False
        gained = cost < self.cost
        self.choice, self.cost = candidate, cost
        return gained

    def _affordable_slack(self, free: IntArray, certificate: DualCertificate, target: float) -> float:
        """Largest slack, up to the whole gap, that leaves at most about ``target`` entries between free nodes."""
        core = self.core
        is_free = np.zeros(core.node_count, dtype=bool)
        is_free[free] = True
        inside = is_free[core.edge_nodes[:, 0]] & is_free[core.edge_nodes[:, 1]]
        first, second = core.edge_nodes[inside, 0], core.edge_nodes[inside, 1]
        high = max(self.cost - certificate.bound, 0.0)

        def entries_at(slack: float) -> float:
            allowed = np.add.reduceat(certificate.strategy <= slack, core.offsets[:-1], dtype=np.int64)
            width = np.maximum(allowed, 1)
            return float((width[first] * width[second]).sum())

        if entries_at(high) <= target:
            return high
        low = 0.0
        for _ in range(12):
            # Slacks span many orders of magnitude below the gap: split them geometrically.
            middle = high * 0.1 if low == 0.0 else float(np.sqrt(low * high))
            if entries_at(middle) <= target:
                low = middle
            else:
                high = middle
        return low


def _current_slacks(core: Core, choice: IntArray, certificate: DualCertificate) -> FloatArray:
    """Slack that the choice's edges (and lone nodes) hold, summed at each node, shape (n,)."""
    slack = np.maximum(certificate.edge[core.chosen_pairs(choice)], 0.0)
    lone = np.diff(core.link_offsets) == 0
    of_lone = np.where(lone, np.maximum(certificate.strategy[core.offsets[:-1] + choice], 0.0), 0.0)
    ends = core.edge_nodes.T.ravel()
    summed: FloatArray = of_lone + np.bincount(ends, np.concatenate((slack, slack)), core.node_count)
    return summed


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


class SolveStatus(StrEnum):
    """The knowledge of a problem after a solve."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class SolveWork:
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
    status: SolveStatus
    work: SolveWork


def solve(problem: ShardingProblem, *, stop: WorkStop, seed: int = 0, progress: OnProgress | None = None) -> ShardingAnswer:
    """Solve to optimality, or as far as ``stop`` allows.

    Deterministic when ``stop`` is (a ``WorkLimit``, or ``NoLimit``). ``seed`` picks the windows of the search.
    """
    try:
        graph = reduce_problem(problem, stop)
    except ProvenInfeasible:
        return ShardingAnswer(None, None, None, None, SolveStatus.INFEASIBLE, SolveWork(0, 0, 0, 0))
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
            self._prove(self.core.constant)
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
            self._prove(self.cost)

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

    def _solve_rest(self, choice: IntArray, certificate: DualCertificate, stop: WorkStop) -> None:
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

    def _narrow(self, stop: WorkStop) -> DualCertificate | None:
        """Bounds and choices of a few priced sweeps, with slacks where a choice was found."""
        relaxation = Relaxation(self.core)
        for sweep in range(_NARROWING_SWEEPS):
            choice = relaxation.improve(self.cost if self.choice is not None else None)
            stop.spend(relaxation.work)
            self.sweeps += 1
            self._prove(relaxation.bound)
            if self.core.fits(choice) or sweep % _NARROWING_REPAIR == 0:
                self._repair(choice)
            if self._is_done():
                return None
        if self.choice is None:
            return None
        certificate = relaxation.certificate()
        self._prove(max(relaxation.bound, certificate.bound))
        return certificate

    def _bound_and_search(self) -> None:
        relaxation = Relaxation(self.core)
        self._look_for_a_first_choice(relaxation)
        self._improve_bound(relaxation, Until(self.stop, share=self._share_after(_BOUND_SHARE)))
        search: SearchState | None = None
        while not self._is_done():
            certificate = relaxation.certificate()
            self._prove(max(relaxation.bound, certificate.bound))
            if search is None and self.choice is not None:
                search = SearchState(self.core, self.choice, self.cost, self.rng)
            if search is not None:
                search.run(Until(self.stop, share=self._share_after(_TURN_SEARCH)), certificate)
                self.windows = search.windows
                self._take(search.choice)
                self._prove(search.bound)
            self._improve_bound(relaxation, Until(self.stop, share=self._share_after(_TURN_BOUND)))
            if search is not None and self.choice is not None:
                search.offer(self.choice)

    def _look_for_a_first_choice(self, relaxation: Relaxation) -> None:
        """One decoded choice, repaired, whatever is left of the budget: a poor answer is better than none."""
        if self.choice is None and not self.is_infeasible:
            self._repair(relaxation.improve(None))
            self.stop.spend(relaxation.work)
            self._prove(relaxation.bound)

    def _prove(self, bound: float) -> None:
        """Raise the bound; an infinite one proves that nothing is allowed, which reductions that were stopped left open."""
        self.bound = max(self.bound, bound)
        self.is_infeasible |= self.bound == math.inf

    def _share_after(self, share: float) -> float:
        return min(1.0, self.stop.used() + share)

    def _improve_bound(self, relaxation: Relaxation, stop: WorkStop) -> None:
        gap = self.cost - self.bound
        while not self._is_done():
            choice = relaxation.improve(self.cost if self.choice is not None else None)
            self.stop.spend(relaxation.work)
            self._prove(relaxation.bound)
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
    work = SolveWork(run.core.node_count, len(run.core.tables), run.sweeps, run.windows)
    if run.is_infeasible:
        return ShardingAnswer(None, None, None, None, SolveStatus.INFEASIBLE, work)
    bound = math.ceil(run.bound - max(_TOLERANCE, abs(run.bound) * _RELATIVE_TOLERANCE))
    if run.choice is None:
        return ShardingAnswer(None, None, bound, None, SolveStatus.UNKNOWN, work)
    full = np.zeros(problem.node_count, dtype=np.int64)
    full[run.core.nodes] = run.choice
    solution = graph.lift(full)
    cost = problem.cost_of(solution)
    assert cost is not None and problem.fits(solution), "the engine's own answer breaks the problem's constraints"
    bound = min(bound, cost)
    gap = (cost - bound) / cost if cost else 0.0
    status = SolveStatus.OPTIMAL if bound == cost else SolveStatus.FEASIBLE
    return ShardingAnswer(tuple(solution.tolist()), cost, bound, gap, status, work)
