"""REST endpoints that only say what there is: health, schemas, models and hardware."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from sqlalchemy import Engine

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.edge.lists import ANSWER
from meshwright.app.edge.problems import NOT_READY, problem_answers, problem_document, problem_response
from meshwright.app.models import catalog
from meshwright.app.service.desk import WORKER_ALIVE_S, JobDesk, QueueState
from meshwright.app.store.migrate import HEAD_REVISION, current_revision, serves
from meshwright.app.web.json_schemas import json_schema, schema_id, schema_names
from meshwright.costmodels.hardware import node_types

# The answers of the reference endpoints, as Pydantic models.


class Health(BaseModel):
    """The process answers."""

    model_config = ANSWER

    status: str


class QueueReport(BaseModel):
    """The state of the queue of jobs."""

    model_config = ANSWER

    queued: int
    running: int
    oldest_s: float = Field(description="How long the job that was submitted first waits.")
    workers: int = Field(description="Workers that are alive.")
    is_late: bool = Field(description="A job has waited longer than MESHWRIGHT_MAX_QUEUE_AGE_S: workers are missing.")


class Readiness(BaseModel):
    """Requests can be served."""

    model_config = ANSWER

    status: str
    queue: QueueReport


class SchemaItem(BaseModel):
    """A JSON Schema in the list."""

    model_config = ANSWER

    name: str
    id: str


class SchemaList(BaseModel):
    """All JSON Schemas."""

    model_config = ANSWER

    schemas: list[SchemaItem]


class ModelItem(BaseModel):
    """A model of the catalogue."""

    model_config = ANSWER

    name: str
    parameters: int
    active_parameters: int = Field(description="Those that a token meets: of routed experts its top k.")
    layers: int


class ModelList(BaseModel):
    """All models of the catalogue."""

    model_config = ANSWER

    models: list[ModelItem]


class NodeItem(BaseModel):
    """A node type of the catalogue."""

    model_config = ANSWER

    name: str
    device: str
    devices_per_node: int
    device_memory_bytes: int
    intra_bytes_per_s: float = Field(description="Fabric among the node's devices, one direction per device.")
    inter_bytes_per_s: float = Field(description="All network cards of the node together, one direction.")


class HardwareList(BaseModel):
    """All node types of the catalogue."""

    model_config = ANSWER

    node_types: list[NodeItem]


WORKERS_START_S = 60.0
"""Time that the workers of a service have to start: they load the solver and may have to prepare the database."""

router = APIRouter()


@router.get("/healthz", tags=["operation"], summary="Whether the process answers")
async def health() -> Health:
    """Says ok as long as the process answers; looks at nothing else, and waits for no thread."""
    return Health(status="ok")


@router.get(
    "/readyz",
    tags=["operation"],
    summary="Whether requests can be served",
    response_model=Readiness,
    responses=problem_answers(503),
)
def ready(request: Request) -> Response:
    """Says ok when the database answers, has the schema of this version, and workers that came with the service are alive; and
    how the queue stands."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    try:
        revision = current_revision(engine)
        if not serves(engine, revision):
            detail = f"the database is at revision {revision}, this version needs {HEAD_REVISION}: run 'meshwright migrate'"
            return problem_response(request, problem_document(NOT_READY, detail))
        queue = JobDesk(engine).state(worker_alive_s=WORKER_ALIVE_S)
    except StoreError as error:
        return problem_response(request, problem_document(NOT_READY, str(error)))
    if _lacks_workers(request.app.state.workers_since_s, queue):
        detail = f"no worker is alive {WORKERS_START_S:g} s after the start of a service that brings its own: see its log"
        return problem_response(request, problem_document(NOT_READY, detail))
    # A queue that is late makes no process unfit: taken out of service, it could not even answer what is stored.
    is_late = queue.oldest_s > settings.max_queue_age_s
    return JSONResponse({"status": "ok", "queue": asdict(queue) | {"is_late": is_late}})


def _lacks_workers(since_s: float | None, queue: QueueState) -> bool:
    """Whether a service that started workers at a moment has none, nor anybody else, though they had time to start."""
    return since_s is not None and not queue.workers and time.monotonic() - since_s > WORKERS_START_S


@router.get("/v1/schemas", tags=["reference"], summary="List the JSON Schemas")
def list_schemas() -> SchemaList:
    """Every document format, by name and versioned id."""
    return SchemaList(schemas=[SchemaItem(name=name, id=schema_id(name)) for name in schema_names()])


@router.get("/v1/schemas/{name}", tags=["reference"], summary="Get a JSON Schema", responses=problem_answers(422))
def get_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a document format."""
    return json_schema(name)


@router.get("/v1/models", tags=["reference"], summary="List the catalogue's models")
def list_models() -> ModelList:
    """Models that a request can name as ``model.catalog``."""
    graphs = [(name, catalog.model(name)) for name in catalog.model_names()]
    return ModelList(
        models=[
            ModelItem(
                name=name,
                parameters=graph.parameters(),
                active_parameters=graph.active_parameters(),
                layers=len(graph.layers),
            )
            for name, graph in graphs
        ]
    )


@router.get("/v1/hardware", tags=["reference"], summary="List the catalogue's node types")
def list_hardware() -> HardwareList:
    """Node types that a request can name as ``cluster.catalog`` or as a group's ``node``."""
    return HardwareList(
        node_types=[
            NodeItem(
                name=node.name,
                device=node.device.name,
                devices_per_node=node.devices_per_node,
                device_memory_bytes=node.device.memory_bytes,
                intra_bytes_per_s=node.intra.bytes_per_s,
                inter_bytes_per_s=node.inter.bytes_per_s,
            )
            for node in node_types()
        ]
    )
