"""Calibrations: the list, and one with its errors, predicted against measured runs, and what is stale by it."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from meshwright.app.base.errors import CalibrationNotFoundError, NoSuchError
from meshwright.app.base.figures import counted, percent, significant
from meshwright.app.base.quoting import html_text
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.pictures.charts import Axis, Point, scatter_chart
from meshwright.app.pictures.page import plain_table
from meshwright.app.requests.calibrations import provenance_of
from meshwright.app.store.calibrations import CalibrationStore, CalibrationSummary
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import Question, QuestionFilter, QuestionRepository
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.pages.layout import alert, following, link, moment, page, terms
from meshwright.app.web.pages.routes import COOKIE, SHORT_DIGEST, PageReader, PageRoute
from meshwright.app.web.pages.runs import runs_table, shown_figure
from meshwright.app.web.schemas import RunItem, run_item
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.from_runs import is_run_key, time_law
from meshwright.costmodels.serving.latency_law import learned_latencies

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Calibrations of a page of the list, and questions that the page of one shows."""

MOST_RUNS = 256
"""Runs that are drawn, the newest: as many as are learned from."""

_CURSOR = "calibration"


@router.get("/calibrations")
def list_calibrations(request: Request, caller: PageReader, cursor: Cursor = None) -> Response:
    """Stored calibrations, newest first."""
    store = CalibrationStore(request.app.state.engine, caller.tenant)
    rows, more = page_of(store.page(None, before=before_of(_CURSOR, cursor), limit=PAGE + 1), PAGE)
    body = "<h1>Calibrations</h1>"
    if rows:
        heads = ("calibration", "stored (UTC)", "measurements", "source")
        body += plain_table("Calibrations", heads, [_row(each) for each in rows])
    else:
        body += "<p>None is stored: plans rest on those that Meshwright ships. Measured runs, and "
        body += "<code>meshwright calibrate</code>, make them.</p>"
    if more:
        body += following("/calibrations", "Older calibrations", {"cursor": cursor_of(_CURSOR, rows[-1].id)})
    return page("Calibrations", body, signed_in=COOKIE in request.cookies)


@router.get("/calibrations/{reference}")
def show_calibration(request: Request, caller: PageReader, reference: str) -> Response:
    """A calibration: what it was fitted to, how far it errs, and the plans that follow it."""
    store = CalibrationStore(request.app.state.engine, caller.tenant)
    try:
        row = store.resolve(reference if reference.isprintable() else "")
        newest = store.resolve(row.key)
    except CalibrationNotFoundError as error:
        raise NoSuchError("no such calibration is stored", given=reference[:200]) from error
    calibration = store.find(row.name)
    body = f"<h1>{html_text(row.key)}, version {row.version:,}</h1>"
    if newest.version > row.version:
        place = link(f"/calibrations/{newest.key}@{newest.version}", f"version {newest.version:,}")
        body += (
            f'<p class="bad">Replaced by {place} of {moment(newest.created_at)} UTC: plans that rest on this one are stale.</p>'
        )
    body += terms(_facts(row, calibration)) + _learned(calibration)
    if is_run_key(row.key):
        body += _runs(request, caller, calibration)
    else:
        body += _errors(calibration)
    body += _followed(request, caller, row.key)
    return page(f"Calibration: {row.key}", body, signed_in=COOKIE in request.cookies)


def _row(row: CalibrationSummary) -> tuple[str, ...]:
    name = f"{row.key}@{row.version}"
    return link(f"/calibrations/{name}", name), moment(row.created_at), f"{row.samples:,}", html_text(row.source)


def _facts(row: CalibrationSummary, calibration: Calibration) -> list[tuple[str, str]]:
    sources = "<br>".join(html_text(f"{source}: {rows}") for source, rows in provenance_of(calibration.document).items())
    return [
        ("stored", f"{moment(row.created_at)} UTC"),
        ("measurements", f"{row.samples:,}"),
        ("from", sources),
        ("digest", html_text(row.name.partition("@")[2])),
    ]


