"""A plan's question asked of other clusters: a row for each, the best first, with a link to its plan or its job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from meshwright.app.base.settings import Settings
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.observability import current_parent
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.requests.several_clusters import clusters_in, known_figures
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.store.engine import read_soon
from meshwright.app.store.jobs import Job, JobFilter, JobRepository
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.web.comparisons import MOST_CLUSTERS
from meshwright.app.web.pages.builder import LOOK_AGAIN_S
from meshwright.app.web.pages.layout import HEADERS, render
from meshwright.app.web.pages.routes import PageReader, PageRoute, PageWriter, form_of, plan_text
from meshwright.app.web.plans import submitted
from meshwright.app.web.preferences import urgency_of
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MOST_CHARACTERS = 1000
"""Characters of a list of clusters: some sixty for each."""

RECENT_JOBS = 100
"""The newest jobs, among which that of a cluster is looked for."""


@dataclass(frozen=True)
class Asked:
    """A cluster in words, and what reading alone says of the question there: a plan, a job that makes it, a refusal, or
    nothing yet."""

    words: str
    answer: AnsweredRequest | InvalidInputError | None
    job: Job | None = None

    @property
    def rank(self) -> tuple[bool, float]:
        """The place of the row: the best objective first, then clusters without a plan, in the order they were named."""
        if not isinstance(self.answer, AnsweredRequest) or self.answer.plan.certificate.objective is None:
            return True, 0.0
        return False, self.answer.plan.certificate.objective


@router.get("/plans/{digest}/clusters")
async def show(
    request: Request, caller: PageReader, digest: str, clusters: Annotated[str, Query(max_length=MOST_CHARACTERS)] = ""
) -> Response:
    """The table of a plan's question on other clusters, and the form that asks it of them."""
    text = await plan_text(request, caller, digest)
    answered = await asyncio.to_thread(_read, text)
    question = await asyncio.to_thread(request_document, answered.request)
    engine: Engine = request.app.state.engine
    recent = await read_soon(engine, JobRepository(engine, caller.tenant).page, JobFilter(), before=None, limit=RECENT_JOBS)
    rows, problem = list[Asked](), None
    try:
        rows = [await _asked(request, caller, question, words, recent) for words in _clusters(request, clusters, text)]
    except InvalidInputError as error:
        problem = str(error)
    if not any(isinstance(row.answer, AnsweredRequest) and row.answer.plan.digest == digest for row in rows):
        rows.insert(0, Asked("this plan", answered))
    planned = [row.answer for row in rows if isinstance(row.answer, AnsweredRequest) and row.answer.plan.feasible]
    figures = known_figures(planned)
    ordered = sorted(rows, key=lambda row: row.rank)
    return render(
        request,
        "several.html",
        status=200 if problem is None else 422,
        refresh_s=LOOK_AGAIN_S if any(row.job and not row.job.status.is_final for row in rows) else None,
        plan=Hyperlink(f"/plans/{digest}", answered.plan.model),
        digest=digest,
        clusters=clusters,
        heads=("cluster", *(figure.title for figure in figures), ""),
        rows=[(row.words, *_figures(row, [figure.words for figure in figures]), _place(row, digest)) for row in ordered],
        problem=problem,
        may_write=caller.may(Scope.PLANS_WRITE),
    )


@router.post("/plans/{digest}/clusters")
async def ask(request: Request, caller: PageWriter, digest: str) -> Response:
    """Plan the question on each cluster that is named, and lead to the table."""
    given = (await form_of(request)).get("clusters", "")[:MOST_CHARACTERS]
    text = await plan_text(request, caller, digest)
    answered = await asyncio.to_thread(_read, text)
    question = await asyncio.to_thread(request_document, answered.request)
    for words in _clusters(request, given, text):
        try:
            await submitted(request, await _found(request, caller, question, words))
        except InvalidInputError:
            # The table says why.
            continue
    return RedirectResponse(f"/plans/{digest}/clusters?{urlencode({'clusters': given})}", 303, HEADERS)


def _clusters(request: Request, words: str, plan: str) -> tuple[str, ...]:
    """The clusters of a list with commas; raises InvalidInputError for words that name none, or too many.

    Each reads the plan's request again: all together take no longer than the largest request of one.
    """
    settings: Settings = request.app.state.settings
    named, most = clusters_in(words) if words else (), min(MOST_CLUSTERS, settings.max_body_bytes // len(plan))
    if len(named) > most:
        raise InvalidInputError("too many clusters for a request of this size", given=len(named), allowed=f"at most {most}")
    return named


async def _asked(request: Request, caller: Principal, question: dict[str, Any], words: str, recent: Sequence[Job]) -> Asked:
    """What reading alone says of a cluster."""
    try:
        found = await _found(request, caller, question, words)
    except InvalidInputError as error:
        return Asked(words, error)
    if isinstance(found, Submission) and found.text is not None:
        return Asked(words, await asyncio.to_thread(_read, found.text))
    digest = found.digest if isinstance(found, Submission) else found.key.digest
    return Asked(words, None, next((job for job in recent if job.digest == digest), None))


def _read(text: str) -> AnsweredRequest:
    return read_plan_document(json.loads(text))


async def _found(request: Request, caller: Principal, question: dict[str, Any], words: str) -> Submission | Wanted:
    """The plan of the question on another cluster, or what its job needs; raises InvalidInputError where it can't be asked."""
    service: PlanService = request.app.state.service
    call = Call(caller, {**question, "cluster": words}, urgency_of(None), None, current_parent())
    resolved = await asyncio.to_thread(service.resolve_alone, call)
    return await read_soon(request.app.state.engine, service.look_up, call, resolved)


def _figures(row: Asked, figures: list[Callable[[AnsweredRequest], str]]) -> list[str]:
    """The cells of a row between its words and its link."""
    if isinstance(row.answer, AnsweredRequest) and row.answer.plan.feasible:
        return [words(row.answer) for words in figures]
    return ["no plan" if row.answer is not None and number == 0 else "" for number, _ in enumerate(figures)]


def _place(row: Asked, digest: str) -> Words:
    """A link to the plan or the job of a row; why there is none."""
    match row.answer:
        case AnsweredRequest(plan):
            return Hyperlink(f"/plans/{plan.digest}", "see it" if plan.digest != digest else "this one")
        case InvalidInputError() as error:
            return str(error)
        case None:
            if row.job is None:
                return "not planned yet"
            return Hyperlink(
                f"/jobs/{row.job.id}", f"its job {row.job.status.value}" if row.job.status.is_final else "being planned"
            )
