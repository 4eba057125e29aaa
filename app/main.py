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

from app.calibrations.endpoints import router as calibrations_router
from app.calibrations.service import CalibrationService
from app.checks.endpoints import router as checks_router
from app.checks.schemas import NewCheck
from app.db.audit_repository import AuditRepository
from app.db.engine import is_sqlite, open_engine
from app.db.migrate import ensure_ready
from app.db.writes import Writes
from app.fleet.endpoints import router as fleet_router
from app.fleet.service import FleetService
from app.jobs.endpoints import router as jobs_router
from app.jobs.queue import JobQueue
from app.jobs.schemas import JobDocument
from app.jobs.watcher import JobWatcher
from app.metrics import MetricsMiddleware
from app.middleware import RequestIdMiddleware
from app.plans.endpoints import router as plans_router
from app.plans.schemas import PlanDocument, ProblemDocument
from app.plans.service import PlanService
from app.problem_responses import install_problem_handlers
from app.reference_endpoints import router as reference_router
from app.replans.endpoints import router as replans_router
from app.replans.schemas import NewReplan
from app.replans.service import ReplanService
from app.replans.webhook import webhook_settings
from app.requests.document import RequestDocument
from app.security.audit import AuditMiddleware
from app.security.endpoints import router as security_router
from app.security.opening import open_gate
from app.security.schemas import NewKeyDocument, RotationDocument
from app.settings import Settings
from app.tracing import TracingMiddleware
from app.version import VERSION


def create_app(settings: Settings, open_queue: Callable[[Engine], JobQueue] | None = None) -> FastAPI:
    """The service over the settings' database, its queue opened by ``open_queue`` in its place."""
    engine = open_engine(settings.database_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue = await asyncio.to_thread(_open_queue, engine, settings, open_queue)
        watcher = JobWatcher(engine)
        writes = Writes(engine)
        app.state.queue, app.state.watcher, app.state.writes = queue, watcher, writes
        app.state.service = PlanService(engine, queue, settings)
        app.state.replans = ReplanService(engine, queue, webhook_settings(settings))
        app.state.fleet = FleetService(engine, app.state.replans)
        app.state.calibrations = CalibrationService(engine, app.state.replans)
        yield
        watcher.close()
        await writes.close()
        queue.close()
        engine.dispose()

    app = FastAPI(
        title="Meshwright",
        version=VERSION,
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
    install_problem_handlers(app)
    app.include_router(plans_router)
    app.include_router(jobs_router)
    app.include_router(fleet_router)
    app.include_router(calibrations_router)
    app.include_router(replans_router)
    app.include_router(reference_router)
    app.include_router(checks_router)
    app.include_router(security_router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _open_queue(engine: Engine, settings: Settings, open_queue: Callable[[Engine], JobQueue] | None) -> JobQueue:
    if is_sqlite(engine):
        ensure_ready(engine)
    if open_queue is not None:
        return open_queue(engine)
    # Loaded here: nothing but the queue's users pays for it.
    from app.jobs.engine import QueueClient, migrate_queue

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
        app.openapi_schema = schema
    return app.openapi_schema
