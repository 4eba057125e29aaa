"""The page of a training step, to be looked at closely: larger and smaller, earlier and later, each part drawn anew."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from meshwright.app.base.templates import Hyperlink
from meshwright.app.pictures.asked import part_of_step
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.pages.layout import render
from meshwright.app.web.pages.routes import PageReader, PageRoute, plan_text

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SMALLEST = 1e-6
"""Share of a step below which nothing is enlarged: a slice of the shortest steps takes more."""

Share = Annotated[float, Query(ge=0.0, le=1.0, allow_inf_nan=False)]


@router.get("/plans/{digest}/step")
async def show_step(request: Request, caller: PageReader, digest: str, start: Share = 0.0, width: Share = 1.0) -> Response:
    """The part of a step between two shares of it, and the ways from there."""
    width = max(width, SMALLEST)
    start = min(start, 1.0 - width)
    text = await plan_text(request, caller, digest)
    drawn = await drawn_by_child(request, caller, part_of_step, {"plan": text, "start": start, "width": width})
    middle = start + width / 2
    ways = (
        ("whole", 0.0, 1.0),
        ("larger", middle - width / 4, width / 2),
        ("smaller", middle - width, width * 2),
        ("earlier", start - width / 2, width),
        ("later", start + width / 2, width),
        ("beginning", 0.0, width),
        ("end", 1.0 - width, width),
    )
    return render(
        request,
        "step.html",
        plan=Hyperlink(f"/plans/{digest}", drawn["model"]),
        ways=[Hyperlink(f"/plans/{digest}/step?{_query(*way)}", name) for name, *way in ways],
        drawing=drawn["svg"],
    )


def _query(start: float, width: float) -> str:
    """A part of a step that lies in it."""
    width = min(1.0, max(SMALLEST, width))
    return urlencode({"start": f"{min(max(0.0, start), 1.0 - width):.8f}", "width": f"{width:.8f}"})
