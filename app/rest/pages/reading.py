"""Reads that several pages share: a plan by its address, and the plans that another can be compared with."""

from __future__ import annotations

import json

from fastapi import Request

from meshwright.app.plans.documents import read_plan_document
from meshwright.app.plans.repository import PlanFilter, PlanSummary
from meshwright.app.plans.store import PlanStore
from meshwright.app.rest.pages.layout import moment
from meshwright.app.security.principal import Principal
from meshwright.app.text.figures import significant
from meshwright.solver.answer.plan import AnsweredRequest

MOST_OFFERED = 50
"""Plans that a choice offers, the newest."""

SHORT_DIGEST = len("sha256:") + 12
"""Characters of a digest that tell a plan from all others on a page."""


def stored_plan(request: Request, caller: Principal, digest: str) -> AnsweredRequest:
    """Return a caller's plan; raises PlanNotFoundError, PlanFileError for what is no digest."""
    return read_plan_document(json.loads(PlanStore(request.app.state.engine, caller.tenant).get(digest)))


def plan_choices(request: Request, caller: Principal, model: str) -> list[tuple[str, str]]:
    """Return the newest plans of a model that a form offers: their digests, and the words that tell them apart."""
    store = PlanStore(request.app.state.engine, caller.tenant)
    found = store.page(PlanFilter(model or None, True), before=None, limit=MOST_OFFERED)
    return [(row.digest, in_words(row)) for row in found]


def in_words(row: PlanSummary) -> str:
    """Return a plan in a line of a choice."""
    speed = "" if row.tokens_per_s is None else f", {significant(row.tokens_per_s)} tokens/s"
    return f"{row.model}, {row.devices:,} devices{speed}, {moment(row.created_at)}, {row.digest[:SHORT_DIGEST]}"


def job_or_plan(digest: str, job: str | None) -> str:
    """Return the place of a plan, or of the job that makes it."""
    return f"/plans/{digest}" if job is None else f"/jobs/{job}"
