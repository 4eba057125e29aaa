"""Errors as problem documents (RFC 9457): the body of every 4xx and 5xx answer, and of ``--json`` on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.app.errors import (
    AuthenticationError,
    BodyTooLargeError,
    BusyError,
    CheckNotFoundError,
    DocumentError,
    FieldError,
    ForbiddenError,
    IssuerUnavailableError,
    JobIsFinalError,
    KeyNotFoundError,
    KeyReusedError,
    MalformedError,
    MediaTypeError,
    NoSuchError,
    PlanNotFoundError,
    QueueFullError,
    RateLimitedError,
    SlowBodyError,
    SolveMemoryError,
    SolveTimeoutError,
    StoreError,
    VersionChangedError,
)
from meshwright.costmodels.errors import InfeasibleError, InvalidInputError

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
    (JobIsFinalError, JOB_IS_FINAL),
    (VersionChangedError, VERSION_CHANGED),
    (KeyReusedError, KEY_REUSED),
    (QueueFullError, QUEUE_FULL),
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
