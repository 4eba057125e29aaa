"""REST endpoints of plans."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.bodies import JSON, read_json_body
from app.cursors import MAX_CURSOR_LENGTH, cursor_of, row_of
from app.db.plan_repository import PlanFilter
from app.plans.examples import REQUEST_EXAMPLES
from app.plans.schemas import PlanPage, plan_item
from app.plans.service import PlanService
from app.plans.store import PlanStore
from app.problem_responses import problem_answers
from app.security.gate import Reader, Writer
from app.settings import Settings

# Names of models hold no control characters (``app.requests.limits``), and PostgreSQL refuses to compare with them.
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

router = APIRouter(prefix="/v1/plans", tags=["plans"])

_PLAN_ANSWER = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/PlanDocument"}}}}
_REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/RequestDocument"}, "examples": REQUEST_EXAMPLES}},
    }
}


@router.post(
    "",
    summary="Plan a model on a cluster",
    openapi_extra=_REQUEST_BODY,
    response_class=Response,
    responses={
        200: {"description": "The plan stored for this request.", **_PLAN_ANSWER},
        201: {"description": "A new plan, stored now.", **_PLAN_ANSWER},
        **problem_answers(400, 401, 403, 413, 415, 422, 429, 500, 503, 504),
    },
)
async def make_plan(request: Request, caller: Writer) -> Response:
    """Solve a request, or give the plan stored for it. An infeasible request has a plan too, with its ``reason``."""
    settings: Settings = request.app.state.settings
    service: PlanService = request.app.state.service
    document = await read_json_body(request, max_bytes=settings.max_body_bytes)
    text, is_new = await service.plan(document)
    digest = _digest_in(text)
    return Response(text, status_code=201 if is_new else 200, media_type=JSON, headers={"location": f"/v1/plans/{digest}"})


@router.get(
    "/{digest}",
    summary="Get a stored plan",
    response_class=Response,
    responses={200: {"description": "The plan.", **_PLAN_ANSWER}, **problem_answers(401, 403, 404, 422, 429, 500, 503)},
)
def get_plan(request: Request, caller: Reader, digest: str) -> Response:
    """The plan stored under a digest, byte for byte as it was stored.

    The header ``Meshwright-Stale-Since`` says when a newer calibration of one of its devices was stored, if one was.
    """
    store: PlanStore = request.app.state.store
    text = store.get(digest)
    since = _stale_since(store, digest).get(digest)
    headers = {} if since is None else {"meshwright-stale-since": since.isoformat()}
    return Response(text, media_type=JSON, headers=headers)


@router.get("", summary="List stored plans", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_plans(
    request: Request,
    caller: Reader,
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_LENGTH, description="'next_cursor' of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Plans a page.")] = 50,
    model: Annotated[str | None, Query(max_length=200, pattern=PRINTABLE, description="Only plans of this model.")] = None,
    feasible: Annotated[bool | None, Query(description="Only feasible, or only infeasible ones.")] = None,
) -> PlanPage:
    """Stored plans, newest first, a page at a time."""
    store: PlanStore = request.app.state.store
    before = None if cursor is None else row_of("plan", cursor)
    # One more than asked tells whether there is a next page.
    found = store.page(PlanFilter(model=model, feasible=feasible), before=before, limit=limit + 1)
    items = found[:limit]
    following = cursor_of("plan", items[-1].id) if len(found) > limit else None
    stale = _stale_since(store, *(row.digest for row in items))
    return PlanPage(plans=[plan_item(row, stale.get(row.digest)) for row in items], next_cursor=following)


def _stale_since(store: PlanStore, *digests: str) -> dict[str, datetime]:
    """When plans became stale, by digest; fresh plans are left out."""
    since: dict[str, datetime] = {}
    for use in store.stale_uses(*digests):
        since[use.plan_digest] = min(use.since, since.get(use.plan_digest, use.since))
    return since


def _digest_in(plan_text: str) -> str:
    """The digest in a plan document's text, found without parsing the rest."""
    _, _, rest = plan_text.partition('"digest":"')
    return rest.partition('"')[0]
