"""The page that shows what starts a plan: the launcher's command and files, and the job of a scheduler."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from meshwright.app.base.documents import parse_document
from meshwright.app.base.errors import NoSuchError
from meshwright.app.base.quoting import shell_comment
from meshwright.app.base.templates import Hyperlink
from meshwright.app.launching.exporters import first_export, own_launcher
from meshwright.app.launching.exporters.launch import SCRIPT_NAME
from meshwright.app.launching.exporters.schedulers import Scheduler, schedulers_of
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.service import answers
from meshwright.app.store.plans import PlanReader
from meshwright.app.store.principal import Principal
from meshwright.app.web.children import asked_of_child
from meshwright.app.web.pages.layout import HEADERS, render
from meshwright.app.web.pages.routes import PageReader, PageRoute
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import LAUNCHERS_OF

router = APIRouter(route_class=PageRoute, include_in_schema=False)

AsLauncher = Annotated[Launcher | Literal[""], Query()]
AsScheduler = Annotated[Scheduler | Literal[""], Query()]


@router.get("/plans/{digest}/launch")
async def show_launch(
    request: Request, caller: PageReader, digest: str, launcher: AsLauncher = "", scheduler: AsScheduler = ""
) -> Response:
    """The command and the files by which a launcher starts a plan; without one, that of the request or one that can."""
    text, answered, preferred = await _stored(request, caller, digest)
    chosen = launcher or preferred
    launch, problem = None, None
    try:
        launch = await _launched(request, caller, text, chosen, scheduler)
    except MeshwrightError as error:
        problem = str(error)
    able = LAUNCHERS_OF[answered.request.workload.kind].able
    return render(
        request,
        "launch.html",
        status=200 if problem is None else 422,
        plan=Hyperlink(f"/plans/{digest}", answered.plan.model or "the plan"),
        digest=digest,
        launcher=chosen.value,
        launchers=[(each.value, each.value) for each in able],
        scheduler=str(scheduler),
        schedulers=[("", "by hand"), *((each.value, each.value) for each in schedulers_of(answered.request))],
        problem=problem,
        launch=launch,
        submit=((launch or {}).get("job") or {}).get("submit"),
        files=[] if launch is None else _shown_files(digest, launch, chosen, scheduler),
    )


@router.get("/plans/{digest}/launch/file")
async def take_file(
    request: Request,
    caller: PageReader,
    digest: str,
    name: Annotated[str, Query(max_length=200)],
    launcher: AsLauncher = "",
    scheduler: AsScheduler = "",
) -> Response:
    """One of the files that start a plan, to take away."""
    text, _, preferred = await _stored(request, caller, digest)
    found = await _launched(request, caller, text, launcher or preferred, scheduler)
    texts = dict(_files(found))
    if name not in texts:
        raise NoSuchError("the launch has no such file", given=name)
    # Names of files are ours; what a header may hold is a part of what a file name may.
    safe = "".join(letter for letter in PurePosixPath(name).name if letter.isascii() and (letter.isalnum() or letter in "._-"))
    return PlainTextResponse(texts[name], headers=HEADERS | {"content-disposition": f'attachment; filename="{safe}"'})


async def _stored(request: Request, caller: Principal, digest: str) -> tuple[str, AnsweredRequest, Launcher]:
    """The text of a plan, what it says, and the launcher that its request names, or else the first that can start it."""
    reader: PlanReader = request.app.state.plan_reader
    stored = await reader.get(caller.tenant, digest)
    return stored.text, *await asyncio.to_thread(_read, stored.text)


def _read(text: str) -> tuple[AnsweredRequest, Launcher]:
    answered = read_plan_document(parse_document(text.encode(), what="plan"))
    plan, request = answered.plan, answered.request
    named = own_launcher(request)
    exported = first_export(plan, request, named) if plan.feasible else None
    return answered, named if exported is None else exported.launcher


async def _launched(
    request: Request, caller: Principal, text: str, launcher: Launcher, scheduler: Scheduler | str
) -> dict[str, Any]:
    plan = await asyncio.to_thread(parse_document, text.encode(), what="plan")
    asked = {"plan": plan, "launcher": launcher.value, "scheduler": str(scheduler) or None}
    return dict(await asked_of_child(request, caller, answers.launch_document, asked))


def _files(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Files of a launch by name, the script that starts it first."""
    said = [f"Takes for granted: {each}" for each in found["assumptions"]]
    said += [f"Not expressible: {each}" for each in found["inexpressible"]]
    script = "\n".join(["#!/bin/sh", *map(shell_comment, said), found["command"], ""])
    job = found.get("job")
    jobs = [] if job is None else [(str(job["file"]), str(job["text"]))]
    return [(SCRIPT_NAME, script), *jobs, *found["files"].items()]


def _shown_files(
    digest: str, found: dict[str, Any], launcher: Launcher, scheduler: Scheduler | str
) -> list[tuple[str, Hyperlink, str]]:
    """Files of a launch by name, where to take them, and their texts; that of the script is shown as the command."""
    shown = []
    for name, text in _files(found):
        query = urlencode({"launcher": launcher.value, "scheduler": str(scheduler), "name": name})
        taken = Hyperlink(f"/plans/{digest}/launch/file?{query}", "take this file")
        shown.append((name, taken, "" if name == SCRIPT_NAME else text))
    return shown
