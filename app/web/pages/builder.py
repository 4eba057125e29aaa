"""The request builder: a model, devices and work in the words of the command line, and the job that plans them."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from meshwright.app.base.quoting import html_text
from meshwright.app.edge.observability import ANSWERS, current_parent
from meshwright.app.pictures.asked import article
from meshwright.app.requests.model_words import model_of_catalogue
from meshwright.app.requests.one_line import OneLine, Task, request_of_line
from meshwright.app.service.desk import WORKER_ALIVE_S, JobDesk
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.store.engine import read_soon
from meshwright.app.store.fleet import RegisteredKind, RegisteredRepository
from meshwright.app.store.jobs import JobKind, JobStatus
from meshwright.app.store.principal import Principal
from meshwright.app.store.writes import Writes
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.jobs import find_job
from meshwright.app.web.pages.layout import HEADERS, choice, page
from meshwright.app.web.pages.routes import COOKIE, MOST_OFFERED, PageReader, PageRoute, PageWriter, form_of
from meshwright.app.web.preferences import urgency_of
from meshwright.app.web.schemas import JobDocument, job_document
from meshwright.costmodels.errors import InvalidInputError

# A request of a page, planned: the stored plan, or the job that makes it.


async def planned(request: Request, caller: Principal, document: dict[str, Any]) -> Response:
    """Lead to the stored plan of a request document, or to the job that makes it; raises DocumentError, QueueFullError."""
    service: PlanService = request.app.state.service
    engine: Engine = request.app.state.engine
    writes: Writes = request.app.state.writes
    call = Call(caller, document, urgency_of(None), None, current_parent())
    resolved = service.resolve_alone(call)
    wanted: Submission | Wanted | None = service.remembered(call, resolved)
    if wanted is None:
        wanted = await read_soon(engine, service.look_up, call, resolved)
    made = wanted if isinstance(wanted, Submission) else await writes.soon(partial(service.begin, wanted))
    ANSWERS.labels(made.how).inc()
    if made.text is not None:
        return RedirectResponse(f"/plans/{made.digest}", 303, HEADERS)
    assert made.job is not None, "a submission has a text or a job"
    return RedirectResponse(f"/jobs/{made.job.id}", 303, HEADERS)


router = APIRouter(route_class=PageRoute, include_in_schema=False)

LOOK_AGAIN_S = 2
"""Seconds after which the browser asks for the page of a job again."""

_WORDS = {each.name for each in fields(OneLine)} - {"model", "task", "assume_decoder"}

_SERVING = (
    ("isl", "Tokens of a prompt", "2000"),
    ("osl", "Tokens of an answer", "300"),
    ("rate", "Requests a second", "4"),
    ("concurrency", "or requests at once", ""),
    ("ttft_p95", "P95 time to first token", "1s"),
    ("tpot_p95", "P95 time per output token", "40ms"),
)
_TRAINING = (("batch", "Sequences a step", "64"), ("seq", "Tokens of a sequence", "8192"))
_BOTH = (("precision", "Precision", ""), ("launcher", "Launcher", ""), ("objective", "Objective", ""))


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
    signed_in = COOKIE in request.cookies
    if job.status is JobStatus.SUCCEEDED and job.kind is not JobKind.BATCH:
        if job.answer is None:
            return RedirectResponse(f"/plans/{job.digest}", 303, HEADERS)
        # A search that ended undecided: its answer is stored with the job alone.
        drawn = await drawn_by_child(request, caller, article, {"plan": job.answer})
        return page(f"Plan: {job.model}", drawn["article"], signed_in=signed_in)
    again = None if job.status.is_final else LOOK_AGAIN_S
    workers = 1
    if job.status is JobStatus.QUEUED:
        queue = await asyncio.to_thread(JobDesk(request.app.state.engine).state, worker_alive_s=WORKER_ALIVE_S)
        workers = queue.workers
    return page(f"Job: {job.model}", _progress(job_document(job), workers), refresh_s=again, signed_in=signed_in)


def _document(given: dict[str, str]) -> dict[str, Any]:
    """The request document of a form: what the same words on a command line say."""
    task = Task.SERVE if given.get("task") == Task.SERVE else Task.TRAIN
    words: dict[str, Any] = {name: text for name, text in given.items() if name in _WORDS}
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
    said = "" if error is None else f'<p class="bad" role="alert">{html_text(str(error))}</p>'
    serves = given.get("task", Task.SERVE) == Task.SERVE
    body = (
        f'<h1>New plan</h1>{said}<form method="post" action="/new">'
        f"{_field('model', 'Model: a name of the catalogue or of the Hugging Face Hub', given, 'Qwen/Qwen3-8B')}"
        f'<div class="fields">{_field("gpus", "Devices, in words", given, "8xH100")}{_registered(request, caller, given)}</div>'
        f"<fieldset><legend>{_radio(Task.SERVE, 'Serve', checked=serves)}</legend>{_fields(_SERVING, given)}</fieldset>"
        f"<fieldset><legend>{_radio(Task.TRAIN, 'Train', checked=not serves)}</legend>{_fields(_TRAINING, given)}</fieldset>"
        f"<details><summary>More</summary>{_fields(_BOTH, given)}</details><p><button>Plan</button></p></form>"
    )
    return page("New plan", body, status=200 if error is None else 422, signed_in=COOKIE in request.cookies)


def _registered(request: Request, caller: Principal, given: dict[str, str]) -> str:
    """The choice of a registered cluster; nothing where none is registered."""
    found = RegisteredRepository(request.app.state.engine, caller.tenant, RegisteredKind.CLUSTER)
    names = [each.name for each in found.page(before=None, limit=MOST_OFFERED)]
    if not names:
        return ""
    options = [("", "none"), *((name, name) for name in names)]
    return choice("cluster", "or a registered cluster", options, given.get("cluster"))


def _fields(rows: tuple[tuple[str, str, str], ...], given: dict[str, str]) -> str:
    return f'<div class="fields">{"".join(_field(name, label, given, hint) for name, label, hint in rows)}</div>'


def _field(name: str, label: str, given: dict[str, str], hint: str) -> str:
    value, shown = html_text(given.get(name, "")), html_text(hint)
    box = f'<input id="{name}" name="{name}" type="text" value="{value}" placeholder="{shown}">'
    return f'<div><label for="{name}">{html_text(label)}</label>{box}</div>'


def _radio(task: Task, label: str, *, checked: bool) -> str:
    mark = " checked" if checked else ""
    return f'<input type="radio" id="{task}" name="task" value="{task}"{mark}> <label for="{task}">{label}</label>'


_NO_WORKER = (
    "No worker is alive. Where none comes within a minute, see the log of the service, or start one with meshwright worker."
)


def _progress(job: JobDocument, workers: int) -> str:
    lines = [f"<h1>{html_text(job.model)}: {html_text(job.status.value)}</h1>"]
    progress = job.progress
    if progress is not None:
        lines.append(f'<progress value="{progress.done}" max="{max(progress.total, 1)}" aria-label="search"></progress>')
        lines.append(f"<p>{html_text(progress.note)}</p>")
        told = (("Best so far", progress.best), ("Proven bound", progress.bound))
        lines += [f"<p>{label}: {value:,.4g}</p>" for label, value in told if value is not None]
        if progress.gap is not None:
            lines.append(f"<p>Gap: {progress.gap:.1%}</p>")
    elif not job.status.is_final:
        lines.append("<p>Waiting for a worker.</p>" if workers else f'<p class="bad" role="alert">{_NO_WORKER}</p>')
    if job.problem is not None:
        lines.append(f'<p class="bad" role="alert">{html_text(job.problem.title)}: {html_text(job.problem.detail)}</p>')
    return "".join(lines)
