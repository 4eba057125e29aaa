"""Plans near a known one: the same degrees with other micro-batches, schedules, places of state and recompute modes.

A search that begins with a launchable plan looks here first: best-first search opens what has the lowest bound, and on large
clusters comes to plans that fit only late.
"""

from __future__ import annotations

import heapq
import math

from meshwright.solver.control import SearchStopped, Stop, heed
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import evaluate_decision
from meshwright.solver.training.search.bounds import Member, family_bound_s, least_shortfall_bytes, member_bound_s
from meshwright.solver.training.search.expansion import expand
from meshwright.solver.training.search.partition import Shortfall, cut
from meshwright.solver.training.search.search_result import RELATIVE_TIE, Solved
from meshwright.solver.training.space.candidates import families

SHARE = 1 / 8
"""Share of the time left that may go to plans near a known one."""

MAX_MEMBERS = 300
"""Members near a known plan whose stages are cut, at most: about a second."""


def best_near(request: TrainingRequest, costs: TrainingCosts, known: Solved, *, stop: Stop) -> Solved:
    """The fastest of a known plan and those near it that were looked at; the known one where none is faster."""
    mesh, best, n_solved = known.decision.candidate.mesh, known, 0
    try:
        with costs.stopped_by(stop):
            waiting = _members_near(request, costs, known, stop)
            while waiting and n_solved < MAX_MEMBERS and waiting[0][0] < best.value * (1 - RELATIVE_TIE):
                heed(stop)
                _, _, member = heapq.heappop(waiting)
                n_solved += 1
                decision = cut(member, costs)
                if isinstance(decision, Shortfall):
                    continue
                cost = evaluate_decision(decision, member.tables)
                if cost.fits and cost.step_time_s < best.value * (1 - RELATIVE_TIE):
                    best = Solved(decision, cost, cost.step_time_s)
    except SearchStopped:
        pass
    assert best.decision.candidate.mesh == mesh
    return best


def _members_near(request: TrainingRequest, costs: TrainingCosts, known: Solved, stop: Stop) -> list[tuple[float, int, Member]]:
    """Members with a known plan's degrees that may fit and may be faster, as a heap by their bounds."""
    mesh = known.decision.candidate.mesh
    waiting: list[tuple[float, int, Member]] = []
    for family in families(request):
        if family.mesh != mesh:
            continue
        for choice in family.by_recompute():
            bound_s = family_bound_s(choice, costs)
            if bound_s is None or bound_s >= known.value:
                continue
            for node in expand(choice, costs):
                heed(stop)
                for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                    bound_s = member_bound_s(member)
                    if bound_s < known.value and not math.isinf(bound_s) and least_shortfall_bytes(member) <= 0:
                        waiting.append((bound_s, len(waiting), member))
    heapq.heapify(waiting)
    return waiting
