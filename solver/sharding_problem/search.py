"""Large-neighbourhood search: exact moves over small trees and exact subproblems over parts of a core, by certified slacks.

The slacks of the current choice add up to its distance from the bound, so parts where they are zero can't improve and
windows start where they are large. Within a window strategies with large slack are left out, as many as it takes for
the reduced subproblem to be one that can be solved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from meshwright.solver.sharding_problem.core import Core
from meshwright.solver.sharding_problem.exact import ExactStatus, solve_exactly
from meshwright.solver.sharding_problem.problem import IntArray
from meshwright.solver.sharding_problem.relaxation import Certificate
from meshwright.solver.sharding_problem.subproblem import reduced_part
from meshwright.solver.sharding_problem.tree_moves import TreeMoves
from meshwright.solver.sharding_problem.work import Until, WorkStop
from meshwright.solver.sharding_problem.working_graph import FloatArray

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
class Search:
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

    def run(self, stop: WorkStop, certificate: Certificate) -> None:
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

    def _window(self, kind: _Kind, count: int, certificate: Certificate) -> IntArray:
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

    def _solve_window(self, free: IntArray, certificate: Certificate, stop: WorkStop) -> None:
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

    def _move_trees(self, certificate: Certificate, stop: WorkStop) -> None:
        for _ in range(_TREES_AT_ONCE // _TREES_PER_ASK):
            choice, work = self.trees.improve(self.choice, certificate.memory, self.rng, moves=_TREES_PER_ASK)
            stop.spend(work)
            self.offer(choice)
            if stop():
                return

    def _kick(self, certificate: Certificate, stop: WorkStop) -> None:
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

    def _affordable_slack(self, free: IntArray, certificate: Certificate, target: float) -> float:
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


def _current_slacks(core: Core, choice: IntArray, certificate: Certificate) -> FloatArray:
    """Slack that the choice's edges (and lone nodes) hold, summed at each node, shape (n,)."""
    slack = np.maximum(certificate.edge[core.chosen_pairs(choice)], 0.0)
    lone = np.diff(core.link_offsets) == 0
    of_lone = np.where(lone, np.maximum(certificate.strategy[core.offsets[:-1] + choice], 0.0), 0.0)
    ends = core.edge_nodes.T.ravel()
    summed: FloatArray = of_lone + np.bincount(ends, np.concatenate((slack, slack)), core.node_count)
    return summed
