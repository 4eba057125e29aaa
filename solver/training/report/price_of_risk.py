"""The price of a plan's risk: the same request solved at another chance to run out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Stop, ignore_progress
from meshwright.solver.problem.request import TrainingRequest

NO_PRICE = 1e-9
"""Relative difference of two objectives from which one plan is better."""


def with_price_of_risk(request: TrainingRequest, plan: Plan, solve: Callable[..., Plan], *, stop: Stop) -> Plan:
    """Return the plan with a note of how much better it would be at the other risk that the request names; unchanged where it
    names none, or has no plan. ``solve`` answers the request at that risk."""
    search = request.search
    if search.price_risk is None or plan.certificate.objective is None:
        return plan
    asked = replace(request, search=replace(search, risk=search.price_risk, price_risk=None))
    other = solve(asked, stop=stop, progress=ignore_progress)
    return replace(plan, notes=(*plan.notes, _price(plan.certificate.objective, other, search.price_risk)))


def _price(own: float, other: Plan, risk: float) -> str:
    value, unit = other.certificate.objective, other.certificate.unit
    if value is None:
        return f"price of the risk: not known, the search at risk {risk:g} found no plan in its time"
    best = "at best" if other.certificate.status is Status.OPTIMAL else "as far as was searched"
    gain = (own - value) / own
    if abs(gain) <= NO_PRICE:
        return f"price of the risk: none, {best} a plan at risk {risk:g} is as good"
    return (
        f"price of the risk: {abs(gain):.1%} {'better' if gain > 0 else 'worse'} with risk {risk:g}, {value:.4g} {unit} {best}"
    )
