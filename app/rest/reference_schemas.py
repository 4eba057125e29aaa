"""The answers of the reference endpoints, as Pydantic models."""

from __future__ import annotations

from pydantic import BaseModel, Field

from meshwright.app.http.answers import ANSWER


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
