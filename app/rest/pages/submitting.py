"""A request of a page, planned: the stored plan, or the job that makes it."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from meshwright.app.db.engine import read_soon
from meshwright.app.db.writes import Writes
from meshwright.app.observability.metrics import ANSWERS
from meshwright.app.observability.tracing import current_parent
from meshwright.app.planning.service import Call, PlanService, Submission, Wanted
from meshwright.app.rest.pages.layout import HEADERS
from meshwright.app.rest.preferences import urgency_of
from meshwright.app.security.principal import Principal


async def planned(request: Request, caller: Principal, document: dict[str, Any]) -> Response:
    """Lead to the stored plan of a request document, or to the job that makes it; raises DocumentError, QueueFullError."""
    service: PlanService = request.app.state.service
    engine: Engine = request.app.state.engine
    writes: Writes = request.app.state.writes
    call = Call(caller, document, urgency_of(None), None, current_parent())
    resolved = service.resolve_alone(call)
    wanted: Submission | Wanted | None = service.remembered(call, resolved)
    if wanted is None:
        wanted = await read_soon(engine, service.look_up, call, resolved)
    made = wanted if isinstance(wanted, Submission) else await writes.soon(partial(service.begin, wanted))
    ANSWERS.labels(made.how).inc()
    if made.text is not None:
        return RedirectResponse(f"/plans/{made.digest}", 303, HEADERS)
    assert made.job is not None, "a submission has a text or a job"
    return RedirectResponse(f"/jobs/{made.job.id}", 303, HEADERS)
