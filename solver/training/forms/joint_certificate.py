"""What searches of wider spaces say of the plan that they began with: a certificate of both, and which of the two lost."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, RunnerUp, Status
from meshwright.solver.training.report.runners_up import MAX_RUNNERS_UP
from meshwright.solver.training.search.best_first import RELATIVE_TIE


def widened(given: Certificate, objective_s: float, bound_s: float, *, by: str) -> Certificate:
    """Certificate of a step time and of a bound, no more than it, over the given space and what it was widened ``by``."""
    gap = (objective_s - bound_s) / objective_s
    proven = gap <= RELATIVE_TIE
    return Certificate(
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        objective=objective_s,
        bound=objective_s if proven else bound_s,
        gap=0.0 if proven else gap,
        unit="s",
        space=f"{given.space}; or {by}",
    )


def instead_of(given: Plan, best: Plan, name: str) -> Plan:
    """The best plan with the given one, which is called so, as its first runner-up."""
    given_s = given.certificate.objective
    why = "nothing fits or meets the SLO" if given_s is None else f"takes {given_s:.4g} s a step"
    losers = (RunnerUp(name, given_s, why), *given.runners_up)
    return replace(best, runners_up=losers[:MAX_RUNNERS_UP])
