"""REST endpoints of checks: the history of what continuous integration found of a project's plans."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import CheckNotFoundError
from meshwright.app.base.records import read_record, to_document
from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import JSON, body_of, json_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.regression.report import CheckReport
from meshwright.app.requests.limits import check_values
from meshwright.app.store.checks import CheckRepository, StoredCheck
from meshwright.app.web.gate import CheckKeeper, Reader
from meshwright.app.web.schemas import MAX_NAME, CheckItem, CheckPage, NewCheck, Trend, check_item, trend_point

router = APIRouter(prefix="/v1/checks", tags=["checks"])


@router.post(
    "",
    status_code=201,
    summary="Keep the report of a check",
    openapi_extra=body_of("NewCheck"),
    responses=problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 507),
)
async def add_check(request: Request, response: Response, caller: CheckKeeper) -> CheckItem:
    """Add a report of ``meshwright check`` to the history of a project."""
    settings: Settings = request.app.state.settings
    async with json_body(request, max_bytes=settings.max_body_bytes) as body:
        given = await body.work(_new_check, body.document)
    stored = StoredCheck(
        id=str(uuid.uuid4()),
        project=given.project,
        created_at=datetime.now(UTC),
        exit_code=given.report.exit_code,
        report=compact_json(to_document(CheckReport, given.report)),
    )
    await asyncio.to_thread(_checks(request, caller.tenant).add, stored)
    response.headers["location"] = f"/v1/checks/{stored.id}"
    return check_item(stored)


@router.get("", summary="List checks", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_checks(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    project: Annotated[
        str | None, Query(max_length=MAX_NAME, pattern=PRINTABLE, description="Only checks of this project.")
    ] = None,
) -> CheckPage:
    """Checks, newest first, a page at a time."""
    found, following = _page(request, caller.tenant, project, cursor, limit)
    return CheckPage(checks=[check_item(stored) for stored in found], next_cursor=following)


@router.get("/trend", summary="Follow a plan over checks", responses=problem_answers(401, 403, 422, 429, 500, 503))
def trend(
    request: Request,
    caller: Reader,
    project: Annotated[str, Query(max_length=MAX_NAME, pattern=PRINTABLE, description="Whose checks.")],
    plan: Annotated[str, Query(max_length=MAX_NAME, pattern=PRINTABLE, description="Name of the request file.")],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Trend:
    """The figures and verdicts of one plan, check by check, newest first."""
    found, following = _page(request, caller.tenant, project, cursor, limit)
    points = [point for stored in found if (point := trend_point(stored, plan)) is not None]
    return Trend(project=project, plan=plan, points=points, next_cursor=following)


@router.get(
    "/{check_id}",
    summary="Get the report of a check",
    response_class=Response,
    responses={
        200: {"description": "The report.", "content": {JSON: {"schema": {"$ref": "#/components/schemas/CheckReport"}}}},
        **problem_answers(401, 403, 404, 422, 429, 500, 503),
    },
)
def get_check(request: Request, caller: Reader, check_id: str) -> Response:
    """A report as ``meshwright check --json`` gave it."""
    stored = _checks(request, caller.tenant).find(check_id) if check_id.isprintable() else None
    if stored is None:
        raise CheckNotFoundError("no check has this id", given=check_id)
    return Response(stored.report, media_type=JSON)


def _page(
    request: Request, tenant: str, project: str | None, cursor: str | None, limit: int
) -> tuple[list[StoredCheck], str | None]:
    """The checks of a page, and the cursor of the next one."""
    before = before_of("check", cursor)
    found, more = page_of(_checks(request, tenant).page(project, before=before, limit=limit + 1), limit)
    return [stored for _, stored in found], cursor_of("check", found[-1][0]) if more else None


def _checks(request: Request, tenant: str) -> CheckRepository:
    return CheckRepository(request.app.state.engine, tenant)


def _new_check(document: object) -> NewCheck:
    """The check in a body; raises DocumentError."""
    check_values(document)
    return read_record(NewCheck, document, what="check")
