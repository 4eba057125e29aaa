"""Checks of continuous integration: the list, one report, and the course of a plan over them."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.errors import CheckNotFoundError
from meshwright.app.base.figures import significant
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import PRINTABLE, Cursor, before_of, cursor_of, page_of
from meshwright.app.pictures.courses import courses
from meshwright.app.regression.report import MAX_FIGURE_NAME, MAX_FIGURES
from meshwright.app.store.checks import CheckRepository, StoredCheck
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.pages.layout import following, moment, render
from meshwright.app.web.pages.routes import PageReader, PageRoute
from meshwright.app.web.schemas import MAX_NAME, TrendPoint, check_item, trend_point

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Checks of a page of the list, and points of a course."""

_CURSOR = "check"

Name = Annotated[str, Query(max_length=MAX_NAME, pattern=PRINTABLE)]


@router.get("/checks")
def list_checks(
    request: Request,
    caller: PageReader,
    cursor: Cursor = None,
    project: Annotated[str | None, Query(max_length=MAX_NAME, pattern=PRINTABLE)] = None,
) -> Response:
    """Reports of ``meshwright check``, newest first."""
    found = CheckRepository(request.app.state.engine, caller.tenant)
    rows, more = page_of(found.page(project or None, before=before_of(_CURSOR, cursor), limit=PAGE + 1), PAGE)
    older = cursor_of(_CURSOR, rows[-1][0]) if more else None
    return render(
        request,
        "checks.html",
        rows=[_row(stored) for _, stored in rows],
        more=following("/checks", "Older checks", older, project=project),
    )


@router.get("/checks/trend")
async def show_trend(request: Request, caller: PageReader, project: Name, plan: Name) -> Response:
    """The figures of a plan over the latest checks of a project."""
    points = await asyncio.to_thread(_points, CheckRepository(request.app.state.engine, caller.tenant), project, plan)
    if not points:
        raise CheckNotFoundError("no check of the project has this plan", given=f"{project}, {plan}")
    drawn = await drawn_by_child(request, caller, courses, {"points": [_drawable(point) for point in points]})
    return render(
        request,
        "trend.html",
        plan=plan,
        project=_of_project(project),
        drawings=drawn["drawings"],
        rows=[
            (Hyperlink(f"/checks/{point.check}", moment(point.created_at)), point.verdict, "; ".join(point.findings))
            for point in reversed(points)
        ],
    )


@router.get("/checks/{check_id}")
def show_check(request: Request, caller: PageReader, check_id: str) -> Response:
    """The report of a check, plan by plan."""
    found = CheckRepository(request.app.state.engine, caller.tenant)
    stored = found.find(check_id) if check_id.isprintable() else None
    if stored is None:
        raise CheckNotFoundError("no check has this id", given=check_id)
    report = json.loads(stored.report)
    return render(
        request,
        "check.html",
        project=_of_project(stored.project),
        said=f"{moment(stored.created_at)} UTC, folder {report['folder']}: {_counts(report['counts'])}",
        rows=[_plan_row(stored.project, each) for each in report["plans"]],
    )


def _row(stored: StoredCheck) -> tuple[Words, ...]:
    item = check_item(stored)
    verdict = "passed" if item.passed else "failed"
    place = Hyperlink(f"/checks/{item.id}", moment(item.created_at))
    return place, _of_project(item.project), verdict, _counts(item.counts)


def _plan_row(project: str, plan: dict[str, Any]) -> tuple[Words, ...]:
    course = Hyperlink(f"/checks/trend?{urlencode({'project': project, 'plan': plan['name']})}", plan["name"])
    findings = "; ".join(finding["message"] for finding in plan["findings"])
    return course, plan["verdict"], _speed(plan["was"]), _speed(plan["now"]), findings


def _speed(figures: dict[str, float] | None) -> str:
    return f"{significant(figures['tokens_per_s'])} tokens/s" if figures and "tokens_per_s" in figures else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)


def _of_project(project: str) -> Hyperlink:
    return Hyperlink(f"/checks?{urlencode({'project': project})}", project)


def _points(checks: CheckRepository, project: str, plan: str) -> list[TrendPoint]:
    """The plan as each of the latest checks found it, oldest first."""
    found = checks.page(project, before=None, limit=PAGE)
    return [point for _, stored in reversed(found) if (point := trend_point(stored, plan)) is not None]


def _drawable(point: TrendPoint) -> dict[str, Any]:
    """What is drawn of a point; of a check that was stored before figures were bounded, the first."""
    figures = dict(islice(point.figures.items(), MAX_FIGURES))
    return {"at": moment(point.created_at), "figures": {name[:MAX_FIGURE_NAME]: value for name, value in figures.items()}}
