"""Errors of the app on top of ``costmodels.errors``, and what every error becomes for the one who asked.

MeshwrightError
├── InvalidInputError
│   ├── DocumentError          a request or plan document with faulty fields, all of them listed (422)
│   ├── MalformedError         bytes that are no document at all (400)
│   ├── BodyTooLargeError      a request body over the limit (413)
│   ├── SlowBodyError          a request body that comes too slowly (408)
│   ├── MediaTypeError         a content type that is not read here (415)
│   ├── PlanNotFoundError      a digest under which no plan is stored (404)
│   ├── AuthenticationError    no key or token, or one that does not hold (401)
│   ├── ForbiddenError         a caller without the scope that this needs (403)
│   ├── KeyNotFoundError       a prefix under which no API key is stored (404)
│   ├── CheckNotFoundError     an id under which no check is stored (404)
│   ├── NoSuchError            a name or id under which the caller has nothing (404)
│   ├── InUseError             something that other rows of the caller depend on can't be deleted (409)
│   ├── JobIsFinalError        a job that has ended and can't be changed any more (409)
│   ├── VersionChangedError    a resource that is not at the version the caller expects (412)
│   ├── KeyReusedError         an idempotency key that was used for another call (422)
│   ├── QueueFullError         a tenant has as many jobs waiting as it may (429)
│   ├── QuotaError             a tenant has as many bytes stored as it may (507)
│   ├── CalibrationNotFoundError  a calibration that is not stored (422: it stands in a request)
│   └── MissingExtraError      something that needs an optional package which is not installed (422)
├── RateLimitedError           a caller that asks too often, or too much at once (429)
├── BusyError                  the service has as much in hand as it takes (503)
├── IssuerUnavailableError     the token issuer gives no keys to verify tokens with (503)
├── SolveTimeoutError          a solve did not end in its time; callers get what it had found
├── SolveMemoryError           a solve needed more memory than it may use; callers get what it had found
├── SolverCrashError           a solve ended without an answer: a defect of Meshwright (500)
│   └── NotBegunError          it ended before it began: tried again
├── ServiceError               a Meshwright service that was asked does not answer as it should (on the command line)
└── StoreError                 the database can't be used now (503)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshwright.app.base.quoting import readable
from meshwright.costmodels.errors import InvalidInputError, MeshwrightError

EXIT_GOOD = 0
EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_INTERNAL = 3
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in one field: its dotted path, the problem, what was given and is allowed, and what to do."""

    field: str
    problem: str
    given: str | None = None
    allowed: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        parts = [f"{readable(self.field)}: {readable(self.problem)}" if self.field else readable(self.problem)]
        parts += [f"given: {self.given}"] if self.given is not None else []
        parts += [f"allowed: {self.allowed}"] if self.allowed is not None else []
        parts += [f"what to do: {self.remedy}"] if self.remedy is not None else []
        return "; ".join(parts)


class DocumentError(InvalidInputError):
    """A document whose fields can't be used; ``fields`` lists every fault that was found."""

    def __init__(self, problem: str, fields: tuple[FieldError, ...]):
        super().__init__(problem)
        self.fields = fields

    def __reduce__(self) -> tuple[type[DocumentError], tuple[str, tuple[FieldError, ...]]]:
        """Return what makes the error again in another process."""
        return DocumentError, (self.problem, self.fields)

    def __str__(self) -> str:
        if len(self.fields) == 1:
            return str(self.fields[0])
        return "\n".join([f"{self.problem}:", *(f"  {fault}" for fault in self.fields)])


class InUseError(DocumentError):
    """Something can't be deleted: ``fields`` names what depends on it, a kind each."""


class MalformedError(InvalidInputError):
    """Bytes that are not the kind of document that was expected."""


class BodyTooLargeError(InvalidInputError):
    """A request body longer than the service reads."""


class SlowBodyError(InvalidInputError):
    """A request body that comes too slowly: it would keep its place from others."""


class MediaTypeError(InvalidInputError):
    """A content type that the service does not read."""


class PlanNotFoundError(InvalidInputError):
    """No plan is stored under this digest."""


