"""The base of all answers: how strict their models are, and the problem document."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

ANSWER = ConfigDict(extra="forbid", frozen=True)


class FaultDocument(BaseModel):
    """An error in one field."""

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
