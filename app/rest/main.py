"""The REST service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from sqlalchemy import Engine

from meshwright.app.asking.child import Children
from meshwright.app.asking.questions import ExplanationDocument, GivenPlan, LaunchDocument, NewExplanation
from meshwright.app.checks.schemas import NewCheck
from meshwright.app.db.engine import is_sqlite, open_engine
from meshwright.app.db.migrate import ensure_ready
from meshwright.app.db.writes import Writes
from meshwright.app.http.answers import ProblemDocument
from meshwright.app.http.long_work import LongWork
from meshwright.app.http.middleware import RequestIdMiddleware
from meshwright.app.http.observed import MetricsMiddleware, TracingMiddleware
from meshwright.app.http.problem_responses import install_problem_handlers
from meshwright.app.http.unread import UnreadBodyMiddleware
from meshwright.app.jobs.queue import JobQueue
from meshwright.app.jobs.schemas import JobDocument
from meshwright.app.jobs.watcher import JobWatcher
from meshwright.app.planning.large_bodies import read_large_body
from meshwright.app.planning.service import PlanService
from meshwright.app.plans.reading import PlanReader
from meshwright.app.plans.remembered import RememberedTexts
from meshwright.app.plans.schemas import PlanDocument
from meshwright.app.replans.calibrating import CalibrationService
from meshwright.app.replans.registering import FleetService
from meshwright.app.replans.schemas import NewReplan
from meshwright.app.replans.service import ReplanService
from meshwright.app.replans.webhook import webhook_settings
from meshwright.app.requests.document import RequestDocument
from meshwright.app.rest.asking import router as asking_router
from meshwright.app.rest.calibrations import router as calibrations_router
from meshwright.app.rest.checks import router as checks_router
from meshwright.app.rest.fleet import router as fleet_router
from meshwright.app.rest.jobs import router as jobs_router
from meshwright.app.rest.open_gate import open_gate
from meshwright.app.rest.openapi import generated_from
from meshwright.app.rest.pages.all_pages import ROUTERS as PAGE_ROUTERS
from meshwright.app.rest.plans import router as plans_router
from meshwright.app.rest.reference import router as reference_router
from meshwright.app.rest.replans import router as replans_router
from meshwright.app.rest.runs import router as runs_router
from meshwright.app.rest.security import router as security_router
from meshwright.app.rest.webhook_secrets import router as webhook_secrets_router
from meshwright.app.runs.document import MeasuredRun
from meshwright.app.runs.service import RunService
from meshwright.app.security.audit import AuditMiddleware
from meshwright.app.security.audit_repository import AuditRepository
from meshwright.app.security.schemas import NewKeyDocument, RotationDocument
from meshwright.app.settings import Settings
from meshwright.app.version import installed_version


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
        also_loaded = (read_large_body.__module__,)
        app.state.children = Children(memory_bytes=settings.max_solve_memory_bytes, also_loaded=also_loaded)
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
    app.state.gate = open_gate(settings, engine)
    app.add_middleware(AuditMiddleware, entries=AuditRepository(engine))
    app.add_middleware(MetricsMiddleware)
    app.add_middleware(TracingMiddleware)
    app.add_middleware(RequestIdMiddleware)
    # Outside of what counts and logs the time of an answer: connections linger.
    app.add_middleware(UnreadBodyMiddleware)
    install_problem_handlers(app)
    app.include_router(plans_router)
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
    from meshwright.app.jobs.engine import QueueClient, migrate_queue

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
