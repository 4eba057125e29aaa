"""Problem documents as HTTP answers, and as what OpenAPI says of them."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from meshwright.app.errors import (
    AuthenticationError,
    DocumentError,
    FieldError,
    IssuerUnavailableError,
    RateLimitedError,
    short_text,
)
from meshwright.app.http.problems import METHOD_NOT_ALLOWED, NOT_FOUND, ProblemKind, kind_of, problem_document, problem_of
from meshwright.app.http.request_ids import request_id_of
from meshwright.costmodels.errors import MeshwrightError

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
