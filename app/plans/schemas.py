"""The bodies and answers of the plan endpoints, as Pydantic models."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, Field

from meshwright.app.http.answers import ANSWER
from meshwright.app.plans.repository import PlanSummary
from meshwright.app.requests.document import RequestDocument
from meshwright.solver.answer.plan_record import PlanRecord


@dataclass(frozen=True, kw_only=True)
class PlanDocument(PlanRecord):
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


def plan_item(summary: PlanSummary, stale_since: datetime | None) -> PlanItem:
    """A row as an item of a list."""
    fields = {name: getattr(summary, name) for name in PlanItem.model_fields if name != "stale_since"}
    return PlanItem(**fields, stale_since=stale_since)
