"""The list of plans, and the page of one."""

from __future__ import annotations

import json
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Engine

from meshwright.app.http.bodies import JSON
from meshwright.app.http.cursors import cursor_of
from meshwright.app.http.paging import Cursor, NameFilter, before_of, page_of
from meshwright.app.pictures.page import plan_article, plan_page
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


@router.get("/")
def list_plans(
    request: Request,
    caller: PageReader,
    cursor: Cursor = None,
    model: NameFilter = None,
    staleness: Annotated[Staleness | None, Query()] = None,
) -> Response:
    """The plans of the caller, newest first, a page at a time."""
    engine: Engine = request.app.state.engine
    store = PlanStore(engine, caller.tenant)
    wanted = PlanFilter(model or None, None, None, None, staleness)
    rows, more = page_of(store.page(wanted, before=before_of(_CURSOR, cursor), limit=PAGE + 1), PAGE)
    stale = store.stale_since(*(row.digest for row in rows))
    items = [plan_item(row, stale.get(row.digest)) for row in rows]
    search = (
        '<form method="get" action="/" role="search"><label for="model">Model</label>'
        f'<input id="model" name="model" type="text" value="{html_text(model or "")}"> <button>Search</button></form>'
    )
    following = ""
    if more:
        given = {"cursor": cursor_of(_CURSOR, rows[-1].id), "model": model, "staleness": staleness}
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
    document = (
        f'<p>Take away: <a href="{place}/document">plan document (JSON)</a>, <a href="{place}/page">this page as a file</a></p>'
    )
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


def _table(items: list[PlanItem]) -> str:
    return table(
        ("model", "what", "devices", "tokens/s", "certificate", "made (UTC)", "state"),
        [
            (
                f'<a href="/plans/{html_text(item.digest)}">{html_text(item.model)}</a>',
                html_text(item.kind),
                f"{item.devices:,}" if item.feasible else "",
                "no plan" if item.tokens_per_s is None else f"{item.tokens_per_s:,.0f}",
                html_text(item.status),
                f"{item.created_at:%Y-%m-%d %H:%M}",
                "current" if item.stale_since is None else "stale",
            )
            for item in items
        ],
    )