def _learned(calibration: Calibration) -> str:
    """The lessons of runs in words; nothing of other calibrations."""
    latencies = learned_latencies((calibration,))
    if latencies is not None:
        lines = [
            f"{time}: {1e3 * law.outside_s:.1f} ms more than simulated, with that median {significant(law.scale)} times, "
            f"at most {significant(law.factor(0.9))} times in nine of ten cases"
            for time, law in (("first token", latencies.ttft), ("each other token", latencies.tpot))
        ]
    elif is_run_key(str(calibration.document["key"])):
        law = time_law(calibration)
        low, high = law.factor(0.05), law.factor(0.95)
        lines = [
            f"Steps take {law.scale:.3f} times what the cost model says; nine of ten runs between {low:.3f} and {high:.3f}",
            f"Memory of {counted(len(calibration.document['memory']), 'run')}",
        ]
    else:
        return ""
    return "<ul>" + "".join(f"<li>{html_text(line)}</li>" for line in lines) + "</ul>"


def _runs(request: Request, caller: Principal, calibration: Calibration) -> str:
    """Predicted against measured, a drawing for each figure that the runs have, and the runs."""
    document = calibration.document
    wanted = RunFilter(cluster=document["cluster"], profile=document["profile"])
    found = RunRepository(request.app.state.engine, caller.tenant).page(wanted, before=None, limit=MOST_RUNS)
    items = [run_item(each) for each in found]
    figures = dict.fromkeys(name for item in items for name in item.measured if item.predicted.get(name))
    drawn = "".join(_scatter(name, items) for name in figures)
    return f"{drawn}<h2>Runs</h2>{runs_table(items)}"


def _scatter(name: str, items: list[RunItem]) -> str:
    points = [
        Point(
            item.measured[name],
            item.predicted[name],
            f"{item.model} {item.label}: measured {shown_figure(name, item.measured[name])}, "
            f"predicted {shown_figure(name, item.predicted[name])}",
            f"/plans/{item.plan}",
        )
        for item in items
        if item.measured.get(name) and item.predicted.get(name)
    ]

    def text(value: float) -> str:
        return shown_figure(name, value)

    title = f"{name.replace('_', ' ')}: predicted against measured"
    svg = scatter_chart(title, Axis("measured", text), Axis("predicted before anything was learned", text), points)
    place = f'<div class="scroll wide" tabindex="0" role="region" aria-label="{html_text(title)}">'
    return f"<h2>{html_text(title)}</h2>{place}{svg}</div>"


def _errors(calibration: Calibration) -> str:
    rows = [
        (html_text(score["name"]), f"{score['rows']:,}", percent(score["median"]), percent(score["p95"]))
        for score in calibration.document.get("scores", ())
    ]
    if not rows:
        return ""
    heads = ("kernel", "held-out rows", "median error", "P95 error")
    return f"<h2>Errors on measurements that were held out</h2>{plain_table('Errors', heads, rows)}"


def _followed(request: Request, caller: Principal, key: str) -> str:
    found = QuestionRepository(request.app.state.engine, caller.tenant)
    questions = found.page(QuestionFilter(calibration=key), before=None, limit=PAGE)
    if not questions:
        return "<h2>Plans that follow it</h2><p>None.</p>"
    stale = sum(each.stale_since is not None for each in questions)
    body = f"<h2>Plans that follow it</h2><p>{counted(len(questions), 'question')}, {stale:,} of them with a stale plan.</p>"
    body += alert("Plan them again on the page of re-plans.") if stale else ""
    return body + plain_table("Plans that follow it", ("plan", "state"), [_question(each) for each in questions])


def _question(question: Question) -> tuple[str, str]:
    of_plan = "none yet" if question.plan is None else link(f"/plans/{question.plan}", _named(question))
    state = "current"
    if question.stale_since is not None:
        state = html_text(f"stale since {moment(question.stale_since)}: {question.stale_reason}")
    return of_plan, state


def _named(question: Question) -> str:
    model = json.loads(question.document).get("model", {})
    name = question.model or (model.get("catalog") if isinstance(model, dict) else None)
    return f"{name or 'a model given in full'}, {(question.plan or '')[:SHORT_DIGEST]}"
