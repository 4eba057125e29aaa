"""The list of plans, and the page of one."""

from __future__ import annotations

import json
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Engine

from meshwright.app.http.bodies import JSON
from meshwright.app.http.cursors import cursor_of
from meshwright.app.http.paging import Cursor, NameFilter, before_of, page_of
from meshwright.app.pictures.page import plan_article, plan_page
from meshwright.app.pictures.step_timeline import step_timeline
from meshwright.app.pictures.trace import trace_text
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.plans.repository import PlanFilter, Staleness
from meshwright.app.plans.schemas import PlanItem, plan_item
from meshwright.app.plans.store import PlanStore
from meshwright.app.quoting import html_text
from meshwright.app.rest.pages.layout import HEADERS, page, table
from meshwright.app.rest.pages.routes import COOKIE, PageReader, PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Plans of a page of the list."""

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
    search = (
        '<form method="get" action="/" role="search"><label for="model">Model</label>'
        f'<input id="model" name="model" type="text" value="{html_text(model or "")}"> '
        f'<label for="staleness">State</label><select id="staleness" name="staleness">{_states(staleness)}</select>'
        " <button>Search</button></form>"
    )
    following = ""
    if more:
        given = {"cursor": cursor_of(_CURSOR, rows[-1].id), "model": model, "staleness": staleness or None}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        following = f'<p><a href="/?{html_text(query)}" rel="next">Older plans</a></p>'
    found = _table(items) if items else '<p>There is no such plan. <a href="/new">Make one</a>.</p>'
    return page("Plans", f"<h1>Plans</h1>{search}{found}{following}", signed_in=COOKIE in request.cookies)


@router.get("/plans/{digest}")
def show_plan(request: Request, caller: PageReader, digest: str) -> Response:
    """The page of a plan: the answer, its pictures, how far to trust it, and what else there was."""
    store = PlanStore(request.app.state.engine, caller.tenant)
    answered = read_plan_document(json.loads(store.get(digest)))
    since = store.stale_since(digest).get(digest)
    stale = "" if since is None else f'<p class="bad">Stale: a newer calibration was stored {since:%Y-%m-%d %H:%M} UTC.</p>'
    place = f"/plans/{html_text(digest)}"
    files = [f'<a href="{place}/document">plan document (JSON)</a>', f'<a href="{place}/page">this page as a file</a>']
    if step_timeline(answered) is not None:
        files.append(f'<a href="{place}/trace">trace of a step</a> for Perfetto')
    document = f"<p>Take away: {', '.join(files)}</p>"
    title = f"Plan: {answered.plan.model or answered.request.model.name}"
    return page(title, stale + plan_article(answered) + document, signed_in=COOKIE in request.cookies)


@router.get("/plans/{digest}/document")
def take_document(request: Request, caller: PageReader, digest: str) -> Response:
    """The plan document, as a file."""
    text = PlanStore(request.app.state.engine, caller.tenant).get(digest)
    return Response(text, media_type=JSON, headers=HEADERS | {"content-disposition": 'attachment; filename="plan.json"'})


@router.get("/plans/{digest}/page")
def take_page(request: Request, caller: PageReader, digest: str) -> Response:
    """The page of a plan as a file that opens offline."""
    text = PlanStore(request.app.state.engine, caller.tenant).get(digest)
    whole = plan_page(read_plan_document(json.loads(text)))
    return HTMLResponse(whole, headers=HEADERS | {"content-disposition": 'attachment; filename="plan.html"'})


@router.get("/plans/{digest}/trace")
def take_trace(request: Request, caller: PageReader, digest: str) -> Response:
    """The pipeline timeline of a training plan's step, as a trace for Perfetto."""
    text = PlanStore(request.app.state.engine, caller.tenant).get(digest)
    trace = trace_text(read_plan_document(json.loads(text)))
    return Response(
        trace, media_type=JSON, headers=HEADERS | {"content-disposition": 'attachment; filename="plan.perfetto.json"'}
    )


def _states(chosen: Staleness | str | None) -> str:
    """The choices of the list's state, any first; ``chosen`` is the one that is shown."""
    return "".join(
        f'<option value="{value}"{" selected" if value == (chosen or "") else ""}>{html_text(said)}</option>'
        for value, said in (("", "any"), *_STATES.items())
    )


def _table(items: list[PlanItem]) -> str:
    return table(
        "Plans",
        ("model", "what", "devices", "tokens/s", "certificate", "made (UTC)", "calibration"),
        [
            (
                f'<a href="/plans/{html_text(item.digest)}">{html_text(item.model)}</a>',
                html_text(item.kind),
                f"{item.devices:,}" if item.feasible else "",
                "no plan" if item.tokens_per_s is None else f"{item.tokens_per_s:,.0f}",
                html_text(item.status),
                f"{item.created_at:%Y-%m-%d %H:%M}",
                "" if item.stale_since is None else "a newer one is stored",
            )
            for item in items
        ],
    )
