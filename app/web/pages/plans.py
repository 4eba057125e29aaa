"""The list of plans, and the page of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Engine

from meshwright.app.base.quoting import html_text
from meshwright.app.edge.lists import Cursor, NameFilter, before_of, cursor_of, page_of
from meshwright.app.pictures.asked import article
from meshwright.app.pictures.page import plain_table
from meshwright.app.store.plans import PlanFilter, PlanStore, Staleness
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.pages.layout import link, page
from meshwright.app.web.pages.routes import COOKIE, PageReader, PageRoute, plan_text
from meshwright.app.web.pages.runs import runs_table
from meshwright.app.web.schemas import PlanItem, plan_item, run_item

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
async def show_plan(request: Request, caller: PageReader, digest: str) -> Response:
    """The page of a plan: the answer, its pictures, how far to trust it, and what else there was."""
    asked = {"plan": await plan_text(request, caller, digest), "instead": f"/plans/{digest}/instead"}
    drawn = await drawn_by_child(request, caller, article, asked)
    return await asyncio.to_thread(_plan_page, request, caller, digest, drawn)


def _plan_page(request: Request, caller: Principal, digest: str, drawn: Mapping[str, Any]) -> Response:
    since = PlanStore(request.app.state.engine, caller.tenant).stale_since(digest).get(digest)
    stale = "" if since is None else f'<p class="bad">Stale: a newer calibration was stored {since:%Y-%m-%d %H:%M} UTC.</p>'
    runs = _runs(request, caller, digest)
    body = f"{stale}{_actions(drawn, digest, caller)}{drawn['article']}{runs}{_files(drawn, digest)}"
    return page(f"Plan: {drawn['model']}", body, signed_in=COOKIE in request.cookies)


def _actions(drawn: Mapping[str, Any], digest: str, caller: Principal) -> str:
    """Links to all that can be done with a plan."""
    if not drawn["is_feasible"]:
        return ""
    places = [(f"/plans/{digest}/launch", "Launch it"), (f"/diff?old={digest}", "Compare it with another")]
    if drawn["has_step"]:
        places.append((f"/plans/{digest}/step", "Look at a step closely"))
    if drawn["is_serving"]:
        places.append((f"/plans/{digest}/load", "See it under load"))
    if caller.may(Scope.CALIBRATIONS_WRITE):
        places.append((f"/plans/{digest}/run", "Report a run of it"))
    return f"<p>{' · '.join(link(place, words) for place, words in places)}</p>"


def _runs(request: Request, caller: Principal, digest: str) -> str:
    """The latest measured runs of a plan; nothing where there are none."""
    found = RunRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(found.page(RunFilter(plan=digest), before=None, limit=MOST_RUNS + 1), MOST_RUNS)
    if not rows:
        return ""
    older = f"<p>{link(f'/runs?plan={digest}', 'All runs of it')}</p>" if more else ""
    return f"<h2>Measured runs</h2>{runs_table([run_item(row) for row in rows])}{older}"


def _files(drawn: Mapping[str, Any], digest: str) -> str:
    """The files that a plan can be taken away as."""
    files = [("document", "plan document (JSON)"), ("page", "this page as a file")]
    if drawn["is_feasible"]:
        files += [("stages.csv", "its stages (CSV)"), ("map", "rank map (SVG)"), ("memory", "memory (SVG)")]
    if drawn["has_step"]:
        files += [("timeline", "timeline (SVG)"), ("trace", "trace of a step for Perfetto")]
    return f"<p>Take away: {', '.join(link(f'/plans/{digest}/{name}', words) for name, words in files)}</p>"


def _states(chosen: Staleness | str | None) -> str:
    """The choices of the list's state, any first; ``chosen`` is the one that is shown."""
    return "".join(
        f'<option value="{value}"{" selected" if value == (chosen or "") else ""}>{html_text(said)}</option>'
        for value, said in (("", "any"), *_STATES.items())
    )


def _table(items: list[PlanItem]) -> str:
    return plain_table(
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
