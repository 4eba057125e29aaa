"""The launchable plan of a request for the free space whose search had found nothing when a third of its time was over.

Every launchable plan is one of the free space; a bound of the free space holds for both.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats, Status
from meshwright.solver.control import OnProgress, Progress, Stop
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.report.plan_report import feasible_plan, space_text
from meshwright.solver.training.search.best_first import SearchResult, search

NOTE = "the free space had shown no plan when a third of the time was over: this is the best launchable plan found in the rest"


def launchable_plan(
    request: TrainingRequest, free: SearchResult, *, slo_limit_s: float, stop: Stop, progress: OnProgress
) -> Plan | None:
    """The best launchable plan that is found before ``stop``, under the bound of the free space; None where there is none."""
    inside = replace(request, search=replace(request.search, space=Space.LAUNCHABLE))
    costs = TrainingCosts(inside)

    def described(found: SearchResult) -> Plan | None:
        if found.best is None or found.best.value > slo_limit_s:
            return None
        plan = feasible_plan(inside, costs, found)
        objective, bound = found.best.value, min(found.best.value, free.bound or 0.0)
        gap = (objective - bound) / objective
        certificate = replace(plan.certificate, status=Status.FEASIBLE, bound=bound, gap=gap, space=space_text(request))
        # Counted are candidates of the declared space: these are among them.
        stats = SearchStats(free.n_candidates, free.n_solved, 0.0)
        return replace(plan, certificate=certificate, search=stats, notes=(*plan.notes, NOTE))

    listener = progress

    def tell(progress: Progress) -> None:
        best = progress.best
        listener(replace(progress, bound=None if best is None else min(best, free.bound or 0.0)))

    try:
        found = search(inside, costs, stop=stop, progress=tell, limit=slo_limit_s, describe=described)
    except WorkloadError:
        # What the request restricts the free space to is nothing that a launcher runs.
        return None
    return described(found)
