"""Requests with their digest, and the texts of plans that answer them. Nothing here needs a database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from meshwright.app.documents.json_text import compact_json, object_text
from meshwright.app.plans.digest import digest_of_texts, field_texts
from meshwright.app.plans.documents import join_texts, plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with its digest and the JSON text it is stored as."""

    request: PlanRequest
    digest: str
    text: str

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.request.model.name


class RequestKey(Protocol):
    """The parts of a request that are kept while its plan is made: its digest, its text, and the name of its model."""

    @property
    def digest(self) -> str:
        """The digest."""
        ...

    @property
    def text(self) -> str:
        """The JSON text that it is stored as."""
        ...

    @property
    def model(self) -> str:
        """The name of its model."""
        ...


def keyed_request(request: PlanRequest) -> KeyedRequest:
    """The request with its key."""
    texts = field_texts(request_document(request))
    return KeyedRequest(request, digest_of_texts(texts), object_text(texts))


def plan_text(plan: Plan, key: KeyedRequest) -> str:
    """JSON text of the document of a plan that is not stored."""
    return join_texts(compact_json(plan_document(replace(plan, digest=key.digest))), key.text)
