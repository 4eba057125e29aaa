"""Registered clusters: the list, one with its versions, plans and re-plans, and the forms that register and change one."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.app.base.figures import gib, significant
from meshwright.app.base.quoting import html_text
from meshwright.app.edge.lists import Cursor, before_of, cursor_of, page_of
from meshwright.app.pictures.page import plain_table
from meshwright.app.service.replans import FleetService, PutOptions, ReplanOptions, ReplanPolicy
from meshwright.app.store.fleet import Registered, RegisteredKind, RegisteredRepository
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.questions import Question, QuestionFilter, QuestionRepository
from meshwright.app.store.replans import ReplanRepository
from meshwright.app.web.pages.layout import HEADERS, alert, field, following, link, moment, page, tick
from meshwright.app.web.pages.replans import replans_table
from meshwright.app.web.pages.routes import COOKIE, SHORT_DIGEST, PageClusterWriter, PageReader, PageRoute, form_of
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
    body = (
        f"<h1>{html_text(name)}, version {shown.version:,}</h1>{_nodes(shown)}"
        f"{_change_form(newest) if caller.may(Scope.CLUSTERS_WRITE) else ''}"
        f"<h2>Plans that rest on it</h2>{_questions(questions)}"
        f"<h2>Re-plans</h2>{replans_table(batches, started) if started else '<p>None was started for it.</p>'}"
        f"<h2>Versions</h2>{_versions(name, versions)}"
    )
    return page(f"Cluster: {name}", body, signed_in=COOKIE in request.cookies)


def _list(
    request: Request, caller: Principal, cursor: str | None, given: dict[str, str], error: MeshwrightError | None = None
) -> Response:
    found = RegisteredRepository(request.app.state.engine, caller.tenant, RegisteredKind.CLUSTER)
    rows, more = page_of(found.page(before=before_of(RegisteredKind.CLUSTER.value, cursor), limit=PAGE + 1), PAGE)
    body = "<h1>Clusters</h1>" + ("" if error is None else alert(str(error)))
    if rows:
        heads = ("name", "devices", "version", "changed (UTC)")
        body += plain_table("Clusters", heads, [_row(each) for each in rows])
    else:
        body += "<p>No cluster is registered. Plans that name a registered one are planned again when it changes.</p>"
    if more:
        body += following("/clusters", "More clusters", {"cursor": cursor_of(RegisteredKind.CLUSTER.value, rows[-1].id)})
    if caller.may(Scope.CLUSTERS_WRITE):
        body += (
            '<h2>Register a cluster</h2><form method="post" action="/clusters"><div class="fields">'
            f"{field('name', 'Name', value=given.get('name', ''), hint='prod', needed=True)}"
            f"{field('words', 'Devices, in words', value=given.get('words', ''), hint='3x8xH100@400Gb', needed=True)}"
            "</div><p><button>Register</button></p></form>"
        )
    return page("Clusters", body, status=200 if error is None else 422, signed_in=COOKIE in request.cookies)


def _row(each: Registered) -> tuple[str, ...]:
    groups = json.loads(each.document)["groups"]
    devices = sum(group["nodes"] * group["node"]["devices_per_node"] for group in groups)
    named = ", ".join(f"{group['nodes']} x {group['node']['name']}" for group in groups)
    place = link(f"/clusters/{each.name}", each.name)
    return place, html_text(f"{devices:,} ({named})"), f"{each.version:,}", moment(each.created_at)


def _nodes(version: Registered) -> str:
    document = json.loads(version.document)
    rows = []
    for group in document["groups"]:
        node, device = group["node"], group["node"]["device"]
        links = f"{_rate(node['intra']['bytes_per_s'])} a device; {_rate(node['inter']['bytes_per_s'])} a node"
        cells = (group["name"], f"{group['nodes']:,} x {node['name']}", f"{node['devices_per_node']} x {device['name']}")
        rows.append((*map(html_text, cells), gib(device["memory_bytes"]), links))
    return plain_table("Nodes", ("group", "nodes", "devices of a node", "memory of a device", "fabric; network"), rows)


def _rate(bytes_per_s: float) -> str:
    return f"{significant(bytes_per_s / 1e9)} GB/s"


def _change_form(newest: Registered) -> str:
    return (
        '<form method="post" action="/clusters">'
        f'<input type="hidden" name="name" value="{html_text(newest.name)}">'
        f'<input type="hidden" name="expected" value="{html_text(newest.digest)}">'
        f"{field('words', 'Change it to these devices, in words', hint='2x8xH100@400Gb', needed=True)}"
        f"{tick('replan', 'Plan again what rests on it', on=True)}<p><button>Change it</button></p></form>"
    )


def _questions(questions: tuple[Question, ...]) -> str:
    if not questions:
        return "<p>None yet: name it in a request.</p>"
    rows = []
    for each in questions:
        document = json.loads(each.document)
        state = html_text(f"stale since {moment(each.stale_since)}: {each.stale_reason}") if each.stale_since else "current"
        of_plan = "none yet" if each.plan is None else link(f"/plans/{each.plan}", each.plan[:SHORT_DIGEST])
        model = document.get("model", {})
        named = each.model or (
            model.get("catalog") or model.get("name") or "given in full" if isinstance(model, dict) else model
        )
        work = document.get("workload", {})
        rows.append((html_text(str(named)), html_text(str(work.get("kind", ""))), of_plan, state))
    return plain_table("Plans that rest on it", ("model", "what", "plan", "state"), rows)


def _versions(name: str, versions: tuple[Registered, ...]) -> str:
    rows = [
        (link(f"/clusters/{name}?version={each.version}", str(each.version)), moment(each.created_at), _row(each)[1])
        for each in versions
    ]
    return plain_table("Versions", ("version", "since (UTC)", "devices"), rows)
