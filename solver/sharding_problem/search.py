"""Large-neighbourhood search: exact subproblems over parts of a core, guided by certified slacks.

The slacks of the current choice add up to its distance from the bound, so parts where they are zero can't improve and
windows start where they are large. Within a window strategies with large slack are left out, as many as it takes for
the reduced subproblem to be one that can be solved.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from solver.sharding_problem.core import Core, core_of
from solver.sharding_problem.exact import ExactStatus, solve_exactly
from solver.sharding_problem.problem import IntArray
from solver.sharding_problem.reductions import reduce_graph
from solver.sharding_problem.relaxation import Certificate
from solver.sharding_problem.subproblem import restricted, strategies_kept
from solver.sharding_problem.work import Until, WorkStop
from solver.sharding_problem.working_graph import FloatArray, ProvenInfeasible

_FIRST_ENTRIES, _FEWEST_ENTRIES, _MOST_ENTRIES = 60_000, 8_000, 400_000
"""Table entries that a window may hold before its reductions: HiGHS closes a few 10^4 reduced entries in about 1 s."""

_WINDOW_WORK = 1.5e8
"""Work after which a window is given up: about 1 s."""

_BUILD_WORK_PER_NODE, _BUILD_WORK_PER_ENTRY = 40_000.0, 4.0
"""Work of building and reducing a window, measured: about 0.2 ms a node."""


class _Kind(StrEnum):
    NEIGHBORS = "neighbors"
    STRETCH = "stretch"
    MOMENT = "moment"
    ALL = "all"


@dataclass
class Search:
    """State of a search: the best choice so far and how large its windows are."""

    core: Core
    choice: IntArray
    cost: float
    rng: np.random.Generator
    entries: float = _FIRST_ENTRIES
    windows: int = 0

    def run(self, stop: WorkStop, certificate: Certificate) -> None:
        """Improve ``choice`` window by window until stopped or until every slack is zero."""
        sizes = self.core.node_count
        while not stop() and self.cost > certificate.bound:
            kind = self._pick_kind()
            count = sizes if kind is _Kind.ALL else int(min(sizes, self.rng.choice([60, 150, 400, 1000])))
            free = self._window(kind, count, certificate)
            self._solve_window(free, certificate, stop)
            self.windows += 1

    def _pick_kind(self) -> _Kind:
        kinds = list(_Kind)
        if self.windows == 0:
            return _Kind.ALL
        return kinds[int(self.rng.choice(len(kinds), p=[0.35, 0.35, 0.2, 0.1]))]

    def _window(self, kind: _Kind, count: int, certificate: Certificate) -> IntArray:
        core = self.core
        if kind is _Kind.ALL or count >= core.node_count:
            return np.arange(core.node_count)
        weight = current_slacks(core, self.choice, certificate)
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
        target = self.entries * (3 if len(free) == self.core.node_count else 1)
        slack = self._affordable_slack(free, certificate, target)
        graph = restricted(self.core, self.choice, free=free, certificate=certificate, slack=slack)
        stop.spend(_BUILD_WORK_PER_NODE * len(free) + _BUILD_WORK_PER_ENTRY * target)
        try:
            reduce_graph(graph)
        except ProvenInfeasible as error:
            raise AssertionError("a window always holds the current choice") from error
        part = core_of(graph)
        inner = np.zeros(len(free), dtype=np.int64)
        if part.node_count:
            budget = Until(stop, work_limit=_WINDOW_WORK * (4 if len(free) == self.core.node_count else 1))
            answer = solve_exactly(part, budget, reference=self.cost)
            self._resize(answer.status, budget)
            if answer.choice is None:
                return
            inner[part.nodes] = answer.choice
        kept = strategies_kept(self.core, self.choice, free=free, certificate=certificate, slack=slack)
        chosen = graph.lift(inner)
        candidate = self.choice.copy()
        candidate[free] = [states[s] for states, s in zip(kept, chosen.tolist(), strict=True)]
        self.offer(candidate)

    def offer(self, candidate: IntArray) -> bool:
        """Take the candidate if it fits and costs no more; True if it costs less."""
        cost = self.core.cost_of(candidate)
        if cost > self.cost or not self.core.fits(candidate):
            return False
        gained = cost < self.cost
        self.choice, self.cost = candidate, cost
        return gained

    def _resize(self, status: ExactStatus, budget: Until) -> None:
        if status is ExactStatus.STOPPED:
            self.entries = max(_FEWEST_ENTRIES, self.entries * 0.8)
        elif budget.used() < 0.2:
            self.entries = min(_MOST_ENTRIES, self.entries * 1.1)

    def _affordable_slack(self, free: IntArray, certificate: Certificate, target: float) -> float:
        """Largest slack, up to the whole gap, that leaves at most about ``target`` entries between free nodes."""
        core = self.core
        is_free = np.zeros(core.node_count, dtype=bool)
        is_free[free] = True
        inside = is_free[core.edge_nodes[:, 0]] & is_free[core.edge_nodes[:, 1]]
        first, second = core.edge_nodes[inside, 0], core.edge_nodes[inside, 1]
        high = max(self.cost - certificate.bound, 0.0)

        def entries_at(slack: float) -> float:
            allowed = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(certificate.strategy <= slack)))
            width = np.maximum(allowed[core.offsets[1:]] - allowed[core.offsets[:-1]], 1)
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


def current_slacks(core: Core, choice: IntArray, certificate: Certificate) -> FloatArray:
    """Slack that the choice's edges (and lone nodes) hold, summed at each node, shape (n,)."""
    first, second = core.edge_nodes[:, 0], core.edge_nodes[:, 1]
    entries = core.edge_offsets[:-1] + choice[first] * np.diff(core.offsets)[second] + choice[second]
    slack = np.maximum(certificate.edge[entries], 0.0)
    at_nodes = np.bincount(first, slack, core.node_count) + np.bincount(second, slack, core.node_count)
    lone = np.diff(core.link_offsets) == 0
    summed: FloatArray = at_nodes + np.where(lone, np.maximum(certificate.strategy[core.offsets[:-1] + choice], 0), 0)
    return summed
