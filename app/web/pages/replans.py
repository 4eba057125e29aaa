"""Re-plans: what is stale, the form that starts a batch, and the page of one until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import counted, gib, percent, seconds
from meshwright.app.base.quoting import html_text
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.pictures.page import plain_table
from meshwright.app.service.replans import ReplanService, ReplanWish
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.questions import QuestionFilter
from meshwright.app.store.replans import RUNNING, Outcome, Replan, ReplanItem, ReplanRepository, Totals
from meshwright.app.web.pages.builder import LOOK_AGAIN_S
from meshwright.app.web.pages.layout import HEADERS, choice, field, following, link, moment, page, terms
from meshwright.app.web.pages.routes import COOKIE, PageClusterWriter, PageReader, PageRoute, form_of
from meshwright.app.web.replans import ASKED_FOR

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Batches, or plans of one, on a page."""

_BATCHES, _ITEMS = "replan", "replan-item"


@router.get("/replans")
def list_replans(request: Request, caller: PageReader, cursor: Cursor = None) -> Response:
    """Batches, newest first, and how many plans are stale now."""
    batches = ReplanRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(batches.page(before=before_of(_BATCHES, cursor), limit=PAGE + 1), PAGE)
    body = f"<h1>Re-plans</h1>{_start_form(request, caller)}"
    body += replans_table(batches, rows) if rows else "<p>None has been started.</p>"
    if more:
        body += following("/replans", "Older re-plans", {"cursor": cursor_of(_BATCHES, rows[-1].row)})
    return page("Re-plans", body, signed_in=COOKIE in request.cookies)


@router.post("/replans")
async def start_replan(request: Request, caller: PageClusterWriter) -> Response:
    """Start a batch of what is stale, and lead to its page."""
    given = await form_of(request)
    service: ReplanService = request.app.state.replans
    about = QuestionFilter(given.get("cluster"), given.get("model"), calibration=given.get("calibration"))
    batch = await asyncio.to_thread(service.start_now, caller, ReplanWish(about, cause=ASKED_FOR))
    return RedirectResponse(f"/replans/{batch.id}", 303, HEADERS)


@router.get("/replans/{replan_id}")
def show_replan(
    request: Request,
    caller: PageReader,
    replan_id: str,
    cursor: Cursor = None,
    outcome: Annotated[Outcome | Literal[""] | None, Query()] = None,
) -> Response:
    """A batch: how far it is, and the old plan beside the new one, question by question."""
    service: ReplanService = request.app.state.replans
    batch = service.get(caller, replan_id)
    batches = ReplanRepository(request.app.state.engine, caller.tenant)
    totals = batches.totals(batch.id)
    found = batches.items(batch.id, outcome or None, after=before_of(_ITEMS, cursor), limit=PAGE + 1)
    rows, more = page_of(found, PAGE)
    is_running = batch.status == RUNNING
    body = f"<h1>Re-plan: {html_text(batch.cause)}</h1>{_progress(batch, totals)}"
    if is_running and caller.may(Scope.CLUSTERS_WRITE):
        body += f'<form method="post" action="/replans/{html_text(batch.id)}/cancel"><p><button>Cancel it</button></p></form>'
    body += _outcome_form(batch, outcome)
    body += _items_table(rows) if rows else "<p>No plan is in it.</p>" if not sum(totals.counts.values()) else "<p>None.</p>"
    if more:
        given = {"cursor": cursor_of(_ITEMS, rows[-1].id), "outcome": outcome or None}
        body += following(f"/replans/{batch.id}", "More plans", given)
    again = LOOK_AGAIN_S if is_running else None
    return page("Re-plan", body, refresh_s=again, signed_in=COOKIE in request.cookies)


@router.post("/replans/{replan_id}/cancel")
async def cancel_replan(request: Request, caller: PageClusterWriter, replan_id: str) -> Response:
    """Cancel a batch; plans that were made stay."""
    await form_of(request)
    service: ReplanService = request.app.state.replans
    batch = await asyncio.to_thread(service.cancel, caller, replan_id)
    return RedirectResponse(f"/replans/{batch.id}", 303, HEADERS)


