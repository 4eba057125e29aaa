"""Shared by the tests of web actions and others: Here."""

from __future__ import annotations

from meshwright.app.base.solving import OnBeat, ignore_beat, solve_here
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest


class Here:
    """The real solver, in a thread of this process."""

    def __call__(self, request: PlanRequest, on_beat: OnBeat = ignore_beat) -> Plan:
        return solve_here(request)

    def close(self) -> None:
        pass
