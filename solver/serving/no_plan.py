"""The answer that no form of a serving plan keeps the promise."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import SearchStats
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.table import space_of
from meshwright.solver.serving.workers.answer import infeasible_plan


def infeasible_serving(request: ServingRequest, reason: Reason, stats: SearchStats, notes: Sequence[str] = ()) -> Plan:
    """The answer that there is no plan in the space that the request's forms make, and why."""
    return infeasible_plan(request, reason, stats, space=space_of(request), notes=notes)
