"""REST endpoints of measured runs of plans."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from meshwright.app.base.errors import NoSuchError
from meshwright.app.edge.bodies import body_of, json_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, NameFilter, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.service.runs import RunService, observation_of_row, observation_row
from meshwright.app.store.principal import Principal
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.children import asked_of_child
from meshwright.app.web.gate import CalibrationKeeper, Reader
from meshwright.app.web.preferences import IDEMPOTENCY_KEY
from meshwright.app.web.replans import AfterChange
from meshwright.app.web.schemas import RUN_EXAMPLES, RunAnswer, RunItem, RunPage, run_item

router = APIRouter(prefix="/v1/runs", tags=["runs"])

MAX_RUN_BODY_BYTES = 16_384
_CURSOR = "run"
_BODY = body_of("MeasuredRun", examples=RUN_EXAMPLES)


@router.post(
    "",
    summary="Report a measured run",
    openapi_extra=_BODY,
    response_model=RunAnswer,
    responses={
        200: {"description": "It is stored already.", "model": RunAnswer},
        201: {"description": "A new run.", "model": RunAnswer},
        **problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 507),
    },
)
async def add_run(
    request: Request,
    caller: CalibrationKeeper,
    options: AfterChange,
    idempotency_key: Annotated[str | None, Header(description=IDEMPOTENCY_KEY, max_length=255, pattern=PRINTABLE)] = None,
) -> Response:
    """Add a run of a stored plan: what was measured, or that it ran out of memory. The same run again changes nothing."""
    service: RunService = request.app.state.runs
    async with json_body(request, max_bytes=MAX_RUN_BODY_BYTES) as body:
        asked = await body.work(service.asked, body.document, caller.tenant)
        row = await asked_of_child(request, caller, observation_row, asked)
        observation = observation_of_row(asked, row)
        observed = await body.work(service.add, observation, caller, key=idempotency_key, options=options)
    kept = observed.kept
    where = None if observed.replan is None else f"/v1/replans/{observed.replan}"
    answer = RunAnswer(
        **run_item(observed.row).model_dump(),
        calibration=None if kept is None else kept.row.name,
        stale=0 if kept is None else kept.stale,
        replan=where,
    )
    return JSONResponse(
        answer.model_dump(mode="json"), 201 if observed.is_new else 200, {"location": f"/v1/runs/{observed.row.digest}"}
    )


@router.get("", summary="List measured runs", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_runs(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    model: NameFilter = None,
    cluster: NameFilter = None,
    profile: NameFilter = None,
    plan: Annotated[str | None, Query(max_length=71, pattern=PRINTABLE, description="Only runs of this plan's digest.")] = None,
) -> RunPage:
    """Measured runs, newest first, a page at a time."""
    wanted = RunFilter(cluster=cluster, profile=profile, model=model, plan=plan)
    found = _runs(request, caller).page(wanted, before=before_of(_CURSOR, cursor), limit=limit + 1)
    items, more = page_of(found, limit)
    following = cursor_of(_CURSOR, items[-1].id) if more else None
    return RunPage(runs=[run_item(row) for row in items], next_cursor=following)


@router.get("/{run_id}", summary="Get a measured run", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def get_run(request: Request, caller: Reader, run_id: str) -> RunItem:
    """A run by its id."""
    found = _runs(request, caller).find(run_id) if run_id.isprintable() else None
    if found is None:
        raise NoSuchError("no such run is stored", given=run_id[:200])
    return run_item(found)


def _runs(request: Request, caller: Principal) -> RunRepository:
    return RunRepository(request.app.state.engine, caller.tenant)
