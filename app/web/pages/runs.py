"""Measured runs: the list, and the form that reports one of a plan."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import DURATION, RATE, SIZE, Quantity, gib, percent, read_quantity, seconds, significant
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import PRINTABLE, Cursor, NameFilter, before_of, cursor_of, page_of
from meshwright.app.service.replans import ReplanOptions, ReplanPolicy
from meshwright.app.service.runs import RunService, observation_of_row, observation_row
from meshwright.app.store.runs import FIGURES_OF, TOLD_OF, RunFilter, RunOutcome, RunRepository
from meshwright.app.web.children import asked_of_child
from meshwright.app.web.pages.layout import HEADERS, following, moment, render
from meshwright.app.web.pages.routes import SHORT_DIGEST, PageReader, PageRoute, PageRunWriter, form_of, stored_plan
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
    "requests_per_s": ("Requests sent a second, if not as asked", RATE, "4/s"),
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
    older = cursor_of(_CURSOR, rows[-1].id) if more else None
    return render(
        request,
        "runs.html",
        plan=None if plan is None else Hyperlink(f"/plans/{plan}", f"plan {plan[:SHORT_DIGEST]}"),
        rows=runs_rows([run_item(row) for row in rows]),
        more=following("/runs", "Older runs", older, model=model, plan=plan),
    )


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
        asked = await asyncio.to_thread(service.asked, _document(digest, given), caller.tenant)
        observation = observation_of_row(asked, await asked_of_child(request, caller, observation_row, asked))
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
    fields_of = (*FIGURES_OF[plan.kind], *TOLD_OF[plan.kind])
    return render(
        request,
        "run.html",
        status=200 if error is None else 422,
        plan=Hyperlink(f"/plans/{plan.digest}", plan.model),
        digest=plan.digest,
        problem=None if error is None else str(error),
        outcomes=_OUTCOMES,
        figures=[(name, _FIGURES[name][0], _FIGURES[name][2]) for name in fields_of],
        given=given,
    )


def runs_rows(items: list[RunItem]) -> list[tuple[Words, ...]]:
    """Return the rows of a table of measured runs, each figure beside what was predicted."""
    rows: list[tuple[Words, ...]] = []
    for item in items:
        figures = [f"{name}: {_beside(name, value, item.predicted.get(name))}" for name, value in item.measured.items()]
        told = "ran out of memory" if item.outcome is RunOutcome.OUT_OF_MEMORY else "; ".join(figures)
        of_plan = Hyperlink(f"/plans/{item.plan}", item.plan[:SHORT_DIGEST])
        rows.append((moment(item.created_at), item.model, of_plan, told, item.label))
    return rows


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
