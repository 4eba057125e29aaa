"""The bodies and answers of the re-plan endpoints, as Pydantic models."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from meshwright.app.edge.lists import ANSWER
from meshwright.app.store.replans import Outcome, Replan, ReplanItem, Totals
from meshwright.costmodels.units import Name


class NewReplan(BaseModel):
    """The stale plans to plan again: those about a cluster or a model, or with a calibration, or all."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    cluster: Name | None = None
    model: Name | None = None
    calibration: Name | None = Field(None, description="Key of the device whose newest calibration the plans are made with.")
    webhook: str | None = Field(None, max_length=500, description="Called with the batch's document when it has finished.")


class OutcomeCounts(BaseModel):
    """The number of plans of a batch with each outcome."""

    model_config = ANSWER

    waiting: int
    better: int
    worse: int
    unchanged: int
    infeasible: int
    failed: int
    cancelled: int


class ReplanDocument(BaseModel):
    """A batch, and how far it is."""

    model_config = ANSWER

    id: str
    status: str = Field(description="running, finished or cancelled.")
    cluster: str | None
    version: int | None = Field(description="Version of the cluster, model or calibration that made the plans stale.")
    cause: str
    created_at: datetime
    finished_at: datetime | None
    plans: int
    outcomes: OutcomeCounts
    switch_bytes: int = Field(description="Bytes that move when every run goes over to its new plan, as far as is known.")
    webhook: str | None
    webhook_status: str | None
    items: str = Field(description="Where its report is, plan by plan.")


class ReplanPage(BaseModel):
    """A page of batches, newest first."""

    model_config = ANSWER

    replans: list[ReplanDocument]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class ReplanItemDocument(BaseModel):
    """The outcome of one question: the old plan against the new one."""

    model_config = ANSWER

    question: str = Field(description="Digest of the question.")
    cluster: str | None
    model: str | None
    outcome: Outcome
    reason: str | None
    old_plan: str | None
    new_plan: str | None
    old_value: float | None = Field(description="The old plan's objective; smaller is better.")
    new_value: float | None
    switch_bytes: int | None = Field(description="Bytes that devices receive to go from old to new; null where nothing can.")
    switch_storage_bytes: int | None = Field(description="Those of them that no device holds any more.")
    switch_s: float | None = Field(description="The least time that the links take for it.")
    job: str | None = Field(description="The job that makes or made the new plan.")


class ReplanReport(BaseModel):
    """A page of a batch's report."""

    model_config = ANSWER

    items: list[ReplanItemDocument]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def replan_document(batch: Replan, totals: Totals) -> ReplanDocument:
    """A batch with what its items come to."""
    counts = totals.counts
    return ReplanDocument(
        id=batch.id,
        status=batch.status,
        cluster=batch.cluster,
        version=batch.version,
        cause=batch.cause,
        created_at=batch.created_at,
        finished_at=batch.finished_at,
        plans=sum(counts.values()),
        outcomes=OutcomeCounts(**{outcome.value: counts.get(outcome, 0) for outcome in Outcome}),
        switch_bytes=totals.switch_bytes,
        webhook=batch.webhook,
        webhook_status=batch.webhook_status,
        items=f"/v1/replans/{batch.id}/items",
    )


def replan_item(item: ReplanItem) -> ReplanItemDocument:
    """An item of the report."""
    return ReplanItemDocument(
        question=item.question_digest,
        cluster=item.cluster,
        model=item.model,
        outcome=Outcome(item.outcome),
        reason=item.reason,
        old_plan=item.old_plan,
        new_plan=item.digest or None,
        old_value=item.old_value,
        new_value=item.new_value,
        switch_bytes=item.switch_bytes,
        switch_storage_bytes=item.switch_storage_bytes,
        switch_s=item.switch_s,
        job=None if item.job is None else f"/v1/jobs/{item.job}",
    )
