"""REST endpoints of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine

from meshwright.app.base.errors import JobIsFinalError, NoSuchError
from meshwright.app.edge.bodies import JSON
from meshwright.app.edge.lists import Cursor, Limit, NameFilter, before_of, cursor_of, page_of
from meshwright.app.edge.problems import problem_answers
from meshwright.app.service.batch import end_items
from meshwright.app.service.engine import JobQueue
from meshwright.app.service.replans import BATCH_PREFIX, ReplanService
from meshwright.app.service.watcher import JobWatcher
from meshwright.app.store.engine import writing
from meshwright.app.store.jobs import Job, JobFilter, JobKind, JobRepository, JobStatus
from meshwright.app.store.plans import PlanStore
from meshwright.app.store.principal import Principal
from meshwright.app.store.replans import JudgedReplan, Outcome
from meshwright.app.web.gate import Reader, RequestGate, Writer
from meshwright.app.web.schemas import JobDocument, JobPage, job_document

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

KEEP_ALIVE_S = 15.0
EVENT_STREAM = "text/event-stream"
JOB_CANCELLED = JudgedReplan(Outcome.CANCELLED, "its job was cancelled", None, None)
_CURSOR = "job"
_MAX_ID = 36
_PLAN_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The plan.", "content": {JSON: {"schema": {"$ref": "#/components/schemas/PlanDocument"}}}},
    **problem_answers(401, 403, 404, 422, 429, 500, 503),
}


@router.get("", summary="List jobs", responses=problem_answers(401, 403, 422, 429, 500, 503))
def list_jobs(
    request: Request,
    caller: Reader,
    cursor: Cursor = None,
    limit: Limit = 50,
    model: NameFilter = None,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this state.")] = None,
) -> JobPage:
    """Jobs, newest first, a page at a time."""
    repository = JobRepository(request.app.state.engine, caller.tenant)
    before = before_of(_CURSOR, cursor)
    items, more = page_of(repository.page(JobFilter(model, status), before=before, limit=limit + 1), limit)
    following = cursor_of(_CURSOR, items[-1].row) if more else None
    return JobPage(jobs=[job_document(job) for job in items], next_cursor=following)


@router.get("/{job_id}", summary="Get a job", responses=problem_answers(401, 403, 404, 422, 429, 500, 503))
def get_job(request: Request, caller: Reader, job_id: str) -> JobDocument:
    """A job as it stands."""
    return job_document(find_job(request.app.state.engine, caller, job_id))


@router.get(
    "/{job_id}/plan",
    summary="Get the plan that a job made",
    response_class=Response,
    responses=_PLAN_ANSWERS,
)
def get_job_plan(request: Request, caller: Reader, job_id: str) -> Response:
    """The plan of a job that has succeeded, also one of a search that ended undecided, which is stored nowhere else."""
    engine: Engine = request.app.state.engine
    return Response(_made_plan(engine, caller, find_job(engine, caller, job_id)), media_type=JSON)


@router.get(
    "/{job_id}/best-plan",
    summary="Get the best plan so far of a job",
    response_class=Response,
    responses=_PLAN_ANSWERS,
)
def get_best_plan(request: Request, caller: Reader, job_id: str) -> Response:
    """The best plan that a job has found, checked, its certificate that of the moment; of a job that succeeded, its plan."""
    engine: Engine = request.app.state.engine
    job = find_job(engine, caller, job_id)
    if job.status is JobStatus.SUCCEEDED:
        text: str | None = _made_plan(engine, caller, job)
    else:
        text = JobRepository(engine, caller.tenant).best(job_id)
    if text is None:
        raise NoSuchError("the job has found no plan yet", given=job_id)
    return Response(text, media_type=JSON)


@router.post("/{job_id}/cancel", summary="Cancel a job", responses=problem_answers(401, 403, 404, 409, 422, 429, 500, 503))
def cancel_job(request: Request, caller: Writer, job_id: str) -> JobDocument:
    """Cancel a job that is queued or running. A running solve ends within seconds.

    Re-plans that wait for its plan go on without it; with the job that starts one, the re-plan is cancelled.
    """
    engine: Engine = request.app.state.engine
    queue: JobQueue = request.app.state.queue
    replans: ReplanService = request.app.state.replans
    job = find_job(engine, caller, job_id)
    with writing(engine) as connection:
        workflow = JobRepository(engine, caller.tenant).cancel(connection, job_id)
        if workflow is None:
            raise JobIsFinalError("the job has ended already", given=job.status.value)
        end_items(engine, connection, caller.tenant, job.digest, JOB_CANCELLED)
    queue.cancel([workflow])
    if job.kind is JobKind.BATCH:
        with suppress(JobIsFinalError):
            replans.cancel(caller, job.digest.removeprefix(BATCH_PREFIX))
    return job_document(find_job(engine, caller, job_id))


@router.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: 'job' with the job's document at every change.",
            "content": {EVENT_STREAM: {}},
        },
        204: {"description": "The job is final, and the event of 'Last-Event-ID' said so: there is nothing to wait for."},
        **problem_answers(401, 403, 404, 422, 429, 500, 503),
    },
)
async def follow_job(
    request: Request,
    caller: Reader,
    job_id: str,
    last_event_id: Annotated[str | None, Header(max_length=40, description="Id of the last event that came.")] = None,
) -> Response:
    """The job now and at every change, with the best plan so far, until it is final. ``id`` of an event is the revision.

    A caller that was cut off and says which event came last is sent what is newer, and nothing twice.
    """
    job = await asyncio.to_thread(find_job, request.app.state.engine, caller, job_id)
    return followed(request, caller, job, lambda job: job_document(job).model_dump_json(), last_event_id)


def followed(
    request: Request,
    caller: Principal,
    job: Job,
    json_of: Callable[[Job], str],
    last_event_id: str | None,
    shown: str | None = None,
) -> Response:
    """Return the stream of a job's changes, each in one line of ``json_of``; 204 where its reader has the last one.

    ``shown`` is what the caller shows where that is not in the header, as for ``RequestGate.admit``.
    """

    def event(job: Job) -> str:
        return f"event: job\nid: {job.revision}\ndata: {json_of(job)}\n\n"

    async def events(job: Job) -> AsyncIterator[str]:
        watcher: JobWatcher = request.app.state.watcher
        gate: RequestGate = request.app.state.gate
        # A comment where the caller has this event already: a stream that begins tells that it is there.
        yield ": nothing new\n\n" if is_known else event(job)
        while not job.status.is_final:
            changed = await watcher.change(caller.tenant, job, within_s=KEEP_ALIVE_S)
            if not await gate.is_admitted(request, shown):
                return  # Its key was revoked, or its token has ended.
            # A comment keeps proxies from closing a connection on which nothing happens.
            yield ": nothing new\n\n" if changed is None else event(changed)
            job = changed or job

    is_known = last_event_id == str(job.revision)
    if is_known and job.status.is_final:
        return Response(status_code=204)
    return StreamingResponse(events(job), media_type=EVENT_STREAM, headers={"cache-control": "no-store"})


def _made_plan(engine: Engine, caller: Principal, job: Job) -> str:
    return job.answer or PlanStore(engine, caller.tenant).get(job.digest)


def find_job(engine: Engine, caller: Principal, job_id: str) -> Job:
    """The caller's job under an id; raises NoSuchError."""
    job = JobRepository(engine, caller.tenant).find(job_id) if len(job_id) <= _MAX_ID and job_id.isprintable() else None
    if job is None:
        raise NoSuchError("there is no such job", given=job_id)
    return job
