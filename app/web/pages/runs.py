"""Measured runs: the list, and the form that reports one of a plan."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import DURATION, RATE, SIZE, Quantity, gib, percent, read_quantity, seconds, significant
from meshwright.app.base.quoting import html_text
from meshwright.app.edge.lists import PRINTABLE, Cursor, NameFilter, before_of, cursor_of, page_of
from meshwright.app.pictures.page import plain_table
from meshwright.app.service.replans import ReplanOptions, ReplanPolicy
from meshwright.app.service.runs import RunService
from meshwright.app.store.runs import FIGURES_OF, RunFilter, RunOutcome, RunRepository
from meshwright.app.web.pages.layout import HEADERS, alert, choice, field, following, link, moment, page, tick
from meshwright.app.web.pages.routes import COOKIE, SHORT_DIGEST, PageReader, PageRoute, PageRunWriter, form_of, stored_plan
from meshwright.app.web.schemas import RunItem, run_item
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Runs of a page of the list."""

_CURSOR = "run"

_FIGURES: dict[str, tuple[str, Quantity, str]] = {
    "step_time_s": ("Time of a step (median)", DURATION, "7.1s"),
    "peak_memory_bytes": ("Peak of the fullest device, reserved", SIZE, "71GiB"),
    "tokens_per_s": ("Tokens generated a second", RATE, "3600/s"),
    "ttft_p95_s": ("P95 time to first token", DURATION, "410ms"),
    "tpot_p95_s": ("P95 time per output token", DURATION, "18ms"),
}
"""The fields of the form, by figure: words, kind, and an example."""

_OUTCOMES = ((RunOutcome.COMPLETED.value, "it completed"), (RunOutcome.OUT_OF_MEMORY.value, "it ran out of memory"))


@router.get("/runs")
def list_runs(
    request: Request,
    caller: PageReader,
    cursor: Cursor = None,
    model: NameFilter = None,
    plan: Annotated[str | None, Query(max_length=71, pattern=PRINTABLE)] = None,
) -> Response:
    """Measured runs, newest first, beside what was predicted of them."""
    wanted = RunFilter(model=model or None, plan=plan or None)
    found = RunRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(found.page(wanted, before=before_of(_CURSOR, cursor), limit=PAGE + 1), PAGE)
    about = "" if plan is None else f"<p>Of {link(f'/plans/{plan}', f'plan {plan[:SHORT_DIGEST]}')} alone.</p>"
    shown = runs_table([run_item(row) for row in rows]) if rows else "<p>No run is stored. A plan's page has the form.</p>"
    older = ""
    if more:
        older = following("/runs", "Older runs", {"cursor": cursor_of(_CURSOR, rows[-1].id), "model": model, "plan": plan})
    return page("Runs", f"<h1>Measured runs</h1>{about}{shown}{older}", signed_in=COOKIE in request.cookies)


@router.get("/plans/{digest}/run")
def ask_for_run(request: Request, caller: PageRunWriter, digest: str) -> Response:
    """The form that reports a run of a plan."""
    return _form(request, stored_plan(request, caller, digest), {})


@router.post("/plans/{digest}/run")
async def report_run(request: Request, caller: PageRunWriter, digest: str) -> Response:
    """Store a run, and lead to the runs of its plan, or to the re-plan that it starts."""
    given = await form_of(request)
    service: RunService = request.app.state.runs
    policy = ReplanPolicy.START if given.get("replan") else ReplanPolicy.MARK
    try:
        observation = await asyncio.to_thread(service.read, _document(digest, given), caller.tenant)
        observed = await asyncio.to_thread(service.add, observation, caller, options=ReplanOptions(policy))
    except InvalidInputError as error:
        answered = await asyncio.to_thread(stored_plan, request, caller, digest)
        return _form(request, answered, given, error)
    place = f"/runs?plan={digest}" if observed.replan is None else f"/replans/{observed.replan}"
    return RedirectResponse(place, 303, HEADERS)


def _document(digest: str, given: dict[str, str]) -> dict[str, object]:
    """The run of a form; raises InvalidInputError for a figure that can't be read."""
    document: dict[str, object] = {"plan": digest, "outcome": given.get("outcome", RunOutcome.COMPLETED.value)}
    for name, (label, kind, _) in _FIGURES.items():
        text = given.get(name)
        if text is not None:
            value = read_quantity(text, kind, what=label)
            document[name] = round(value) if kind is SIZE else value
    return document | {name: given[name] for name in ("software", "label") if name in given}


def _form(
    request: Request, answered: AnsweredRequest, given: dict[str, str], error: InvalidInputError | None = None
) -> Response:
    plan = answered.plan
    figures = "".join(
        field(name, _FIGURES[name][0], value=given.get(name, ""), hint=_FIGURES[name][2]) for name in FIGURES_OF[plan.kind]
    )
    body = (
        f"<h1>Report a run of {link(f'/plans/{plan.digest}', plan.model)}</h1>{'' if error is None else alert(str(error))}"
        f'<form method="post" action="/plans/{html_text(plan.digest)}/run">'
        f"{choice('outcome', 'How it ended', _OUTCOMES, given.get('outcome'))}"
        f'<div class="fields">{figures}</div><div class="fields">'
        f"{field('software', 'Versions that it ran with', value=given.get('software', ''), hint='torch 2.9, NCCL 2.28')}"
        f"{field('label', 'Words that tell equal runs apart', value=given.get('label', ''), hint='job 811')}</div>"
        f"{tick('replan', 'Plan again what this makes stale', on='replan' in given)}"
        "<p><button>Store the run</button></p></form>"
        '<p class="quiet">Leave out what was not measured. What runs on this hardware tell corrects the plans that are made '
        "next.</p>"
    )
    return page("Report a run", body, status=200 if error is None else 422, signed_in=COOKIE in request.cookies)


def runs_table(items: list[RunItem]) -> str:
    """Return measured runs as a table, each figure beside what was predicted."""
    rows = []
    for item in items:
        figures = [f"{name}: {_beside(name, value, item.predicted.get(name))}" for name, value in item.measured.items()]
        told = "ran out of memory" if item.outcome is RunOutcome.OUT_OF_MEMORY else "; ".join(figures)
        of_plan = link(f"/plans/{item.plan}", item.plan[:SHORT_DIGEST])
        rows.append((moment(item.created_at), html_text(item.model), of_plan, html_text(told), html_text(item.label)))
    return plain_table("Runs", ("reported (UTC)", "model", "plan", "measured", "label"), rows)


def _beside(name: str, measured: float, predicted: float | None) -> str:
    said = shown_figure(name, measured)
    if not predicted:
        return said
    off = predicted / measured - 1
    return f"{said} (predicted {shown_figure(name, predicted)}, {'+' if off >= 0 else '-'}{percent(abs(off))})"


def shown_figure(name: str, value: float) -> str:
    """Return a figure of a run in its unit."""
    if name.endswith("_bytes"):
        return gib(value)
    return significant(value) if name.endswith("per_s") else seconds(value)
