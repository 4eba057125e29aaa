"""The REST service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from sqlalchemy import Engine

from meshwright.app.base.settings import Settings
from meshwright.app.base.version import installed_version
from meshwright.app.edge.audit import AuditMiddleware
from meshwright.app.edge.bodies import UnreadBodyMiddleware
from meshwright.app.edge.lists import ProblemDocument
from meshwright.app.edge.long_work import LongWork
from meshwright.app.edge.middleware import MetricsMiddleware, RequestIdMiddleware, TracingMiddleware
from meshwright.app.edge.problems import install_problem_handlers
from meshwright.app.edge.schemas import NewKeyDocument, RotationDocument
from meshwright.app.pictures import asked as pictures
from meshwright.app.requests.document import RequestDocument
from meshwright.app.service.asking import ExplanationDocument, GivenPlan, LaunchDocument, NewExplanation
from meshwright.app.service.child import Children
from meshwright.app.service.engine import JobQueue
from meshwright.app.service.large_bodies import read_large_body
from meshwright.app.service.planning import PlanService
from meshwright.app.service.replan_schemas import NewReplan
from meshwright.app.service.replans import CalibrationService, FleetService, ReplanService
from meshwright.app.service.runs import RunService
from meshwright.app.service.watcher import JobWatcher
from meshwright.app.service.webhook import webhook_settings
from meshwright.app.store.engine import is_sqlite, open_engine
from meshwright.app.store.migrate import ensure_ready
from meshwright.app.store.plans import PlanReader, RememberedTexts
from meshwright.app.store.runs import MeasuredRun
from meshwright.app.store.security import AuditRepository
from meshwright.app.store.writes import Writes
from meshwright.app.web.asking import router as asking_router
from meshwright.app.web.calibrations import router as calibrations_router
from meshwright.app.web.checks import router as checks_router
from meshwright.app.web.comparisons import NewComparison
from meshwright.app.web.comparisons import router as comparisons_router
from meshwright.app.web.fleet import router as fleet_router
from meshwright.app.web.gate import open_gate
from meshwright.app.web.jobs import router as jobs_router
from meshwright.app.web.pages.all_pages import ROUTERS as PAGE_ROUTERS
from meshwright.app.web.plans import router as plans_router
from meshwright.app.web.reference import router as reference_router
from meshwright.app.web.replans import router as replans_router
from meshwright.app.web.runs import router as runs_router
from meshwright.app.web.schemas import JobDocument, NewCheck, PlanDocument
from meshwright.app.web.security import router as security_router
from meshwright.app.web.webhook_secrets import router as webhook_secrets_router

DRAWING_LIMIT_S = 20.0
"""Seconds that the pictures of a page may take: ten times what those of the largest step take."""


def create_app(settings: Settings, open_queue: Callable[[Engine], JobQueue] | None = None) -> FastAPI:
    """The service over the settings' database, its queue opened by ``open_queue`` in its place."""
    engine = open_engine(settings.database_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue = await asyncio.to_thread(_open_queue, engine, settings, open_queue)
        watcher = JobWatcher(engine)
        long_work = LongWork(settings.max_body_bytes)
        writes = Writes(engine)
        app.state.queue, app.state.watcher, app.state.writes = queue, watcher, writes
        app.state.long_work = long_work
        texts = RememberedTexts()
        app.state.plan_reader = PlanReader(engine, texts)
        app.state.service = PlanService(engine, queue, settings, texts)
        app.state.replans = ReplanService(engine, queue, webhook_settings(settings))
        app.state.fleet = FleetService(engine, app.state.replans)
        app.state.calibrations = CalibrationService(engine, app.state.replans)
        app.state.runs = RunService(engine, app.state.replans)
        yield
        watcher.close()
        await long_work.close()
        await writes.close()
        queue.close()
        engine.dispose()

    app = FastAPI(
        title="Meshwright",
        version=installed_version(),
        summary="Plans how large models train and serve on a cluster.",
        lifespan=lifespan,
        # The pages that FastAPI offers here load scripts from another site.
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings, app.state.engine = settings, engine
    app.state.workers_since_s = None
    app.state.first_visit = None
    also_loaded, memory_bytes = (read_large_body.__module__, pictures.__name__), settings.max_solve_memory_bytes
    app.state.children = Children(memory_bytes=memory_bytes, also_loaded=also_loaded)
    app.state.drawing = Children(memory_bytes=memory_bytes, limit_s=DRAWING_LIMIT_S, also_loaded=also_loaded)
    app.state.gate = open_gate(settings, engine)
    app.add_middleware(AuditMiddleware, entries=AuditRepository(engine))
    app.add_middleware(MetricsMiddleware)
    app.add_middleware(TracingMiddleware)
    app.add_middleware(RequestIdMiddleware)
    # Outside of what counts and logs the time of an answer: connections linger.
    app.add_middleware(UnreadBodyMiddleware)
    install_problem_handlers(app)
    app.include_router(plans_router)
    app.include_router(comparisons_router)
    app.include_router(asking_router)
    app.include_router(jobs_router)
    app.include_router(fleet_router)
    app.include_router(calibrations_router)
    app.include_router(replans_router)
    app.include_router(runs_router)
    app.include_router(reference_router)
    app.include_router(checks_router)
    app.include_router(security_router)
    app.include_router(webhook_secrets_router)
    for page_router in PAGE_ROUTERS:
        app.include_router(page_router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _open_queue(engine: Engine, settings: Settings, open_queue: Callable[[Engine], JobQueue] | None) -> JobQueue:
    if is_sqlite(engine):
        ensure_ready(engine)
    if open_queue is not None:
        return open_queue(engine)
    # Loaded here: nothing but the queue's users pays for it.
    from meshwright.app.service.engine import QueueClient, migrate_queue

    if is_sqlite(engine):
        migrate_queue(settings.database_url)
    return QueueClient(engine)


_DOCUMENTS = (
    RequestDocument,
    PlanDocument,
    JobDocument,
    ProblemDocument,
    NewKeyDocument,
    RotationDocument,
    NewCheck,
    NewComparison,
    NewReplan,
    MeasuredRun,
    NewExplanation,
    ExplanationDocument,
    GivenPlan,
    LaunchDocument,
)
"""Documents that endpoints read and write as text, which FastAPI does not see."""


def _openapi(app: FastAPI) -> dict[str, Any]:
    """OpenAPI with the documents that endpoints read and write as text, which FastAPI does not see."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        mode: JsonSchemaMode = "validation"
        records: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]]
        records = [(kind, mode, TypeAdapter(kind)) for kind in _DOCUMENTS]
        _, definitions = TypeAdapter.json_schemas(records, ref_template="#/components/schemas/{model}")
        schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        app.openapi_schema = generated_from(schema)
    return app.openapi_schema


# The OpenAPI document in the form that generators of clients take.
#
# Generators build a class for each object, and have no value of one to stand as a default: such a default is said in words.


def generated_from(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the document with each default that is an object, or has one in it, moved into the description of its field, and
    with components whose titles, which generators call classes by, are their names."""
    plain = {name: _plain(value) for name, value in schema.items()}
    parts = plain["components"]["schemas"]
    plain["components"]["schemas"] = {name: {**part, "title": name} for name, part in parts.items()}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    # Examples stay as they are.
    found = {name: each if name in ("example", "examples") else _plain(each) for name, each in value.items()}
    default = found.get("default")
    if isinstance(default, dict) or (isinstance(default, list) and default):
        # The property of an object may be called so: a schema beside it says what it is.
        if not {"$ref", "anyOf", "oneOf", "allOf", "type"} & found.keys():
            return found
        said = f"Default: {json.dumps(default)}"
        before = found.get("description")
        return {name: each for name, each in found.items() if name != "default"} | {
            "description": said if before is None else f"{before}\n\n{said}"
        }
    return found
