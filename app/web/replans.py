"""REST endpoints of re-plan batches."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from meshwright.app.base.records import read_record
from meshwright.app.edge.bodies import body_of, json_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.requests.limits import check_values
from meshwright.app.service.replan_schemas import (
    NewReplan,
    ReplanDocument,
    ReplanPage,
    ReplanReport,
    replan_document,
    replan_item,
)
from meshwright.app.service.replans import ReplanOptions, ReplanPolicy, ReplanService, ReplanWish
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import QuestionFilter
from meshwright.app.store.replans import Outcome, Replan, ReplanRepository
from meshwright.app.web.gate import ClusterWriter, Reader

router = APIRouter(prefix="/v1/replans", tags=["re-plans"])

MAX_REPLAN_BODY_BYTES = 16_384
ASKED_FOR = "asked for"
Webhook = Annotated[
    str | None, Query(max_length=500, pattern=PRINTABLE, description="Called when the batch that this starts has finished.")
]
Policy = Annotated[ReplanPolicy, Query(description="Only mark stale plans, or also start a batch that plans them again.")]


def replan_options(replan: Policy = ReplanPolicy.MARK, webhook: Webhook = None) -> ReplanOptions:
    """Return the caller's options for the plans that a change makes stale."""
    return ReplanOptions(replan, webhook)


AfterChange = Annotated[ReplanOptions, Depends(replan_options)]


@router.post(
    "",
    summary="Plan stale plans again",
    openapi_extra=body_of("NewReplan"),
    status_code=202,
    response_model=ReplanDocument,
    responses=problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
)
async def start_replan(request: Request, caller: ClusterWriter) -> Response:
    """Start a batch of everything that is stale, or of what is about one cluster or model or follows one calibration."""
    service: ReplanService = request.app.state.replans
    async with json_body(request, max_bytes=MAX_REPLAN_BODY_BYTES) as body:
        document = body.document
    check_values(document)
    wanted = read_record(NewReplan, document, what="re-plan")
    about = QuestionFilter(wanted.cluster, wanted.model, calibration=wanted.calibration)
    wish = ReplanWish(about, cause=ASKED_FOR, webhook=wanted.webhook)
    batch = await asyncio.to_thread(service.start_now, caller, wish)
    answer = await asyncio.to_thread(_document, request, caller, batch)
    return JSONResponse(answer.model_dump(mode="json"), 202, {"location": f"/v1/replans/{batch.id}"})


@router.get("", summary="List re-plans", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_replans(request: Request, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> ReplanPage:
    """Batches, newest first."""
    batches = ReplanRepository(request.app.state.engine, caller.tenant)
    items, more = page_of(batches.page(before=before_of("replan", cursor), limit=limit + 1), limit)
    following = cursor_of("replan", items[-1].row) if more else None
    return ReplanPage(replans=[_document(request, caller, batch) for batch in items], next_cursor=following)


@router.get("/{replan_id}", summary="Get a re-plan", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def get_replan(request: Request, caller: Reader, replan_id: str) -> ReplanDocument:
    """A batch: how far it is, and how many plans became better, worse or impossible."""
    service: ReplanService = request.app.state.replans
    return _document(request, caller, service.get(caller, replan_id))


@router.get(
    "/{replan_id}/items", summary="Get a re-plan's report", responses=problem_answers(401, 403, 404, 422, 429, 500, 503)
)
def get_report(
    request: Request,
    caller: Reader,
    replan_id: str,
    cursor: Cursor = None,
    limit: Limit = 50,
    outcome: Annotated[Outcome | None, Query(description="Only plans with this outcome.")] = None,
) -> ReplanReport:
    """The old plan against the new one, question by question."""
    service: ReplanService = request.app.state.replans
    batch = service.get(caller, replan_id)
    batches = ReplanRepository(request.app.state.engine, caller.tenant)
    after = before_of("replan-item", cursor)
    items, more = page_of(batches.items(batch.id, outcome, after=after, limit=limit + 1), limit)
    following = cursor_of("replan-item", items[-1].id) if more else None
    return ReplanReport(items=[replan_item(item) for item in items], next_cursor=following)


@router.post(
    "/{replan_id}/cancel", summary="Cancel a re-plan", responses=problem_answers(401, 403, 404, 409, 422, 429, 500, 503)
)
def cancel_replan(request: Request, caller: ClusterWriter, replan_id: str) -> ReplanDocument:
    """Cancel a batch and the jobs that it began. Plans that were made stay, and stay current."""
    service: ReplanService = request.app.state.replans
    return _document(request, caller, service.cancel(caller, replan_id))


def _document(request: Request, caller: Principal, batch: Replan) -> ReplanDocument:
    return replan_document(batch, ReplanRepository(request.app.state.engine, caller.tenant).totals(batch.id))
