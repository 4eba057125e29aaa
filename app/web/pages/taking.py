"""The files that a plan can be taken away as."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from fastapi import APIRouter, Request, Response

from meshwright.app.edge.bodies import JSON
from meshwright.app.pictures.asked import picture
from meshwright.app.pictures.files import Picture
from meshwright.app.store.plans import PlanStore
from meshwright.app.web.children import drawn_by_child
from meshwright.app.web.pages.layout import HEADERS
from meshwright.app.web.pages.routes import PageReader, PageRoute, plan_text

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class Taken(StrEnum):
    """The files beside the plan document, by the names that their addresses have."""

    PAGE = "page"
    TRACE = "trace"
    STAGES = "stages.csv"
    TIMELINE = "timeline"
    MEMORY = "memory"
    FRONTIER = "frontier"
    MAP = "map"


_SVG = "image/svg+xml"
_KINDS: Mapping[Taken, tuple[Picture, str, str]] = MappingProxyType(
    {
        Taken.PAGE: (Picture.HTML, "plan.html", "text/html; charset=utf-8"),
        Taken.TRACE: (Picture.TRACE, "plan.perfetto.json", JSON),
        Taken.STAGES: (Picture.CSV, "stages.csv", "text/csv; charset=utf-8"),
        Taken.TIMELINE: (Picture.TIMELINE, "timeline.svg", _SVG),
        Taken.MEMORY: (Picture.MEMORY, "memory.svg", _SVG),
        Taken.FRONTIER: (Picture.FRONTIER, "frontier.svg", _SVG),
        Taken.MAP: (Picture.MAP, "map.svg", _SVG),
    }
)
"""The picture that draws each file, its name, and its type."""


@router.get("/plans/{digest}/document")
def take_document(request: Request, caller: PageReader, digest: str) -> Response:
    """The plan document, as a file."""
    text = PlanStore(request.app.state.engine, caller.tenant).get(digest)
    return Response(text, media_type=JSON, headers=HEADERS | {"content-disposition": 'attachment; filename="plan.json"'})


def _taker(kind: Taken) -> Callable[[Request, PageReader, str], Awaitable[Response]]:
    wanted, name, media_type = _KINDS[kind]

    async def take(request: Request, caller: PageReader, digest: str) -> Response:
        """A file of a plan."""
        asked = {"plan": await plan_text(request, caller, digest), "kind": wanted.value}
        drawn = await drawn_by_child(request, caller, picture, asked)
        return Response(
            drawn["text"], media_type=media_type, headers=HEADERS | {"content-disposition": f'attachment; filename="{name}"'}
        )

    return take


for _kind in Taken:
    router.get(f"/plans/{{digest}}/{_kind.value}")(_taker(_kind))
