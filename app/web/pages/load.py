"""The page of a serving plan under load: its course over the load, how long requests take, its queue over time."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from meshwright.app.base.documents import parse_document
from meshwright.app.base.figures import percent, seconds, significant
from meshwright.app.base.quoting import csv_text
from meshwright.app.base.templates import Hyperlink
from meshwright.app.pictures.drawings import distribution_drawings, load_drawings, over_time_drawings
from meshwright.app.pictures.simulation_trace import simulation_trace
from meshwright.app.service.load import load_course
from meshwright.app.store.plans import PlanReader
from meshwright.app.store.principal import Principal
from meshwright.app.web.children import asked_of_child
from meshwright.app.web.pages.layout import HEADERS, render
from meshwright.app.web.pages.routes import PageReader, PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_SHOWN = ("mean", "p50", "p90", "p95", "p99")
_TIMES = (("ttft_s", "time to first token"), ("tpot_s", "time per output token"), ("end_to_end_s", "whole request"))


@router.get("/plans/{digest}/load")
async def show_load(request: Request, caller: PageReader, digest: str) -> Response:
    """A serving plan under loads around its own, simulated when it is asked for."""
    course = await _asked(request, caller, digest)
    return render(
        request,
        "load.html",
        plan=Hyperlink(f"/plans/{digest}", "The plan"),
        said=_said(course),
        percentiles=_percentiles(course["simulation"]),
        drawings=[*load_drawings(course), *distribution_drawings(course), *over_time_drawings(course["simulation"])],
        unit=course["unit"],
        loads=_loads(course),
        files=[
            Hyperlink(f"/plans/{digest}/load/csv", "the course (CSV)"),
            Hyperlink(f"/plans/{digest}/load/trace", "a trace for Perfetto"),
        ],
    )


@router.get("/plans/{digest}/load/csv")
async def take_course(request: Request, caller: PageReader, digest: str) -> Response:
    """The course over the load, as a table."""
    course = await _asked(request, caller, digest)
    headers = HEADERS | {"content-disposition": 'attachment; filename="load.csv"'}
    return Response(csv_text(course["course"]), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/plans/{digest}/load/trace")
async def take_trace(request: Request, caller: PageReader, digest: str) -> Response:
    """The requests of a simulation at the plan's own load, as a trace."""
    found = await asked_of_child(request, caller, simulation_trace, await _document(request, caller, digest))
    headers = HEADERS | {"content-disposition": 'attachment; filename="load.perfetto.json"'}
    return Response(found["text"], media_type="application/json", headers=headers)


async def _asked(request: Request, caller: Principal, digest: str) -> dict[str, Any]:
    return dict(await asked_of_child(request, caller, load_course, await _document(request, caller, digest)))


async def _document(request: Request, caller: Principal, digest: str) -> dict[str, Any]:
    reader: PlanReader = request.app.state.plan_reader
    stored = await reader.get(caller.tenant, digest)
    return {"plan": await asyncio.to_thread(parse_document, stored.text.encode(), what="plan")}


def _said(course: dict[str, Any]) -> str:
    simulation = course["simulation"]
    missed = ", ".join(name.replace("_", " ").upper() for name in simulation["missed"])
    if not any(course["targets_s"].values()):
        verdict = "The request sets no targets."
    else:
        verdict = f"Misses {missed}." if missed else "Keeps its targets."
    return (
        f"{verdict} {significant(course['own'])} {course['unit']}: {significant(simulation['output_tokens_per_s'])} output "
        f"tokens/s, busy {percent(simulation['busy'])} of the time, {significant(simulation['mean_batch'])} requests decoding "
        f"on average, at most {simulation['peak_running']:,} running, {simulation['evictions']:,} evictions."
    )


def _percentiles(simulation: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, *(seconds(_value(simulation[key], column)) for column in _SHOWN))
        for key, name in _TIMES
        if simulation[key] is not None
    ]


def _value(times: dict[str, Any], column: str) -> float:
    found = times[column]
    return float(found["value"] if isinstance(found, dict) else found)


def _loads(course: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            significant(point["load"]),
            seconds(point["ttft_p95_s"]),
            "" if point["tpot_p95_s"] is None else seconds(point["tpot_p95_s"]),
            significant(point["output_tokens_per_s"]),
            percent(point["busy"]),
            ", ".join(name.replace("_", " ").upper() for name in point["missed"]),
        )
        for point in course["course"]
    ]
