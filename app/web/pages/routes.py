"""The routes of pages: who asks, by key or by the cookie of a sign-in, and errors as pages.

A page's caller has the same key as the API's. The cookie holds it where no script can read it, and is sent with requests of
these pages alone (HttpOnly, SameSite=Strict); forms of other sites are refused besides, by what browsers say of their origin.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from meshwright.app.base.errors import AuthenticationError, BodyTooLargeError, ForbiddenError, SlowBodyError
from meshwright.app.base.figures import significant
from meshwright.app.edge.bodies import IDLE_BODY_S
from meshwright.app.edge.problems import problem_of
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.store.plans import PlanFilter, PlanStore, PlanSummary
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.web.gate import RequestGate
from meshwright.app.web.pages.layout import COOKIE, HEADERS, moment, render
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import AnsweredRequest

MAX_FORM_BYTES = 16 * 1024
"""Many times what the fields of the builder hold."""

MAX_FIELDS = 50


class PageRoute(APIRoute):
    """A route whose errors are pages; a caller who has no key is led to the sign-in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with errors turned into pages."""
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await answer(request)
            except AuthenticationError:
                response: Response = RedirectResponse("/sign-in", 303, HEADERS)
                if COOKIE in request.cookies:
                    response.delete_cookie(COOKIE)
                return response
            except RequestValidationError:
                return render(None, "not_found.html", status=404)
            except MeshwrightError as error:
                return error_page(error)

        return handle


def error_page(error: MeshwrightError) -> Response:
    """Return the page of an error: what was given, what is allowed, what to do."""
    problem = problem_of(error)
    faults = ("; ".join(f"{name}: {value}" for name, value in fault.items() if value) for fault in problem.get("errors") or ())
    lines = [str(problem.get("detail") or ""), *faults]
    return render(None, "error.html", status=int(problem["status"]), title=str(problem["title"]), lines=lines)


def page_caller(scope: Scope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency that gives the caller of a page if it holds a scope; raises as ``RequestGate.admit`` does."""

    async def caller(request: Request) -> Principal:
        gate: RequestGate = request.app.state.gate
        principal = await gate.admit(request, shown=shown_by(request))
        request.state.principal = principal
        principal.demand(scope)
        return principal

    return caller


def shown_by(request: Request) -> str | None:
    """Return what the caller of a page shows in its cookie; None without one."""
    key = request.cookies.get(COOKIE)
    return None if key is None else f"Bearer {key}"


PageReader = Annotated[Principal, Depends(page_caller(Scope.PLANS_READ))]
PageWriter = Annotated[Principal, Depends(page_caller(Scope.PLANS_WRITE))]
PageRunWriter = Annotated[Principal, Depends(page_caller(Scope.CALIBRATIONS_WRITE))]
PageClusterWriter = Annotated[Principal, Depends(page_caller(Scope.CLUSTERS_WRITE))]


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form of these pages, the empty ones left out.

    Raises ForbiddenError for a form of another site, BodyTooLargeError, SlowBodyError.
    """
    _require_own_form(request)
    try:
        async with asyncio.timeout(IDLE_BODY_S):
            body = await _short_body(request)
    except TimeoutError:
        raise SlowBodyError("the form came too slowly", allowed=f"at most {IDLE_BODY_S:g} s") from None
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise BodyTooLargeError("the form can't be read", allowed=f"at most {MAX_FIELDS} fields of UTF-8") from None
    return {name: values[-1].strip() for name, values in fields.items() if values[-1].strip()}


async def _short_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise BodyTooLargeError("the form is too large", allowed=f"at most {MAX_FORM_BYTES} bytes")
    return body


def _require_own_form(request: Request) -> None:
    """Browsers say where a form is from: the fetch metadata, or else the origin. Clients that say neither are no browsers."""
    said, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_own = origin is None or _host(origin) == request.headers.get("host")
    if said is not None:
        is_own = said in ("same-origin", "none")
    if not is_own:
        raise ForbiddenError("this form was sent from another site", given=origin, allowed="forms of these pages")


def _host(origin: str) -> str:
    return urlsplit(origin).netloc


# Reads that several pages share: a plan by its address, and the plans that another can be compared with.

MOST_OFFERED = 50
"""Plans that a choice offers, the newest."""

SHORT_DIGEST = len("sha256:") + 12
"""Characters of a digest that tell a plan from all others on a page."""


def stored_plan(request: Request, caller: Principal, digest: str) -> AnsweredRequest:
    """Return a caller's plan; raises PlanNotFoundError, PlanFileError for what is no digest."""
    return read_plan_document(json.loads(PlanStore(request.app.state.engine, caller.tenant).get(digest)))


async def plan_text(request: Request, caller: Principal, digest: str) -> str:
    """Return the document of a caller's plan as it is stored; raises as ``stored_plan``."""
    return await asyncio.to_thread(PlanStore(request.app.state.engine, caller.tenant).get, digest)


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
