"""A request and its written-out form get one answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.laws.law import Law
from tests.support.requests_given import resolved
from tests.support.small_requests import DOCUMENTS


def answer(request: PlanRequest) -> Plan:
    """Return the plan without the seconds that it took to find."""
    plan = solve_here(request)
    return replace(plan, search=replace(plan.search, seconds=0.0))


def is_one_answer(document: dict[str, Any]) -> None:
    request = resolved(document)
    written = request_document(request)
    again = resolved(written)
    assert request_document(again) == written
    assert keyed_request(again).digest == keyed_request(request).digest
    assert answer(again) == answer(request)


LAW = Law(
    sentence="A request and its written-out form get one answer.",
    drawn={"document": DOCUMENTS},
    check=is_one_answer,
    few=4,
    many=22,
    most=250,
    draw_s=1.9,
)
