"""Calibrations: the list, and one with its errors, predicted against measured runs, and what is stale by it."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from meshwright.app.base.errors import CalibrationNotFoundError, NoSuchError
from meshwright.app.base.figures import counted, percent, significant
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.pictures.charts import Axis, Point, scatter_chart
from meshwright.app.requests.calibrations import provenance_of
from meshwright.app.store.calibrations import CalibrationStore, CalibrationSummary
from meshwright.app.store.principal import Principal
from meshwright.app.store.questions import Question, QuestionFilter, QuestionRepository
from meshwright.app.store.runs import RunFilter, RunRepository
from meshwright.app.web.pages.layout import following, moment, render
from meshwright.app.web.pages.routes import SHORT_DIGEST, PageReader, PageRoute
from meshwright.app.web.pages.runs import runs_rows, shown_figure
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
    return render(
        request,
        "calibrations.html",
        rows=[_row(each) for each in rows],
        more=following("/calibrations", "Older calibrations", cursor_of(_CURSOR, rows[-1].id) if more else None),
    )


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
    runs = _runs(request, caller, calibration) if is_run_key(row.key) else []
    questions = QuestionRepository(request.app.state.engine, caller.tenant)
    followers = questions.page(QuestionFilter(calibration=row.key), before=None, limit=PAGE)
    stale = sum(each.stale_since is not None for each in followers)
    is_newer = newest.version > row.version
    return render(
        request,
        "calibration.html",
        key=row.key,
        version=f"{row.version:,}",
        newer=Hyperlink(f"/calibrations/{newest.key}@{newest.version}", f"version {newest.version:,}") if is_newer else None,
        newer_since=moment(newest.created_at),
        stored=moment(row.created_at),
        samples=f"{row.samples:,}",
        sources=[f"{source}: {rows}" for source, rows in provenance_of(calibration.document).items()],
        digest=row.name.partition("@")[2],
        learned=_learned(calibration),
        is_of_runs=is_run_key(row.key),
        drawings=_drawings(runs),
        runs=runs_rows(runs),
        errors=_errors(calibration),
        plans=[_question(each) for each in followers],
        is_stale=stale > 0,
        followed=f"{counted(len(followers), 'question')}, {stale:,} of them with a stale plan.",
    )


def _row(row: CalibrationSummary) -> tuple[Words, ...]:
    name = f"{row.key}@{row.version}"
    return Hyperlink(f"/calibrations/{name}", name), moment(row.created_at), f"{row.samples:,}", row.source


def _learned(calibration: Calibration) -> list[str]:
    """The lessons of runs in words; nothing of other calibrations."""
    latencies = learned_latencies((calibration,))
    if latencies is not None:
        return [
            f"{time}: {1e3 * law.outside_s:.1f} ms more than simulated, with that median {significant(law.scale)} times, "
            f"at most {significant(law.factor(0.9))} times in nine of ten cases"
            for time, law in (("first token", latencies.ttft), ("each other token", latencies.tpot))
        ]
    if is_run_key(str(calibration.document["key"])):
        law = time_law(calibration)
        low, high = law.factor(0.05), law.factor(0.95)
        return [
            f"Steps take {law.scale:.3f} times what the cost model says; nine of ten runs between {low:.3f} and {high:.3f}",
            f"Memory of {counted(len(calibration.document['memory']), 'run')}",
        ]
    return []


def _runs(request: Request, caller: Principal, calibration: Calibration) -> list[RunItem]:
    """The runs that a calibration is learned from, and those after it."""
    document = calibration.document
    wanted = RunFilter(cluster=document["cluster"], profile=document["profile"])
    found = RunRepository(request.app.state.engine, caller.tenant).page(wanted, before=None, limit=MOST_RUNS)
    return [run_item(each) for each in found]


def _drawings(items: list[RunItem]) -> list[tuple[str, str]]:
    """Predicted against measured, a title and a drawing for each figure that the runs have."""
    figures = dict.fromkeys(name for item in items for name in item.measured if item.predicted.get(name))
    return [_scatter(name, items) for name in figures]


def _scatter(name: str, items: list[RunItem]) -> tuple[str, str]:
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
    return title, scatter_chart(title, Axis("measured", text), Axis("predicted before anything was learned", text), points)


def _errors(calibration: Calibration) -> list[tuple[str, ...]]:
    return [
        (score["name"], f"{score['rows']:,}", percent(score["median"]), percent(score["p95"]))
        for score in calibration.document.get("scores", ())
    ]


def _question(question: Question) -> tuple[Words, str]:
    of_plan = "none yet" if question.plan is None else Hyperlink(f"/plans/{question.plan}", _named(question))
    state = "current"
    if question.stale_since is not None:
        state = f"stale since {moment(question.stale_since)}: {question.stale_reason}"
    return of_plan, state


def _named(question: Question) -> str:
    model = json.loads(question.document).get("model", {})
    name = question.model or (model.get("catalog") if isinstance(model, dict) else None)
    return f"{name or 'a model given in full'}, {(question.plan or '')[:SHORT_DIGEST]}"
