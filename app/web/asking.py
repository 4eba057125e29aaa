"""REST endpoints of questions that are answered at once: launch commands, given plans, launches of stored plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.documents import compact_json, parse_document
from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import JSON, body_of, json_body
from meshwright.app.edge.problems import problem_answers
from meshwright.app.launching.exporters.schedulers import Scheduler
from meshwright.app.service import answers
from meshwright.app.service.asking import EXPLANATION_EXAMPLES
from meshwright.app.service.child import Answering
from meshwright.app.store.plans import PlanReader
from meshwright.app.store.principal import Principal
from meshwright.app.web.children import asked_of_child
from meshwright.app.web.gate import Reader
from meshwright.solver.problem.choices import Launcher

router = APIRouter(prefix="/v1", tags=["questions"])

_PROBLEMS = problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503)


def _answer_of(schema: str, description: str) -> dict[int | str, dict[str, Any]]:
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {200: {"description": description, "content": content}}


@router.post(
    "/explain",
    summary="Explain a launch command",
    openapi_extra=body_of("NewExplanation", examples=EXPLANATION_EXAMPLES),
    response_class=Response,
    responses={**_answer_of("ExplanationDocument", "What the command does."), **_PROBLEMS},
)
async def explain(request: Request, caller: Reader) -> Response:
    """Say what a launch command does: whether it starts and fits, and how fast it is.

    The command is read, never run. No better plan is looked for: give the answer's ``request`` to ``POST /v1/plans``.
    """
    return await _answered(request, caller, answers.explanation, check=answers.new_explanation)


@router.post(
    "/predictions",
    summary="Predict a given plan",
    openapi_extra=body_of("GivenPlan"),
    response_class=Response,
    responses={**_answer_of("PlanDocument", "The plan with its figures for the request."), **_PROBLEMS},
)
async def predict(request: Request, caller: Reader) -> Response:
    """Predict the figures of a given plan for a request. Nothing is stored."""
    return await _answered(request, caller, answers.prediction)


@router.post(
    "/simulations",
    summary="Simulate a given serving plan",
    openapi_extra=body_of("GivenPlan"),
    response_class=Response,
    responses={200: {"description": "What requests see.", "content": {JSON: {"schema": {"type": "object"}}}}, **_PROBLEMS},
)
async def simulate(request: Request, caller: Reader) -> Response:
    """Simulate a given serving plan under the load of a request, and say what its requests see."""
    return await _answered(request, caller, answers.simulation)


@router.get(
    "/plans/{digest}/launch",
    summary="Get what starts a stored plan",
    response_class=Response,
    responses={
        **_answer_of("LaunchDocument", "The launcher's command and files."),
        **problem_answers(401, 403, 404, 422, 429, 500, 503),
    },
)
async def launch(
    request: Request,
    caller: Reader,
    digest: str,
    launcher: Annotated[Launcher, Query(description="The launcher that starts it.")],
    scheduler: Annotated[Scheduler | None, Query(description="The scheduler whose job file is wanted, too.")] = None,
) -> Response:
    """Give the command and the files by which a launcher starts a stored plan, as ``meshwright export`` does."""
    reader: PlanReader = request.app.state.plan_reader
    stored = await reader.get(caller.tenant, digest)
    plan = await asyncio.to_thread(parse_document, stored.text.encode(), what="plan")
    asked = {"plan": plan, "launcher": launcher.value, "scheduler": None if scheduler is None else scheduler.value}
    found = await asked_of_child(request, caller, answers.launch_document, asked)
    return Response(compact_json(found), media_type=JSON)


Check = Callable[[dict[str, Any]], object]


async def _answered(request: Request, caller: Principal, answering: Answering, check: Check | None = None) -> Response:
    """The answer to a question, which ``check`` refuses before a process is started for it."""
    settings: Settings = request.app.state.settings
    async with json_body(request, max_bytes=settings.max_body_bytes) as body:
        if check is not None:
            await body.work(check, body.document)
        found = await asked_of_child(request, caller, answering, body.document)
    return Response(compact_json(found), media_type=JSON)
