"""Registered clusters: the list, one with its versions, plans and re-plans, and the forms that register and change one."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import gib, significant
from meshwright.app.base.templates import Hyperlink, Words
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.service.replans import FleetService, PutOptions, ReplanOptions, ReplanPolicy
from meshwright.app.store.fleet import Registered, RegisteredKind, RegisteredRepository
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.questions import Question, QuestionFilter, QuestionRepository
from meshwright.app.store.replans import ReplanRepository
from meshwright.app.web.pages.layout import HEADERS, following, moment, render
from meshwright.app.web.pages.replans import replans_rows
from meshwright.app.web.pages.routes import SHORT_DIGEST, PageClusterWriter, PageReader, PageRoute, form_of
from meshwright.costmodels.errors import MeshwrightError

router = APIRouter(route_class=PageRoute, include_in_schema=False)

PAGE = 50
"""Clusters of a page of the list; versions, plans and re-plans that the page of one shows."""

Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/clusters")
def list_clusters(request: Request, caller: PageReader, cursor: Cursor = None) -> Response:
    """Registered clusters, last changed first."""
    return _list(request, caller, cursor, {})


@router.post("/clusters")
async def put_cluster(request: Request, caller: PageClusterWriter) -> Response:
    """Register a cluster or a new version of one, and lead to its page, or to the re-plan that it starts."""
    given = await form_of(request)
    fleet: FleetService = request.app.state.fleet
    name, words = given.get("name", ""), given.get("words", "")
    policy = ReplanPolicy.START if given.get("replan") else ReplanPolicy.MARK
    options = PutOptions(given.get("expected"), ReplanOptions(policy))
    try:
        put = await asyncio.to_thread(fleet.put, caller, RegisteredKind.CLUSTER, name, words, options)
    except MeshwrightError as error:
        return await asyncio.to_thread(_list, request, caller, None, given, error)
    return RedirectResponse(f"/clusters/{name}" if put.replan is None else f"/replans/{put.replan}", 303, HEADERS)


@router.get("/clusters/{name}")
def show_cluster(request: Request, caller: PageReader, name: str, version: Number = None) -> Response:
    """A registered cluster: its nodes, its versions, the plans that rest on it, and its re-plans."""
    fleet: FleetService = request.app.state.fleet
    engine = request.app.state.engine
    newest = fleet.get(caller, RegisteredKind.CLUSTER, name, None)
    shown = newest if version is None else fleet.get(caller, RegisteredKind.CLUSTER, name, version)
    versions = RegisteredRepository(engine, caller.tenant, RegisteredKind.CLUSTER).versions(name, before=None, limit=PAGE)
    questions = QuestionRepository(engine, caller.tenant).page(QuestionFilter(cluster=name), before=None, limit=PAGE)
    batches = ReplanRepository(engine, caller.tenant)
    started = batches.page(before=None, limit=PAGE, cluster=name)
    return render(
        request,
        "cluster.html",
        newest=newest,
        version=f"{shown.version:,}",
        nodes=_nodes(shown),
        may_write=caller.may(Scope.CLUSTERS_WRITE),
        plans=[_question(each) for each in questions],
        replans=replans_rows(batches, started),
        versions=[
            (Hyperlink(f"/clusters/{name}?version={each.version}", str(each.version)), moment(each.created_at), _row(each)[1])
            for each in versions
        ],
    )


def _list(
    request: Request, caller: Principal, cursor: str | None, given: dict[str, str], error: MeshwrightError | None = None
) -> Response:
    found = RegisteredRepository(request.app.state.engine, caller.tenant, RegisteredKind.CLUSTER)
    rows, more = page_of(found.page(before=before_of(RegisteredKind.CLUSTER.value, cursor), limit=PAGE + 1), PAGE)
    older = cursor_of(RegisteredKind.CLUSTER.value, rows[-1].id) if more else None
    return render(
        request,
        "clusters.html",
        status=200 if error is None else 422,
        problem=None if error is None else str(error),
        rows=[_row(each) for each in rows],
        more=following("/clusters", "More clusters", older),
        may_write=caller.may(Scope.CLUSTERS_WRITE),
        given=given,
    )


def _row(each: Registered) -> tuple[Words, ...]:
    groups = json.loads(each.document)["groups"]
    devices = sum(group["nodes"] * group["node"]["devices_per_node"] for group in groups)
    named = ", ".join(f"{group['nodes']} x {group['node']['name']}" for group in groups)
    place = Hyperlink(f"/clusters/{each.name}", each.name)
    return place, f"{devices:,} ({named})", f"{each.version:,}", moment(each.created_at)


def _nodes(version: Registered) -> list[tuple[str, ...]]:
    document = json.loads(version.document)
    rows: list[tuple[str, ...]] = []
    for group in document["groups"]:
        node, device = group["node"], group["node"]["device"]
        links = f"{_rate(node['intra']['bytes_per_s'])} a device; {_rate(node['inter']['bytes_per_s'])} a node"
        cells = (group["name"], f"{group['nodes']:,} x {node['name']}", f"{node['devices_per_node']} x {device['name']}")
        rows.append((*cells, gib(device["memory_bytes"]), links))
    return rows


def _rate(bytes_per_s: float) -> str:
    return f"{significant(bytes_per_s / 1e9)} GB/s"


def _question(question: Question) -> tuple[Words, ...]:
    document = json.loads(question.document)
    state = f"stale since {moment(question.stale_since)}: {question.stale_reason}" if question.stale_since else "current"
    of_plan = "none yet" if question.plan is None else Hyperlink(f"/plans/{question.plan}", question.plan[:SHORT_DIGEST])
    model = document.get("model", {})
    named = question.model or (
        model.get("catalog") or model.get("name") or "given in full" if isinstance(model, dict) else model
    )
    work = document.get("workload", {})
    return str(named), str(work.get("kind", "")), of_plan, state
