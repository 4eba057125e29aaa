"""REST endpoints of calibrations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from meshwright.app.base.errors import CalibrationNotFoundError, NoSuchError
from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import JSON, json_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.service.replans import CalibrationService
from meshwright.app.store.calibrations import CalibrationStore
from meshwright.app.web.gate import CalibrationKeeper, Reader
from meshwright.app.web.replans import AfterChange
from meshwright.app.web.schemas import CalibrationAnswer, CalibrationDocument, CalibrationItem, CalibrationPage, item_fields

router = APIRouter(prefix="/v1/calibrations", tags=["calibrations"])

_CURSOR = "calibration"
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A document of schema meshwright.calibration/1, as 'meshwright calibrate show --json' prints it.",
        "content": {JSON: {"schema": {"type": "object"}}},
    }
}


@router.post(
    "",
    summary="Add a calibration",
    openapi_extra=_BODY,
    response_model=CalibrationAnswer,
    responses={
        200: {"description": "It is stored already.", "model": CalibrationAnswer},
        201: {"description": "A new version of its device's calibration.", "model": CalibrationAnswer},
        **problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 507),
    },
)
async def add_calibration(request: Request, caller: CalibrationKeeper, options: AfterChange) -> Response:
    """Add a calibration. The plans of questions that follow its device become stale."""
    settings: Settings = request.app.state.settings
    service: CalibrationService = request.app.state.calibrations
    async with json_body(request, max_bytes=settings.max_body_bytes) as body:
        added = await body.work(service.add, caller, body.document, options)
    where = None if added.replan is None else f"/v1/replans/{added.replan}"
    row = added.kept.row
    answer = CalibrationAnswer(**item_fields(row), stale=added.kept.stale, replan=where)
    headers = {"location": f"/v1/calibrations/{row.name}", "etag": f'"{row.name}"'}
    return JSONResponse(answer.model_dump(mode="json"), 201 if added.kept.is_new else 200, headers)


@router.get("", summary="List calibrations", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_calibrations(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    device: Annotated[str | None, Query(max_length=200, pattern=PRINTABLE, description="Only of this device key.")] = None,
) -> CalibrationPage:
    """Stored calibrations, newest first, a page at a time."""
    store = CalibrationStore(request.app.state.engine, caller.tenant)
    items, more = page_of(store.page(device, before=before_of(_CURSOR, cursor), limit=limit + 1), limit)
    following = cursor_of(_CURSOR, items[-1].id) if more else None
    return CalibrationPage(calibrations=[CalibrationItem(**item_fields(row)) for row in items], next_cursor=following)


@router.get(
    "/{reference}",
    summary="Get a calibration",
    response_model=CalibrationDocument,
    responses={304: {"description": "The caller has it already."}, **problem_answers(401, 403, 404, 422, 429, 500, 503)},
)
def get_calibration(
    request: Request,
    caller: Reader,
    reference: str,
    if_none_match: Annotated[str | None, Header(max_length=1000, description="ETags that the caller has.")] = None,
) -> Response:
    """A stored calibration by KEY (its newest), KEY@VERSION, or KEY@sha256: and at least 8 hexadecimal digits."""
    store = CalibrationStore(request.app.state.engine, caller.tenant)
    try:
        row = store.resolve(reference if reference.isprintable() else "")
    except CalibrationNotFoundError as error:
        raise NoSuchError("no such calibration is stored", given=reference[:200]) from error
    headers = {"etag": f'"{row.name}"', "cache-control": "private, no-cache"}
    if if_none_match is not None and row.name in if_none_match:
        return Response(status_code=304, headers=headers)
    document = dict(store.find(row.name).document)
    return JSONResponse(CalibrationDocument(**item_fields(row), document=document).model_dump(mode="json"), headers=headers)