def replans_table(batches: ReplanRepository, rows: Sequence[Replan]) -> str:
    """Return batches as a table, with what became of their plans."""
    shown = []
    for batch in rows:
        counts = {outcome: number for outcome, number in batches.totals(batch.id).counts.items() if number}
        became = ", ".join(f"{number:,} {outcome.value}" for outcome, number in counts.items()) or "nothing was stale"
        place = link(f"/replans/{batch.id}", moment(batch.created_at))
        shown.append((place, html_text(batch.cause), html_text(batch.cluster or ""), batch.status, became))
    return plain_table("Re-plans", ("started (UTC)", "because", "cluster", "state", "plans"), shown)


def _start_form(request: Request, caller: Principal) -> str:
    service: ReplanService = request.app.state.replans
    stale = service.preview(caller, QuestionFilter())
    said = (
        f"{counted(stale.questions, 'question has', 'questions have')} a stale plan"
        + (f"; {stale.stored:,} of the {counted(stale.plans, 'plan')} wanted are stored already" if stale.plans else "")
        + (f"; {stale.unusable:,} can't be planned any more" if stale.unusable else "")
    )
    if not caller.may(Scope.CLUSTERS_WRITE):
        return f"<p>{html_text(said)}.</p>"
    return (
        f'<p>{html_text(said)}.</p><form method="post" action="/replans"><div class="fields">'
        f"{field('cluster', 'Only of this cluster')}{field('model', 'Only of this registered model')}"
        f"{field('calibration', 'Only with the calibration of this device')}</div>"
        "<p><button>Plan what is stale again</button></p></form>"
    )


def _outcome_form(batch: Replan, outcome: Outcome | str | None) -> str:
    options = [("", "all"), *((each.value, each.value) for each in Outcome)]
    return (
        f'<form method="get" action="/replans/{html_text(batch.id)}">'
        f"{choice('outcome', 'Outcome', options, outcome or '')} <p><button>Show</button></p></form>"
    )


def _progress(batch: Replan, totals: Totals) -> str:
    every = sum(totals.counts.values())
    waiting = totals.counts.get(Outcome.WAITING, 0)
    done = every - waiting
    named = ", ".join(f"{number:,} {outcome.value}" for outcome, number in totals.counts.items() if number)
    state = f"<strong>{html_text(batch.status)}</strong>: {done:,} of {counted(every, 'plan')}"
    return (
        f'<progress value="{done}" max="{max(every, 1)}" aria-label="plans made again"></progress>'
        + f'<p role="status">{state}. {html_text(named)}</p>'
        + terms(
            [
                ("cluster", html_text(batch.cluster or "")),
                ("version", "" if batch.version is None else str(batch.version)),
                ("started", f"{moment(batch.created_at)} UTC"),
                ("ended", "" if batch.finished_at is None else f"{moment(batch.finished_at)} UTC"),
                ("bytes that move", gib(totals.switch_bytes) if totals.switch_bytes else ""),
                ("webhook", html_text(batch.webhook_status or "")),
            ]
        )
    )


def _items_table(items: Sequence[ReplanItem]) -> str:
    rows = []
    for item in items:
        old = "" if item.old_plan is None else link(f"/plans/{item.old_plan}", "old")
        new = _new_plan(item)
        both = ""
        if item.old_plan and item.digest and item.outcome in (Outcome.BETTER, Outcome.WORSE, Outcome.UNCHANGED):
            both = link(f"/diff?{urlencode({'old': item.old_plan, 'new': item.digest})}", "compare")
        change = ""
        if item.old_value and item.new_value is not None:
            off = item.new_value / item.old_value - 1
            change = f"{'+' if off >= 0 else '-'}{percent(abs(off))}"
        moved = "" if item.switch_bytes is None else gib(item.switch_bytes)
        takes = "" if item.switch_s is None else seconds(item.switch_s)
        why = html_text(item.reason or "")
        rows.append((html_text(item.model or ""), item.outcome, change, old, new, both, moved, takes, why))
    heads = ("model", "outcome", "objective", "was", "is", "", "moves", "in at least", "why")
    return plain_table("Plans of the re-plan", heads, rows)


def _new_plan(item: ReplanItem) -> str:
    if item.outcome == Outcome.WAITING:
        return "" if item.job is None else link(f"/jobs/{item.job}", "its job")
    return link(f"/plans/{item.digest}", "new") if item.digest else ""
