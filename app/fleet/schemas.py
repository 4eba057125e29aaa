"""The answers of the fleet endpoints, as Pydantic models."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from meshwright.app.fleet.registered_repository import Registered, RegisteredKind
from meshwright.app.http.answers import ANSWER
from meshwright.app.questions.repository import Question


class RegisteredItem(BaseModel):
    """A version of a registered model or cluster, in a list."""

    model_config = ANSWER

    name: str
    version: int
    digest: str = Field(description="sha256 over the canonical form of the document.")
    created_at: datetime


class RegisteredDocument(RegisteredItem):
    """A version of a registered model or cluster, every reference in it resolved."""

    document: dict[str, Any]


class PutAnswer(RegisteredItem):
    """The answer to a PUT."""

    stale: int = Field(description="Questions whose current plan became stale by this version.")
    replan: str | None = Field(description="Where the batch is that plans them again, if one was started.")


class RegisteredPage(BaseModel):
    """A page of registered models or clusters, or of versions of one."""

    model_config = ANSWER

    items: list[RegisteredItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class QuestionItem(BaseModel):
    """A request that names what changes (a registered model or cluster, a newest calibration), and the plan for it now."""

    model_config = ANSWER

    digest: str = Field(description="Of the request document with its names unresolved.")
    cluster: str | None
    model: str | None
    created_at: datetime
    plan: str | None = Field(description="Digest of the current plan; null until there is one.")
    pending: str | None = Field(description="Digest of the plan that is awaited, if one is.")
    stale_since: datetime | None
    stale_reason: str | None


class QuestionPage(BaseModel):
    """A page of questions, newest first."""

    model_config = ANSWER

    questions: list[QuestionItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def registered_item(version: Registered) -> RegisteredItem:
    """A version in a list."""
    return RegisteredItem(**_fields(version))


def registered_document(version: Registered) -> RegisteredDocument:
    """A version with its document."""
    return RegisteredDocument(**_fields(version), document=json.loads(version.document))


def put_answer(version: Registered, *, stale: int, replan: str | None) -> PutAnswer:
    """Return the answer to a PUT."""
    return PutAnswer(**_fields(version), stale=stale, replan=replan)


def question_item(question: Question) -> QuestionItem:
    """A question in a list."""
    return QuestionItem(**{name: getattr(question, name) for name in QuestionItem.model_fields})


def address(kind: RegisteredKind, name: str) -> str:
    """Where a registered model or cluster is."""
    return f"/v1/{kind}s/{name}"


def _fields(version: Registered) -> dict[str, Any]:
    return {name: getattr(version, name) for name in RegisteredItem.model_fields}
