"""Plans that the independent checker accepts."""

from __future__ import annotations

from solver.control import ignore_progress, never_stop
from solver.plan import Plan
from solver.request import PlanRequest
from solver.training import plan_training
from solver.verify import check


def planned(asked: PlanRequest) -> Plan:
    """The plan of a training request, searched to the end; nothing in it breaks a rule."""
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    violations = check(plan, asked)
    assert violations == (), violations
    return plan
