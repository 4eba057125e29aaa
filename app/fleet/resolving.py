"""Questions resolved against the fleet of now."""

from __future__ import annotations

import json
from dataclasses import dataclass

from meshwright.app.fleet.registry import FleetNow, StoredRegistry
from meshwright.app.plans.keyed import KeyedRequest, keyed_request
from meshwright.app.questions.repository import Asked
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.resolve import NoFiles, resolve_request


@dataclass(frozen=True, slots=True)
class ResolvedQuestion:
    """The request that a question is now, and under which versions."""

    key: KeyedRequest
    asked: Asked


def resolve_question(fleet: FleetNow, document: str) -> ResolvedQuestion:
    """The request of a question's document (JSON text); raises InvalidInputError when the fleet no longer has what it names."""
    registry = StoredRegistry(fleet)
    parsed = json.loads(document)
    request = resolve_request(parsed, files=NoFiles(), registry=registry, stored=registry, entry=Entry.STORED)
    asked = registry.asked(parsed)
    assert asked is not None, "a stored question names something that changes"
    return ResolvedQuestion(keyed_request(request), asked)
