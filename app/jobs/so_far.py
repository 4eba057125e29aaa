"""The answer of a solve that was ended at a limit: the best plan that it had told of, or that its question is open."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.errors import SolveMemoryError
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Progress
from meshwright.solver.problem.request import PlanRequest

_TIME_REMEDIES = ("raise search.time_limit_s", "restrict the space in 'search'", "leave search.space launchable")
_MEMORY_REMEDIES = ("restrict the space in 'search'", "raise MESHWRIGHT_MAX_SOLVE_MEMORY_BYTES of the service")


class SoFar:
    """The reports of a running solve: its best plan, which the child's checker has passed, and how many candidates it took."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._considered = 0

    def hear(self, progress: Progress) -> None:
        """Take note of a moment of the search."""
        self._considered = max(self._considered, progress.done)
        plan = None if progress.incumbent is None else progress.incumbent()
        if plan is not None:
            self._plan = plan

    def answer(self, request: PlanRequest, why: MeshwrightError) -> Plan:
        """The best plan so far, feasible with the gap it had then; else the answer that nothing is found yet."""
        if self._plan is not None:
            return best_so_far(self._plan, str(why))
        from meshwright.solver.api import undecided

        remedies = _MEMORY_REMEDIES if isinstance(why, SolveMemoryError) else _TIME_REMEDIES
        plan = undecided(request, considered=self._considered, remedies=remedies)
        return replace(plan, notes=(*plan.notes, str(why)))


def best_so_far(plan: Plan, why: str) -> Plan:
    """The best plan of a search that was ended, as its answer: feasible with the gap it had then."""
    # Its search may have been at its end for all we know, but nobody proved that here.
    certificate = plan.certificate
    if certificate.status is Status.OPTIMAL:
        certificate = replace(certificate, status=Status.FEASIBLE)
    return replace(plan, certificate=certificate, notes=(*plan.notes, f"the best plan so far: {why}"))
