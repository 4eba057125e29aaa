"""The certificate of searches of wider spaces and of the plan that they began with, and the name of the one that lost."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Certificate, RunnerUp, Status, status_without_plan, unfinished_search
from meshwright.solver.training.report.equals import equal_form
from meshwright.solver.training.report.plan_report import MAX_RUNNERS_UP
from meshwright.solver.training.search.search_result import RELATIVE_TIE

UNFINISHED_REMEDIES = ("raise search.time_limit_s or search.max_candidates", "restrict the space in 'search'")
"""The remedies for a search that was stopped before it decided."""


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


def bounded_by(plan: Plan, floor_s: float) -> Plan:
    """The plan under a bound that holds for every plan, where its certificate has proven less."""
    given = plan.certificate
    if given.status is not Status.FEASIBLE or given.objective is None or given.bound is None or given.bound >= floor_s:
        return plan
    bound_s = min(floor_s, given.objective)
    return replace(plan, certificate=replace(given, bound=bound_s, gap=(given.objective - bound_s) / given.objective))


def still_open(given: Plan) -> Plan:
    """The answer where the given space holds no plan and the search of the wider one was stopped: undecided."""
    reason = unfinished_search(
        given.search.candidates, looked_for="a plan that fits and meets the SLO", remedies=UNFINISHED_REMEDIES
    )
    certificate = replace(given.certificate, status=status_without_plan(reason))
    return replace(given, certificate=certificate, reason=reason)


def instead_of(given: Plan, best: Plan, name: str) -> Plan:
    """The best plan with the given one, which is called so, as its first runner-up, and as its equal where noise allows."""
    given_s = given.certificate.objective
    why = "nothing fits or meets the SLO" if given_s is None else f"takes {given_s:.4g} s a step"
    losers = (RunnerUp(name, given_s, why), *given.runners_up)
    return replace(best, runners_up=losers[:MAX_RUNNERS_UP], equals=equal_form(given, best, name))
