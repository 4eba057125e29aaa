"""Plans that runs are reported of, made without a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.app.requests.digests import keyed_request
from meshwright.solver.answer.plan import AnsweredRequest
from tests.support.fakes import feasible_plan
from tests.support.requests_given import resolved


def answered(document: dict[str, Any] | None = None) -> AnsweredRequest:
    """A training plan with made-up figures, under the digest of its request."""
    request = resolved(document)
    return AnsweredRequest(replace(feasible_plan(request), digest=keyed_request(request).digest), request)
