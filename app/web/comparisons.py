"""REST endpoint of one question that is asked of several clusters: a table of their plans, best first."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import DocumentError, FieldError
from meshwright.app.base.quoting import readable
from meshwright.app.base.records import read_record
from meshwright.app.base.settings import Settings
from meshwright.app.edge.bodies import JSON, body_of, json_body
from meshwright.app.edge.observability import current_parent
from meshwright.app.edge.problems import problem_answers
from meshwright.app.requests.examples import TRAINING_REQUEST
from meshwright.app.requests.several_clusters import cluster_row, clusters_document, row_without_plan
from meshwright.app.service.planning import Call, PlanService, Submission, Wanted
from meshwright.app.service.watcher import JobWatcher
from meshwright.app.store.engine import read_soon
from meshwright.app.store.jobs import Job, JobStatus
from meshwright.app.store.plans import PlanStore
from meshwright.app.store.principal import Principal
from meshwright.app.web.gate import Writer
from meshwright.app.web.plans import submitted
from meshwright.app.web.preferences import PREFER, PRIORITY, urgency_of, wait_of
from meshwright.app.web.schemas import job_address
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import LAUNCHERS_OF

router = APIRouter(prefix="/v1/comparisons", tags=["plans"])

MOST_CLUSTERS = 16
"""Clusters of a comparison: each is a plan of its own, and the queue of a tenant holds a few hundred."""


class NewComparison(BaseModel):
    """A request without its cluster, and the clusters that it is asked of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clusters: list[dict[str, Any] | str] = Field(
        min_length=1, max_length=MOST_CLUSTERS, description="Clusters as a request's 'cluster' says them: words, or documents."
    )
    request: dict[str, Any] = Field(description="A request document without 'cluster'.")


_EXAMPLE = {
    "clusters": ["8xH100", "8xMI300X", {"catalog": "dgx-a100", "nodes": 2}],
    "request": {name: value for name, value in TRAINING_REQUEST.items() if name != "cluster"},
}
COMPARISON_EXAMPLES: dict[str, Any] = {"training": {"summary": "Llama-3.1-8B on three clusters", "value": _EXAMPLE}}
_ANSWER = {"content": {JSON: {"schema": {"type": "object"}}}}


@router.post(
    "",
    summary="Plan a model on several clusters",
    openapi_extra=body_of("NewComparison", examples=COMPARISON_EXAMPLES),
    response_class=Response,
    responses={
        200: {"description": "The table: a row for each cluster, the best first.", **_ANSWER},
        202: {"description": "The same; some clusters have a 'job' that makes their plan. Ask again for the whole.", **_ANSWER},
        **problem_answers(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 507),
    },
)
async def compare(
    request: Request,
    caller: Writer,
    prefer: Annotated[str | None, Header(description=PREFER, max_length=200)] = None,
    priority: Annotated[str | None, Header(description=PRIORITY, max_length=200)] = None,
) -> Response:
    """Ask one question of several clusters: the plans that are stored, and jobs for the others.

    A cluster of which the question can't be asked says why in ``refused``. Raises DocumentError where all say so, and as
    ``POST /v1/plans`` does.
    """
    wait_s, urgency = wait_of(prefer), urgency_of(priority)
    settings: Settings = request.app.state.settings
    asked: list[tuple[str, Submission | InvalidInputError]] = []
    # Each cluster reads the request again: all together take no longer than the largest request of one.
    async with json_body(request, max_bytes=settings.max_body_bytes // MOST_CLUSTERS) as body:
        given = await body.work(_new_comparison, body.document)
        for number, cluster in enumerate(given.clusters, start=1):
            call = Call(caller, {**given.request, "cluster": cluster}, urgency, None, current_parent())
            try:
                asked.append((_words(cluster, number), await submitted(request, await body.work(_look_up, request, call))))
            except InvalidInputError as error:
                asked.append((_words(cluster, number), error))
    refusals = [answer for _, answer in asked if isinstance(answer, InvalidInputError)]
    if len(refusals) == len(asked):
        raise refusals[0]
    until_s = time.monotonic() + wait_s
    rows = []
    for words, answer in asked:
        if isinstance(answer, InvalidInputError):
            rows.append({**row_without_plan(words, str(answer)), "job": None})
        else:
            rows.append(await _row(request, caller, words, answer, within_s=max(0.0, until_s - time.monotonic())))
    is_whole = all(row["job"] is None for row in rows)
    headers = {"preference-applied": f"wait={wait_s:g}"} if wait_s else {}
    return Response(compact_json(clusters_document(rows)), 200 if is_whole else 202, headers, JSON)


def _new_comparison(document: dict[str, Any]) -> NewComparison:
    """The comparison of a body; raises DocumentError."""
    given: NewComparison = read_record(NewComparison, document, what="comparison")
    if "cluster" in given.request:
        fault = FieldError("request.cluster", "the clusters are beside the request", allowed="'clusters' alone")
        raise DocumentError("this comparison can't be used", (fault,))
    return given


def _look_up(request: Request, call: Call) -> Submission | Wanted:
    service: PlanService = request.app.state.service
    return service.look_up(call, service.resolve_alone(call))


async def _row(request: Request, caller: Principal, words: str, made: Submission, *, within_s: float) -> dict[str, Any]:
    """The row of a cluster: its plan, why its job failed, or the job that makes it."""
    text = made.text
    if text is None:
        watcher: JobWatcher = request.app.state.watcher
        engine: Engine = request.app.state.engine
        assert made.job is not None, "a submission has a text or a job"
        job: Job = await watcher.final(caller.tenant, made.job, within_s=within_s)
        if not job.status.is_final:
            return {**row_without_plan(words), "job": job_address(job)}
        if job.status is not JobStatus.SUCCEEDED:
            problem = {} if job.problem is None else json.loads(job.problem)
            said = str(problem.get("detail") or problem.get("title") or f"its job was {job.status.value}")
            return {**row_without_plan(words, said), "job": None}
        text = await read_soon(engine, PlanStore(engine, caller.tenant).get, job.digest) if job.answer is None else job.answer
    # A plan of thousands of stages is megabytes.
    return await asyncio.to_thread(_planned_row, words, text)


def _planned_row(words: str, text: str) -> dict[str, Any]:
    plan = json.loads(text)
    return {**cluster_row(words, plan, _launcher(plan["request"])), "job": None}


def _launcher(request: Mapping[str, Any]) -> Launcher | None:
    """The launcher that starts a plan of a request document; None for an engine that nothing here exports to."""
    search = request["search"]
    return LAUNCHERS_OF[request["workload"]["kind"]].named(Launcher(search["launcher"]), ServingEngine(search["engine"]))


def _words(cluster: dict[str, Any] | str, number: int) -> str:
    """A cluster in few words: its own, its nodes, its name, or its place in the list."""
    if isinstance(cluster, str):
        return readable(cluster)
    if isinstance(cluster.get("catalog"), str):
        return readable(f"{cluster.get('nodes', 1)}x {cluster['catalog']}")
    return readable(cluster["name"]) if isinstance(cluster.get("name"), str) else f"cluster {number}"
