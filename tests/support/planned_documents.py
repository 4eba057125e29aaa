"""Request documents answered by the planner, once each."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.control import ignore_progress


def answered(document: dict[str, Any]) -> AnsweredRequest:
    """Return the answer to a request document."""
    return _answered(json.dumps(document))


@cache
def _answered(text: str) -> AnsweredRequest:
    request = resolve_request(json.loads(text), files=NoFiles())
    return AnsweredRequest(solve_here(request, ignore_progress), request)
