"""Re-plans: what is stale, the form that starts a batch, and the page of one until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import counted, gib, percent, seconds
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.service.replans import ReplanService, ReplanWish
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.questions import QuestionFilter
from meshwright.app.store.replans import RUNNING, Outcome, Replan, ReplanItem, ReplanRepository, Totals
from meshwright.app.web.pages.builder import LOOK_AGAIN_S
from meshwright.app.web.pages.layout import HEADERS, following, moment, render
from meshwright.app.web.pages.routes import PageClusterWriter, PageReader, PageRoute, form_of
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
    return render(
        request,
        "replans.html",
        stale=_stale(request, caller),
        may_start=caller.may(Scope.CLUSTERS_WRITE),
        rows=replans_rows(batches, rows),
        more=following("/replans", "Older re-plans", cursor_of(_BATCHES, rows[-1].row) if more else None),
    )


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
    every = sum(totals.counts.values())
    done = every - totals.counts.get(Outcome.WAITING, 0)
    named = ", ".join(f"{number:,} {outcome.value}" for outcome, number in totals.counts.items() if number)
    next_items = cursor_of(_ITEMS, rows[-1].id) if more else None
    return render(
        request,
        "replan.html",
        refresh_s=LOOK_AGAIN_S if is_running else None,
        batch=batch,
        every=every,
        done=done,
        progress=f"{done:,} of {counted(every, 'plan')}. {named}",
        facts=_facts(batch, totals),
        may_cancel=is_running and caller.may(Scope.CLUSTERS_WRITE),
        outcome=outcome,
        outcomes=[("", "all"), *((each.value, each.value) for each in Outcome)],
        rows=[_row(item) for item in rows],
        more=following(f"/replans/{batch.id}", "More plans", next_items, outcome=outcome or None),
    )


@router.post("/replans/{replan_id}/cancel")
async def cancel_replan(request: Request, caller: PageClusterWriter, replan_id: str) -> Response:
    """Cancel a batch; plans that were made stay."""
    await form_of(request)
    service: ReplanService = request.app.state.replans
    batch = await asyncio.to_thread(service.cancel, caller, replan_id)
    return RedirectResponse(f"/replans/{batch.id}", 303, HEADERS)


def replans_rows(batches: ReplanRepository, rows: Sequence[Replan]) -> list[tuple[Words, ...]]:
    """Return the rows of a table of batches, with what became of their plans."""
    shown: list[tuple[Words, ...]] = []
    for batch in rows:
        counts = {outcome: number for outcome, number in batches.totals(batch.id).counts.items() if number}
        became = ", ".join(f"{number:,} {outcome.value}" for outcome, number in counts.items()) or "nothing was stale"
        place = Hyperlink(f"/replans/{batch.id}", moment(batch.created_at))
        shown.append((place, batch.cause, batch.cluster or "", batch.status, became))
    return shown


def _stale(request: Request, caller: Principal) -> str:
    service: ReplanService = request.app.state.replans
    stale = service.preview(caller, QuestionFilter())
    return (
        f"{counted(stale.questions, 'question has', 'questions have')} a stale plan"
        + (f"; {stale.stored:,} of the {counted(stale.plans, 'plan')} wanted are stored already" if stale.plans else "")
        + (f"; {stale.unusable:,} can't be planned any more" if stale.unusable else "")
    )


def _facts(batch: Replan, totals: Totals) -> list[tuple[str, str]]:
    return [
        ("cluster", batch.cluster or ""),
        ("version", "" if batch.version is None else str(batch.version)),
        ("started", f"{moment(batch.created_at)} UTC"),
        ("ended", "" if batch.finished_at is None else f"{moment(batch.finished_at)} UTC"),
        ("bytes that move", gib(totals.switch_bytes) if totals.switch_bytes else ""),
        ("webhook", batch.webhook_status or ""),
    ]


def _row(item: ReplanItem) -> tuple[Words, ...]:
    both: Words = ""
    if item.old_plan and item.digest and item.outcome in (Outcome.BETTER, Outcome.WORSE, Outcome.UNCHANGED):
        both = Hyperlink(f"/diff?{urlencode({'old': item.old_plan, 'new': item.digest})}", "compare")
    change = ""
    if item.old_value and item.new_value is not None:
        off = item.new_value / item.old_value - 1
        change = f"{'+' if off >= 0 else '-'}{percent(abs(off))}"
    return (
        item.model or "",
        item.outcome,
        change,
        "" if item.old_plan is None else Hyperlink(f"/plans/{item.old_plan}", "old"),
        _new_plan(item),
        both,
        "" if item.switch_bytes is None else gib(item.switch_bytes),
        "" if item.switch_s is None else seconds(item.switch_s),
        item.reason or "",
    )


def _new_plan(item: ReplanItem) -> Words:
    if item.outcome == Outcome.WAITING:
        return "" if item.job is None else Hyperlink(f"/jobs/{item.job}", "its job")
    return Hyperlink(f"/plans/{item.digest}", "new") if item.digest else ""