class AuthenticationError(InvalidInputError):
    """The caller shows no API key or token, or one that does not hold."""


class ForbiddenError(InvalidInputError):
    """The caller's key or token lacks the scope for this."""


class KeyNotFoundError(InvalidInputError):
    """No API key has this prefix."""


class WebhookSecretError(InvalidInputError):
    """A tenant's webhook calls can't be signed with its secrets."""


class CheckNotFoundError(InvalidInputError):
    """No check has this id."""


class CalibrationNotFoundError(InvalidInputError):
    """No calibration is stored under this name."""


class MissingExtraError(InvalidInputError):
    """An optional package is needed that is not installed."""

    def __init__(self, what: str, *, package: str, extra: str):
        super().__init__(
            f"{what} need the package {package}, which is not installed", remedy=f"pip install 'meshwright[{extra}]'"
        )


class RateLimitedError(MeshwrightError):
    """The caller asks too often; it may try again in ``wait_s`` seconds."""

    def __init__(self, problem: str, wait_s: int):
        super().__init__(problem)
        self.wait_s = wait_s


class BusyError(MeshwrightError):
    """The service has as much in hand as it takes."""


class IssuerUnavailableError(MeshwrightError):
    """The OpenID Connect issuer does not give the keys that tokens are verified with."""


class NoSuchError(InvalidInputError):
    """The caller has nothing under this name or id."""


class JobIsFinalError(InvalidInputError):
    """The job has ended."""


class VersionChangedError(InvalidInputError):
    """The resource is not at the version that the caller expects."""


class KeyReusedError(InvalidInputError):
    """The idempotency key was used for another call."""


class QueueFullError(InvalidInputError):
    """Too many jobs of the caller's tenant are waiting for their turn."""


class QuotaError(InvalidInputError):
    """The caller's tenant has as many bytes stored as it may."""


class SolveTimeoutError(MeshwrightError):
    """A solve did not come to its end in the time it had."""


class SolveMemoryError(MeshwrightError):
    """A solve needed more memory than it may use."""


class SolverCrashError(MeshwrightError):
    """A solve ended without an answer: a defect of Meshwright, or the machine ran out of memory."""


class NotBegunError(SolverCrashError):
    """The process of a solve or a question ended, or could not be made, before it began: nothing in what is asked did that."""


class ServiceError(MeshwrightError):
    """A Meshwright service that this command asked does not answer, or answers what no such service does."""


class StoreError(MeshwrightError):
    """The database can't be reached, is not migrated, or refused to write."""


def field_error(error: InvalidInputError, field: str = "") -> FieldError:
    """The error as a fault of one field."""
    given = None if error.given is None else short_text(error.given)
    return FieldError(field, error.problem, given, error.allowed, error.remedy)


def at_field(error: InvalidInputError, field: str) -> DocumentError:
    """The error as one of a document, its faults placed under ``field``."""
    if isinstance(error, DocumentError):
        faults = tuple(FieldError(join_path(field, f.field), f.problem, f.given, f.allowed, f.remedy) for f in error.fields)
        return DocumentError(error.problem, faults)
    return DocumentError(error.problem, (field_error(error, field),))


@contextmanager
def faults_at(field: str) -> Iterator[None]:
    """Place the faults of what runs inside under a field of the document."""
    try:
        yield
    except InvalidInputError as error:
        raise at_field(error, field) from None


def join_path(prefix: str, path: str) -> str:
    """Dotted path of a field inside another."""
    return ".".join(part for part in (prefix, path) if part)


def short_text(value: object, limit: int = 120) -> str:
    """The value as it would be written, cut to a readable length."""
    text = repr(_clipped(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _clipped(value: object) -> object:
    """A cheap stand-in for a large value: repr of a whole model graph would cost more than the error is worth."""
    if isinstance(value, str):
        return value[:200]
    if isinstance(value, dict):
        return dict.fromkeys(list(value)[:8], "…")
    if isinstance(value, list | tuple):
        return [_clipped(item) for item in value[:8]]
    return value
