"""The candidate of an infeasible request that comes closest to fitting."""

from __future__ import annotations

import heapq

from meshwright.solver.control import SearchStopped, Stop, heed
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.stage_table import Sharding
from meshwright.solver.training.search.bounds import Member, least_shortfall_bytes
from meshwright.solver.training.search.expansion import expand
from meshwright.solver.training.search.partition import Shortfall, smallest_shortfall
from meshwright.solver.training.space.candidates import Candidate, families


def closest_to_fitting(request: TrainingRequest, costs: TrainingCosts, *, stop: Stop) -> tuple[Candidate, Shortfall] | None:
    """Of an infeasible request, the candidate that lacks the least memory on its fullest stage; None if none divides."""
    waiting: list[tuple[float, int, Candidate, Sharding]] = []
    try:
        with costs.stopped_by(stop):
            for family in families(request):
                heed(stop)
                for node in expand(family, costs):
                    for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                        waiting.append((least_shortfall_bytes(member), len(waiting), member.candidate, member.sharding))
    except SearchStopped:
        return None
    heapq.heapify(waiting)
    best: tuple[Candidate, Shortfall] | None = None
    while waiting and not stop():
        bound, _, candidate, sharding = heapq.heappop(waiting)
        if best is not None and bound >= best[1].lacking_bytes:
            break
        tables = costs.stage_tables(candidate, sharding, costs.stage_kinds(candidate))
        shortfall = smallest_shortfall(candidate, tables)
        if best is None or shortfall.lacking_bytes < best[1].lacking_bytes:
            best = (candidate, shortfall)
    return best
