"""Plans that the independent checker accepts."""

from __future__ import annotations

from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check


def planned(asked: TrainingRequest) -> Plan:
    """The plan of a training request, searched to the end; nothing in it breaks a rule."""
    plan = plan_training(asked, stop=never_stop, progress=ignore_progress)
    violations = check(plan, asked)
    assert violations == (), violations
    return plan
