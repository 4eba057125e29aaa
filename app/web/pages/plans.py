"""The list of plans, and the page of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Engine

from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import Cursor, NameFilter, before_of, cursor_of, page_of
from meshwright.app.pictures.asked import article
from meshwright.app.store.plans import PlanFilter, PlanStore, Staleness
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.pages.layout import following, moment, render
from meshwright.app.web.pages.routes import PageReader, PageRoute, plan_text
from meshwright.app.web.pages.runs import runs_rows
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
async def show_plan(request: Request, caller: PageReader, digest: str) -> Response:
    """The page of a plan: the answer, its pictures, how far to trust it, and what else there was."""
    asked = {"plan": await plan_text(request, caller, digest), "instead": f"/plans/{digest}/instead"}
    drawn = await drawn_by_child(request, caller, article, asked)
    return await asyncio.to_thread(_plan_page, request, caller, digest, drawn)


def _plan_page(request: Request, caller: Principal, digest: str, drawn: Mapping[str, Any]) -> Response:
    since = PlanStore(request.app.state.engine, caller.tenant).stale_since(digest).get(digest)
    runs = RunRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(runs.page(RunFilter(plan=digest), before=None, limit=MOST_RUNS + 1), MOST_RUNS)
    return render(
        request,
        "plan.html",
        view=drawn["view"],
        stale_since=None if since is None else moment(since),
        actions=_actions(drawn, digest, caller),
        runs=runs_rows([run_item(row) for row in rows]),
        all_runs=Hyperlink(f"/runs?plan={digest}", "All runs of it") if more else None,
        files=_files(drawn, digest),
    )


def _actions(drawn: Mapping[str, Any], digest: str, caller: Principal) -> list[Hyperlink]:
    """Links to all that can be done with a plan."""
    if not drawn["is_feasible"]:
        return []
    places = [
        Hyperlink(f"/plans/{digest}/launch", "Launch it"),
        Hyperlink(f"/diff?old={digest}", "Compare it with another"),
        Hyperlink(f"/plans/{digest}/clusters", "Ask it of other clusters"),
    ]
    if drawn["has_step"]:
        places.append(Hyperlink(f"/plans/{digest}/step", "Look at a step closely"))
    if drawn["has_load"]:
        places.append(Hyperlink(f"/plans/{digest}/load", "See it under load"))
    if caller.may(Scope.CALIBRATIONS_WRITE):
        places.append(Hyperlink(f"/plans/{digest}/run", "Report a run of it"))
    return places


def _files(drawn: Mapping[str, Any], digest: str) -> list[Hyperlink]:
    """The files that a plan can be taken away as."""
    files = [("document", "plan document (JSON)"), ("page", "this page as a file")]
    if drawn["is_feasible"]:
        files += [("stages.csv", "its stages (CSV)"), ("map", "rank map (SVG)"), ("memory", "memory (SVG)")]
    if drawn["has_step"]:
        files += [("timeline", "timeline (SVG)"), ("trace", "trace of a step for Perfetto")]
    return [Hyperlink(f"/plans/{digest}/{name}", words) for name, words in files]


def _row(item: PlanItem) -> tuple[Words, ...]:
    return (
        Hyperlink(f"/plans/{item.digest}", item.model),
        item.kind,
        f"{item.devices:,}" if item.feasible else "",
        "no plan" if item.tokens_per_s is None else f"{item.tokens_per_s:,.0f}",
        item.status,
        moment(item.created_at),
        "" if item.stale_since is None else "a newer one is stored",
    )
