"""Errors as problem documents (RFC 9457): the body of every 4xx and 5xx answer, and of ``--json`` on the command line."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Scope

from meshwright.app.base.errors import (
    AuthenticationError,
    BodyTooLargeError,
    BusyError,
    CheckNotFoundError,
    DocumentError,
    FieldError,
    ForbiddenError,
    InUseError,
    IssuerUnavailableError,
    JobIsFinalError,
    KeyNotFoundError,
    KeyReusedError,
    MalformedError,
    MediaTypeError,
    NoSuchError,
    PlanNotFoundError,
    QueueFullError,
    QuotaError,
    RateLimitedError,
    SlowBodyError,
    SolveMemoryError,
    SolveTimeoutError,
    StoreError,
    VersionChangedError,
    short_text,
)
from meshwright.costmodels.errors import InfeasibleError, InvalidInputError, MeshwrightError

TYPE_PREFIX = "urn:meshwright:problem:"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: its name in the type URI, its HTTP status, and its title."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """URI that names the kind."""
        return TYPE_PREFIX + self.name


MALFORMED = ProblemKind("malformed-document", 400, "The body is not a readable document")
UNAUTHENTICATED = ProblemKind("unauthenticated", 401, "The caller is not known")
FORBIDDEN = ProblemKind("forbidden", 403, "The caller may not do this")
NOT_FOUND = ProblemKind("not-found", 404, "There is nothing at this address")
NO_SUCH = ProblemKind("no-such-resource", 404, "You have nothing under this name or id")
PLAN_NOT_FOUND = ProblemKind("plan-not-found", 404, "No plan is stored under this digest")
KEY_NOT_FOUND = ProblemKind("key-not-found", 404, "There is no such API key")
CHECK_NOT_FOUND = ProblemKind("check-not-found", 404, "There is no such check")
METHOD_NOT_ALLOWED = ProblemKind("method-not-allowed", 405, "This address does not take this method")
IN_USE = ProblemKind("in-use", 409, "Something depends on it")
JOB_IS_FINAL = ProblemKind("job-is-final", 409, "The job has ended")
VERSION_CHANGED = ProblemKind("version-changed", 412, "The resource is at another version")
HEAD_TOO_SLOW = ProblemKind("slow-request", 408, "The request came too slowly")
HEAD_TOO_LARGE = ProblemKind("head-too-large", 431, "The address and headers are too large")
SLOW_BODY = ProblemKind("slow-body", 408, "The body came too slowly")
TOO_LARGE = ProblemKind("body-too-large", 413, "The body is too large")
MEDIA_TYPE = ProblemKind("unsupported-media-type", 415, "The body's content type is not read here")
INVALID = ProblemKind("invalid-request", 422, "The request can't be used")
INFEASIBLE = ProblemKind("infeasible", 422, "The answer is no: nothing fits")
RATE_LIMITED = ProblemKind("rate-limited", 429, "The caller asks too often")
KEY_REUSED = ProblemKind("idempotency-key-reused", 422, "The idempotency key belongs to another call")
QUEUE_FULL = ProblemKind("queue-full", 429, "Too many of your jobs are waiting")
INTERNAL = ProblemKind("internal-error", 500, "Meshwright failed; this is a defect")
WORKER_LOST = ProblemKind("worker-lost", 500, "Every worker that took the job was lost")
STORE = ProblemKind("store-unavailable", 503, "The plan store can't be used now")
ISSUER = ProblemKind("issuer-unavailable", 503, "Tokens can't be verified now")
BUSY = ProblemKind("busy", 503, "The service has as much in hand as it takes")
NOT_READY = ProblemKind("not-ready", 503, "The service can't take requests yet")
TIMEOUT = ProblemKind("solve-timeout", 504, "The solve took too long")
QUOTA = ProblemKind("quota-exceeded", 507, "Your tenant has as much stored as it may")
OUT_OF_MEMORY = ProblemKind("solve-out-of-memory", 507, "The solve needs more memory than it may use")

KINDS = (
    MALFORMED,
    UNAUTHENTICATED,
    FORBIDDEN,
    NOT_FOUND,
    NO_SUCH,
    PLAN_NOT_FOUND,
    KEY_NOT_FOUND,
    CHECK_NOT_FOUND,
    METHOD_NOT_ALLOWED,
    IN_USE,
    JOB_IS_FINAL,
    VERSION_CHANGED,
    HEAD_TOO_SLOW,
    HEAD_TOO_LARGE,
    SLOW_BODY,
    TOO_LARGE,
    MEDIA_TYPE,
    INVALID,
    INFEASIBLE,
    RATE_LIMITED,
    KEY_REUSED,
    QUEUE_FULL,
    INTERNAL,
    WORKER_LOST,
    STORE,
    ISSUER,
    BUSY,
    NOT_READY,
    TIMEOUT,
    QUOTA,
    OUT_OF_MEMORY,
)

# The first class that fits decides, so subclasses come before InvalidInputError.
_KIND_OF: tuple[tuple[type[Exception], ProblemKind], ...] = (
    (MalformedError, MALFORMED),
    (BodyTooLargeError, TOO_LARGE),
    (SlowBodyError, SLOW_BODY),
    (MediaTypeError, MEDIA_TYPE),
    (PlanNotFoundError, PLAN_NOT_FOUND),
    (AuthenticationError, UNAUTHENTICATED),
    (ForbiddenError, FORBIDDEN),
    (KeyNotFoundError, KEY_NOT_FOUND),
    (CheckNotFoundError, CHECK_NOT_FOUND),
    (RateLimitedError, RATE_LIMITED),
    (BusyError, BUSY),
    (IssuerUnavailableError, ISSUER),
    (NoSuchError, NO_SUCH),
    (InUseError, IN_USE),
    (JobIsFinalError, JOB_IS_FINAL),
    (VersionChangedError, VERSION_CHANGED),
    (KeyReusedError, KEY_REUSED),
    (QueueFullError, QUEUE_FULL),
    (QuotaError, QUOTA),
    (InvalidInputError, INVALID),
    (InfeasibleError, INFEASIBLE),
    (SolveTimeoutError, TIMEOUT),
    (SolveMemoryError, OUT_OF_MEMORY),
    (StoreError, STORE),
)


def kind_of(error: Exception) -> ProblemKind:
    """The kind of problem an error is; what was not raised on purpose is a defect."""
    return next((kind for raised, kind in _KIND_OF if isinstance(error, raised)), INTERNAL)


def problem_of(error: Exception) -> dict[str, Any]:
    """The problem document of an error; a defect says nothing of what happened inside."""
    kind = kind_of(error)
    if kind is INTERNAL:
        return problem_document(kind, "an unexpected error; the log has it under this request id")
    faults = error.fields if isinstance(error, DocumentError) else ()
    return problem_document(kind, str(error), faults)


def worker_lost(attempts: int) -> dict[str, Any]:
    """The problem of a job that was given up."""
    detail = f"{attempts} workers began the job and none came to its end; ask for less, or see the workers' logs"
    return problem_document(WORKER_LOST, detail)


def problem_document(kind: ProblemKind, detail: str, faults: tuple[FieldError, ...] = ()) -> dict[str, Any]:
    """A problem document; ``errors`` lists the faulty fields, where there are any."""
    document: dict[str, Any] = {"type": kind.type, "title": kind.title, "status": kind.status, "detail": detail}
    if faults:
        document["errors"] = [_fault_document(fault) for fault in faults]
    return document


def _fault_document(fault: FieldError) -> dict[str, str]:
    parts = {
        "field": fault.field,
        "problem": fault.problem,
        "given": fault.given,
        "allowed": fault.allowed,
        "remedy": fault.remedy,
    }
    return {name: value for name, value in parts.items() if value is not None}


# Problem documents as HTTP answers, and as what OpenAPI says of them.

log = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = 5
_TRY_LATER = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


def problem_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of the problems that an endpoint may answer with."""
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install_problem_handlers(app: FastAPI) -> None:
    """Answer every error that is raised on purpose with a problem document; the middleware answers the others."""
    app.add_exception_handler(MeshwrightError, _known_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    app.add_exception_handler(HTTPException, _http_error)


def problem_response(request: Request, document: dict[str, Any]) -> JSONResponse:
    """A problem document as the answer to a request."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if document["status"] in _TRY_LATER else {}
    whole = {**document, "instance": request.url.path, "request_id": request_id_of(request.scope)}
    return JSONResponse(whole, document["status"], headers, media_type=PROBLEM_JSON)


async def _known_error(request: Request, error: Exception) -> JSONResponse:
    if kind_of(error).status >= 500 and not isinstance(error, IssuerUnavailableError):
        # The issuer's failure is in the log once for each time that it was asked.
        log.error("request failed", exc_info=error)
    response = problem_response(request, problem_of(error))
    if isinstance(error, AuthenticationError):
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, RateLimitedError):
        response.headers["retry-after"] = str(error.wait_s)
    return response


async def _query_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = tuple(
        FieldError(
            field=".".join(str(part) for part in fault["loc"][1:]),
            problem="value can't be used",
            given=short_text(fault.get("input")),
            allowed=fault["msg"].removeprefix("Input should be "),
        )
        for fault in error.errors()
    )
    return problem_response(request, problem_of(DocumentError("these parameters can't be used", faults)))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        document = problem_document(METHOD_NOT_ALLOWED, f"{request.method} is not allowed here")
        error.headers = {"allow": ", ".join(_methods_at(request))}
    elif error.status_code == HTTPStatus.NOT_FOUND:
        document = problem_document(NOT_FOUND, "see /openapi.json for what there is")
    else:
        title = HTTPStatus(error.status_code).phrase
        kind = ProblemKind(title.lower().replace(" ", "-"), error.status_code, title)
        document = problem_document(kind, str(error.detail))
    response = problem_response(request, document)
    response.headers.update(error.headers or {})
    return response


def _methods_at(request: Request) -> list[str]:
    """Methods that OpenAPI lists for the request's path."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    matching = [methods for path, methods in paths.items() if compile_path(path)[0].match(request.url.path)]
    return sorted({method.upper() for methods in matching for method in methods})


# The id of an HTTP request: the middleware notes it in the request's scope, and whoever answers reads it there.

_KEY = "meshwright.request_id"


def note_request_id(scope: Scope, request_id: str) -> None:
    """Write the id of a request into its scope."""
    scope[_KEY] = request_id


def request_id_of(scope: Scope) -> str:
    """Return the id of a request; "-" if it came past the middleware."""
    found: str = scope.get(_KEY, "-")
    return found
