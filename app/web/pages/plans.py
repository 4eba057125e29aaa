"""The list of plans, and the page of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Engine

from meshwright.app.base.templates import Link, Words
from meshwright.app.edge.lists import Cursor, NameFilter, before_of, cursor_of, page_of
from meshwright.app.pictures.page import plan_view
from meshwright.app.pictures.step_timeline import step_timeline
from meshwright.app.requests.named_plans import request_of_name
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.store.plans import PlanFilter, PlanStore, Staleness
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.pages.layout import following, moment, render
from meshwright.app.web.pages.routes import PageReader, PageRoute
from meshwright.app.web.pages.runs import runs_rows
from meshwright.app.web.schemas import PlanItem, plan_item, run_item
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.request import ServingRequest

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Plans of a page of the list."""

MOST_RUNS = 5
"""Measured runs that the page of a plan shows, the newest."""

_CURSOR = "plan"

_STATES: dict[str, str] = {
    Staleness.CURRENT: "current: the answer of now to a registered model or cluster",
    Staleness.STALE: "stale: its registered model or cluster has changed since",
    Staleness.SUPERSEDED: "superseded: another plan answers its question now",
}


@router.get("/")
def list_plans(
    request: Request,
    caller: PageReader,
    cursor: Cursor = None,
    model: NameFilter = None,
    staleness: Annotated[Staleness | Literal[""] | None, Query()] = None,
) -> Response:
    """The plans of the caller, newest first, a page at a time."""
    engine: Engine = request.app.state.engine
    store = PlanStore(engine, caller.tenant)
    wanted = PlanFilter(model or None, None, None, None, staleness or None)
    rows, more = page_of(store.page(wanted, before=before_of(_CURSOR, cursor), limit=PAGE + 1), PAGE)
    stale = store.stale_since(*(row.digest for row in rows))
    items = [plan_item(row, stale.get(row.digest)) for row in rows]
    older = cursor_of(_CURSOR, rows[-1].id) if more else None
    return render(
        request,
        "plans.html",
        model=model,
        staleness=staleness,
        states=[("", "any"), *_STATES.items()],
        rows=[_row(item) for item in items],
        more=following("/", "Older plans", older, model=model, staleness=staleness or None),
    )


@router.get("/plans/{digest}")
def show_plan(request: Request, caller: PageReader, digest: str) -> Response:
    """The page of a plan: the answer, its pictures, how far to trust it, and what else there was."""
    store = PlanStore(request.app.state.engine, caller.tenant)
    answered = read_plan_document(json.loads(store.get(digest)))
    since = store.stale_since(digest).get(digest)
    runs = RunRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(runs.page(RunFilter(plan=digest), before=None, limit=MOST_RUNS + 1), MOST_RUNS)
    return render(
        request,
        "plan.html",
        view=plan_view(answered, _follow(answered, digest)),
        stale_since=None if since is None else moment(since),
        actions=_actions(answered, digest, caller),
        runs=runs_rows([run_item(row) for row in rows]),
        all_runs=Link(f"/runs?plan={digest}", "All runs of it") if more else None,
        files=_files(answered, digest),
    )


def _follow(answered: AnsweredRequest, digest: str) -> Callable[[str], str | None]:
    """Where the page of a plan leads from the name of another: to the form that plans it, of names that a search can say."""
    predicted = answered.plan.predicted
    figures = None if predicted is None else (predicted.tokens_per_s, predicted.peak_memory_bytes)
    own = {each.summary for each in answered.plan.frontier if (each.tokens_per_s, each.peak_memory_bytes) == figures}

    def place(name: str) -> str | None:
        if name in own or request_of_name(answered.request, name) is None:
            return None
        return f"/plans/{digest}/instead?{urlencode({'name': name})}"

    return place


def _actions(answered: AnsweredRequest, digest: str, caller: Principal) -> list[Link]:
    """Links to all that can be done with a plan."""
    if not answered.plan.feasible:
        return []
    places = [Link(f"/plans/{digest}/launch", "Launch it"), Link(f"/diff?old={digest}", "Compare it with another")]
    if step_timeline(answered) is not None:
        places.append(Link(f"/plans/{digest}/step", "Look at a step closely"))
    if isinstance(answered.request, ServingRequest):
        places.append(Link(f"/plans/{digest}/load", "See it under load"))
    if caller.may(Scope.CALIBRATIONS_WRITE):
        places.append(Link(f"/plans/{digest}/run", "Report a run of it"))
    return places


def _files(answered: AnsweredRequest, digest: str) -> list[Link]:
    """The files that a plan can be taken away as."""
    files = [("document", "plan document (JSON)"), ("page", "this page as a file")]
    if answered.plan.feasible:
        files += [("stages.csv", "its stages (CSV)"), ("map", "rank map (SVG)"), ("memory", "memory (SVG)")]
    if step_timeline(answered) is not None:
        files += [("timeline", "timeline (SVG)"), ("trace", "trace of a step for Perfetto")]
    return [Link(f"/plans/{digest}/{name}", words) for name, words in files]


def _row(item: PlanItem) -> tuple[Words, ...]:
    return (
        Link(f"/plans/{item.digest}", item.model),
        item.kind,
        f"{item.devices:,}" if item.feasible else "",
        "no plan" if item.tokens_per_s is None else f"{item.tokens_per_s:,.0f}",
        item.status,
        moment(item.created_at),
        "" if item.stale_since is None else "a newer one is stored",
    )
