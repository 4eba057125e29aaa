"""REST endpoints of plans."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Engine

from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import JSON, body_of, unparsed_body
from meshwright.app.edge.lists import PRINTABLE, Cursor, Limit, NameFilter, before_of, cursor_of, page_of
from meshwright.app.edge.observability import ANSWERS, current_parent
from meshwright.app.edge.problems import problem_answers, problem_response
from meshwright.app.requests.examples import REQUEST_EXAMPLES
from meshwright.app.service.child import Children
from meshwright.app.service.large_bodies import LargeBody, ReadBody, read_large_body
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.service.watcher import JobWatcher
from meshwright.app.store.engine import read_soon
from meshwright.app.store.jobs import Job, JobStatus
from meshwright.app.store.plans import PlanFilter, PlanReader, PlanStore, Staleness
from meshwright.app.store.principal import Principal
from meshwright.app.store.writes import Writes
from meshwright.app.web.gate import Reader, Writer
from meshwright.app.web.preferences import IDEMPOTENCY_KEY, PREFER, PRIORITY, urgency_of, wait_of
from meshwright.app.web.schemas import PlanPage, job_address, job_document, plan_item
from meshwright.solver.answer.predicted import Status

router = APIRouter(prefix="/v1/plans", tags=["plans"])

WithDependents = Annotated[
    bool, Query(description="Forget the questions that it answers as well. Measured runs stay; jobs that run are never ended.")
]
_CURSOR = "plan"
_PLAN_ANSWER = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/PlanDocument"}}}}
_JOB_ANSWER = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/JobDocument"}}}}
_REQUEST_BODY = body_of("RequestDocument", examples=REQUEST_EXAMPLES)


@router.post(
    "",
    summary="Plan a model on a cluster",
    openapi_extra=_REQUEST_BODY,
    response_class=Response,
    responses={
        200: {"description": "The plan stored for this request.", **_PLAN_ANSWER},
        201: {"description": "A new plan, made while the caller waited ('Prefer: wait').", **_PLAN_ANSWER},
        202: {"description": "The job that makes the plan.", **_JOB_ANSWER},
        **problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504, 507),
    },
)
async def make_plan(
    request: Request,
    caller: Writer,
    prefer: Annotated[str | None, Header(description=PREFER, max_length=200)] = None,
    priority: Annotated[str | None, Header(description=PRIORITY, max_length=200)] = None,
    idempotency_key: Annotated[str | None, Header(description=IDEMPOTENCY_KEY, max_length=255, pattern=PRINTABLE)] = None,
) -> Response:
    """Give the plan stored for a request, or the job that makes it. Infeasible requests have a plan too, with a ``reason``."""
    settings: Settings = request.app.state.settings
    service: PlanService = request.app.state.service
    watcher: JobWatcher = request.app.state.watcher
    engine: Engine = request.app.state.engine
    wait_s, urgency = wait_of(prefer), urgency_of(priority)
    wanted: Submission | Wanted | None = None
    async with unparsed_body(request, max_bytes=settings.max_body_bytes) as unparsed:
        fingerprint = unparsed.fingerprint() if idempotency_key is None else None
        wanted = service.asked_before(caller.tenant, fingerprint)
        if wanted is None and unparsed.is_large:
            children: Children = request.app.state.children

            def read(text: bytes) -> ReadBody:
                given = LargeBody(text, caller.tenant, settings.database_url, settings.max_time_limit_s)
                return children.answer_now(read_large_body, given)

            of_body = await unparsed.work(read)
            call = Call(caller, None, urgency, idempotency_key, current_parent(), of_body.fingerprint)
            wanted = await read_soon(engine, service.look_up, call, of_body.resolved)
        elif wanted is None:
            body = await unparsed.parsed()
            call = Call(caller, body.document, urgency, idempotency_key, current_parent())
            # What needs no database is answered here: handing it to a thread would take as long.
            resolved = service.resolve_alone(call) if body.is_short else await body.work(service.resolve_alone, call)
            service.note_asked(caller.tenant, fingerprint, resolved)
            wanted = service.remembered(call, resolved)
            if wanted is None and (body.is_short or resolved is not None):
                wanted = await read_soon(engine, service.look_up, call, resolved)
            elif wanted is None:
                wanted = await body.work(service.look_up, call)
    made = await submitted(request, wanted)
    if made.text is not None:
        return _plan_response(made.digest, made.text, status=200)
    assert made.job is not None, "a submission has a text or a job"
    job = await watcher.final(caller.tenant, made.job, within_s=wait_s)
    response = await read_soon(engine, _job_response, request, caller, made, job)
    if wait_s:
        response.headers["preference-applied"] = f"wait={wait_s:g}"
    return response


async def submitted(request: Request, found: Submission | Wanted) -> Submission:
    """What was found for a call, or the job that makes its plan; counted. Raises as `PlanService.begin`."""
    service: PlanService = request.app.state.service
    writes: Writes = request.app.state.writes
    made: Submission = found if isinstance(found, Submission) else await writes.soon(partial(service.begin, found))
    ANSWERS.labels(made.how).inc()
    return made


def _job_response(request: Request, caller: Principal, made: Submission, job: Job) -> Response:
    """The answer to a request whose job stands so: its plan, its problem, or the job itself."""
    if job.status is JobStatus.SUCCEEDED:
        if job.answer is not None:
            return Response(job.answer, media_type=JSON, headers={"location": f"{job_address(job)}/plan"})
        text = PlanStore(request.app.state.engine, caller.tenant).get(job.digest)
        return _plan_response(job.digest, text, status=201 if made.is_new else 200)
    if job.status is JobStatus.FAILED and job.problem is not None:
        return problem_response(request, json.loads(job.problem))
    location = {"location": job_address(job)}
    return JSONResponse(job_document(job).model_dump(mode="json"), 202, location)


@router.get(
    "/{digest}",
    summary="Get a stored plan",
    response_class=Response,
    responses={
        200: {"description": "The plan.", **_PLAN_ANSWER},
        304: {"description": "The caller has it already."},
        **problem_answers(401, 403, 404, 422, 429, 500, 503),
    },
)
async def get_plan(
    request: Request,
    caller: Reader,
    digest: str,
    if_none_match: Annotated[str | None, Header(max_length=1000, description="ETags that the caller has.")] = None,
) -> Response:
    """The plan stored under a digest, byte for byte as it was stored. Its ETag is its digest: it never changes.

    The header ``Meshwright-Stale-Since`` says when a newer calibration of one of its devices was stored, if one was.
    """
    reader: PlanReader = request.app.state.plan_reader
    plan = await reader.get(caller.tenant, digest)
    since = plan.stale_since
    headers = _caching(digest) | ({} if since is None else {"meshwright-stale-since": since.isoformat()})
    if if_none_match is not None and _etag(digest) in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(plan.text, media_type=JSON, headers=headers)


@router.delete(
    "/{digest}",
    status_code=204,
    summary="Delete a stored plan",
    responses=problem_answers(401, 403, 404, 409, 422, 429, 500, 503),
)
def delete_plan(request: Request, caller: Writer, digest: str, with_dependents: WithDependents = False) -> None:
    """Delete a plan. The same request is planned anew when it is asked again."""
    request.app.state.service.delete(caller, digest, with_dependents=with_dependents)


@router.get("", summary="List stored plans", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_plans(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    model: NameFilter = None,
    cluster: NameFilter = None,
    feasible: Annotated[bool | None, Query(description="Only feasible, or only infeasible ones.")] = None,
    status: Annotated[Status | None, Query(description="Only plans with this certificate.")] = None,
    staleness: Annotated[Staleness | None, Query(description="Only plans that stand so to the fleet.")] = None,
) -> PlanPage:
    """Stored plans, newest first, a page at a time."""
    store = PlanStore(request.app.state.engine, caller.tenant)
    wanted = PlanFilter(model, feasible, cluster, None if status is None else status.value, staleness)
    # One more than asked tells whether there is a next page.
    items, more = page_of(store.page(wanted, before=before_of(_CURSOR, cursor), limit=limit + 1), limit)
    following = cursor_of(_CURSOR, items[-1].id) if more else None
    stale = store.stale_since(*(row.digest for row in items))
    return PlanPage(plans=[plan_item(row, stale.get(row.digest)) for row in items], next_cursor=following)


def _plan_response(digest: str, text: str, *, status: int) -> Response:
    headers = {"location": f"/v1/plans/{digest}", "etag": _etag(digest)}
    return Response(text, status_code=status, media_type=JSON, headers=headers)


def _etag(digest: str) -> str:
    return f'"{digest}"'


def _caching(digest: str) -> dict[str, str]:
    return {"etag": _etag(digest), "cache-control": "private, no-cache"}
