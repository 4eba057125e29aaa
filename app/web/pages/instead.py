"""Another plan that an answer names, planned by itself: a runner-up, a plan of the frontier, an equal one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.figures import amount, gib, significant
from meshwright.app.base.templates import Hyperlink
from meshwright.app.requests.named_plans import names_of, request_of_name
from meshwright.app.requests.resolve import request_document
from meshwright.app.web.pages.builder import planned
from meshwright.app.web.pages.layout import render
from meshwright.app.web.pages.routes import PageReader, PageRoute, PageWriter, form_of, stored_plan
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.problem.request import PlanRequest

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST_CHARACTERS = 1000
"""Characters of the name of a plan; those of ours have some 200."""


@router.get("/plans/{digest}/instead")
def show_other(
    request: Request, caller: PageReader, digest: str, name: Annotated[str, Query(max_length=MOST_CHARACTERS)]
) -> Response:
    """The words of an answer on another plan, and the form that plans it."""
    answered = stored_plan(request, caller, digest)
    _narrowed(answered, name)
    return render(
        request,
        "instead.html",
        plan=Hyperlink(f"/plans/{digest}", answered.plan.model),
        digest=digest,
        name=name,
        facts=_said(answered.plan, name),
    )


@router.post("/plans/{digest}/instead")
async def plan_other(request: Request, caller: PageWriter, digest: str) -> Response:
    """Lead to the plan that an answer names, or to the job that makes it."""
    name = (await form_of(request)).get("name", "")
    document = await asyncio.to_thread(_document, request, caller, digest, name)
    return await planned(request, caller, document)


def _document(request: Request, caller: PageWriter, digest: str, name: str) -> dict[str, Any]:
    return request_document(_narrowed(stored_plan(request, caller, digest), name))


def _narrowed(answered: AnsweredRequest, name: str) -> PlanRequest:
    """The request of a plan that an answer names; raises InvalidInputError of any other."""
    if name not in set(names_of(answered.plan)):
        raise InvalidInputError(
            "the plan names no such other plan", given=name, allowed="one of its runners-up or its frontier"
        )
    found = request_of_name(answered.request, name)
    if found is None:
        raise InvalidInputError(
            "no restriction of the search says this plan alone",
            given=name,
            remedy="restrict search.modes or the cluster of the request by hand",
        )
    return found


def _said(plan: Plan, name: str) -> list[tuple[str, str]]:
    unit = plan.certificate.unit
    rows = []
    for runner in plan.runners_up:
        if runner.summary == name:
            rows += [] if runner.objective is None else [("objective", amount(runner.objective, unit))]
            rows.append(("why it lost", runner.why_not))
    for point in plan.frontier:
        if point.summary == name:
            rows += [
                ("tokens/s", significant(point.tokens_per_s)),
                ("memory of a device", gib(point.peak_memory_bytes)),
                ("devices", f"{point.devices:,}"),
            ]
    return rows
