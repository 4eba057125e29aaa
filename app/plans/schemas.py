"""What the plan endpoints take and give, as Pydantic models."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from app.db.plan_repository import PlanSummary
from app.requests.document import RequestDocument
from solver.plan import Plan

ANSWER = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class PlanDocument(Plan):
    """A plan with the resolved request it answers."""

    request: RequestDocument


class PlanItem(BaseModel):
    """A plan in a list."""

    model_config = ANSWER

    digest: str
    created_at: datetime
    model: str
    kind: str
    feasible: bool
    status: str = Field(description="Of the certificate: optimal, feasible, infeasible or undecided.")
    devices: int
    tokens_per_s: float | None
    stale_since: datetime | None = Field(description="When a newer calibration of one of its devices was stored; else null.")


class PlanPage(BaseModel):
    """A page of plans, newest first."""

    model_config = ANSWER

    plans: list[PlanItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class Health(BaseModel):
    """The process answers."""

    model_config = ANSWER

    status: str


class QueueReport(BaseModel):
    """How the queue of jobs stands."""

    model_config = ANSWER

    queued: int
    running: int
    oldest_s: float = Field(description="How long the job that was submitted first waits.")
    workers: int = Field(description="Workers that are alive.")


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


class FaultDocument(BaseModel):
    """What is wrong with one field."""

    model_config = ANSWER

    field: str
    problem: str
    given: str | None = None
    allowed: str | None = None
    remedy: str | None = None


class ProblemDocument(BaseModel):
    """A problem (RFC 9457)."""

    model_config = ANSWER

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    request_id: str | None = None
    errors: list[FaultDocument] = []


def plan_item(summary: PlanSummary, stale_since: datetime | None) -> PlanItem:
    """A row as an item of a list."""
    fields = {name: getattr(summary, name) for name in PlanItem.model_fields if name != "stale_since"}
    return PlanItem(**fields, stale_since=stale_since)
