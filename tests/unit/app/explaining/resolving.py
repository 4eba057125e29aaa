"""A request as its tests say it: the documents that explained commands are compared with."""

from __future__ import annotations

from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.solver.problem.request import PlanRequest


def resolve(document: dict[str, object]) -> PlanRequest:
    return resolve_request(document, files=NoFiles())
