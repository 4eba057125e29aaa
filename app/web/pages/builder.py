"""The request builder: a model, devices and work in the words of the command line, and the job that plans them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel
from sqlalchemy import Engine

from meshwright.app.base.quoting import readable
from meshwright.app.edge.observability import current_parent
from meshwright.app.pictures.asked import article
from meshwright.app.requests.model_words import model_of_catalogue
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OPTIONS, OneLine, Task
from meshwright.app.service.desk import WORKER_ALIVE_S, JobDesk
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.store.engine import read_soon
from meshwright.app.store.fleet import RegisteredKind, RegisteredRepository
from meshwright.app.store.jobs import Job, JobKind, JobStatus
from meshwright.app.store.principal import Principal
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.jobs import find_job, followed
from meshwright.app.web.pages.layout import HEADERS, render
from meshwright.app.web.pages.routes import MOST_OFFERED, PageReader, PageRoute, PageWriter, form_of, shown_by
from meshwright.app.web.plans import submitted
from meshwright.app.web.preferences import urgency_of
from meshwright.app.web.schemas import JobDocument, JobProgress, job_document
from meshwright.costmodels.errors import InvalidInputError

# A request of a page, planned: the stored plan, or the job that makes it.


async def planned(request: Request, caller: Principal, document: dict[str, Any]) -> Response:
    """Lead to the stored plan of a request document, or to the job that makes it; raises DocumentError, QueueFullError."""
    service: PlanService = request.app.state.service
    engine: Engine = request.app.state.engine
    call = Call(caller, document, urgency_of(None), None, current_parent())
    resolved = service.resolve_alone(call)
    wanted: Submission | Wanted | None = service.remembered(call, resolved)
    if wanted is None:
        wanted = await read_soon(engine, service.look_up, call, resolved)
    made = await submitted(request, wanted)
    if made.text is not None:
        return RedirectResponse(f"/plans/{made.digest}", 303, HEADERS)
    assert made.job is not None, "a submission has a text or a job"
    return RedirectResponse(f"/jobs/{made.job.id}", 303, HEADERS)


router = APIRouter(route_class=PageRoute, include_in_schema=False)

LOOK_AGAIN_S = 2
"""Seconds after which the browser asks for the page of a job again."""


@router.get("/new")
def ask(request: Request, caller: PageWriter) -> Response:
    """The empty form."""
    return _form(request, caller, {})


@router.post("/new")
async def submit(request: Request, caller: PageWriter) -> Response:
    """Lead to the stored plan of what the form asks, or to the job that makes it; show the form again where neither is."""
    given = await form_of(request)
    try:
        return await planned(request, caller, _document(given))
    except InvalidInputError as error:
        return await asyncio.to_thread(_form, request, caller, given, error)


@router.get("/jobs/{job_id}")
async def show_job(request: Request, caller: PageReader, job_id: str) -> Response:
    """The page of a job: its progress, and its plan once there is one."""
    job = await asyncio.to_thread(find_job, request.app.state.engine, caller, job_id)
    if job.status is JobStatus.SUCCEEDED and job.kind is not JobKind.BATCH:
        if job.answer is None:
            return RedirectResponse(f"/plans/{job.digest}", 303, HEADERS)
        # A search that ended undecided: its answer is stored with the job alone.
        drawn = await drawn_by_child(request, caller, article, {"plan": job.answer})
        return render(request, "answer.html", title=job.model, view=drawn["view"])
    document, workers = job_document(job), 1
    if job.status is JobStatus.QUEUED:
        queue = await asyncio.to_thread(JobDesk(request.app.state.engine).state, worker_alive_s=WORKER_ALIVE_S)
        workers = queue.workers
    again, events = (None, None) if job.status.is_final else (LOOK_AGAIN_S, f"/jobs/{job_id}/events")
    figures = _figures(document)
    return render(request, "job.html", refresh_s=again, events=events, job=document, figures=figures, workers=workers)


@router.get("/jobs/{job_id}/events")
async def follow(
    request: Request, caller: PageReader, job_id: str, last_event_id: Annotated[str | None, Header(max_length=40)] = None
) -> Response:
    """The job now and at every change until it is final, as its page shows it."""
    job = await asyncio.to_thread(find_job, request.app.state.engine, caller, job_id)
    return followed(request, caller, job, _moment, last_event_id, shown_by(request))


class JobMoment(BaseModel):
    """What the script shows of a job: the words of its page, and the progress that is drawn."""

    status: JobStatus
    is_final: bool
    note: str | None
    figures: list[str]
    progress: JobProgress | None


def _moment(job: Job) -> str:
    document = job_document(job)
    progress = document.progress
    note = None if progress is None else readable(progress.note)
    moment = JobMoment(
        status=job.status, is_final=job.status.is_final, note=note, figures=_figures(document), progress=progress
    )
    return moment.model_dump_json()


def _document(given: dict[str, str]) -> dict[str, Any]:
    """The request document of a form: what the same words on a command line say."""
    task = Task.SERVE if given.get("task") == Task.SERVE else Task.TRAIN
    words: dict[str, Any] = {name: text for name, text in given.items() if name in OPTIONS}
    source = model_of_catalogue(given.get("model", ""))
    registered = given.get("cluster")
    if registered is not None:
        if "gpus" in words:
            raise InvalidInputError(
                "devices in words and a registered cluster do not go together",
                given=f"{words['gpus']} and {registered}",
                remedy="leave one of them empty",
            )
        words["gpus"] = registered
    document = request_of_line(OneLine(given.get("model", ""), task=task, **words), source=source)
    return document if registered is None else document | {"cluster": {"name": registered}}


def _form(request: Request, caller: Principal, given: dict[str, str], error: InvalidInputError | None = None) -> Response:
    return render(
        request,
        "builder.html",
        status=200 if error is None else 422,
        problem=None if error is None else str(error),
        given=given,
        chosen=given.get("task", Task.SERVE),
        clusters=_registered(request, caller),
        options=OPTIONS,
    )


def _registered(request: Request, caller: Principal) -> list[tuple[str, str]]:
    """The choices of a registered cluster; none where none is registered."""
    found = RegisteredRepository(request.app.state.engine, caller.tenant, RegisteredKind.CLUSTER)
    names = [each.name for each in found.page(before=None, limit=MOST_OFFERED)]
    return [("", "none"), *((name, name) for name in names)] if names else []


def _figures(job: JobDocument) -> list[str]:
    """How far a search is, a figure a line."""
    progress = job.progress
    if progress is None:
        return []
    told = (("Best so far", progress.best), ("Proven bound", progress.bound))
    lines = [f"{label}: {value:,.4g}" for label, value in told if value is not None]
    return lines if progress.gap is None else [*lines, f"Gap: {progress.gap:.1%}"]
