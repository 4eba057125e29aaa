"""The middleware of REST: it gives every answer a request id, security headers and a line in the log, and answers even a
defect."""

from __future__ import annotations

import logging
import re
import time
import uuid
from abc import ABC, abstractmethod
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.app.base.logs import logging_for
from meshwright.app.edge.observability import PARENT_HEADER, REQUEST_SECONDS, REQUESTS, span
from meshwright.app.edge.problems import INTERNAL, note_request_id, problem_document, problem_response

log = logging.getLogger("meshwright.access")

ID_HEADER = "x-request-id"
_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


_DEFECT = problem_document(INTERNAL, "an unexpected error; the log has it under this request id")


class HttpMiddleware(ABC):
    """Middleware that lets all but HTTP requests, such as the start of the service, pass it by."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await (self.serve_http if scope["type"] == "http" else self._app)(scope, receive, send)

    @abstractmethod
    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""


class RequestIdMiddleware(HttpMiddleware):
    """Takes the caller's request id, or makes one, and sends it back with the answer; a defect becomes a 500 here."""

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request under its id."""
        given = Headers(scope=scope).get(ID_HEADER, "")
        current = given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex
        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[ID_HEADER] = current
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        note_request_id(scope, current)
        with logging_for(current):
            try:
                await self._app(scope, receive, send_with_headers)
            except Exception:
                log.exception("request failed")
                if status == 0:
                    await problem_response(Request(scope), _DEFECT)(scope, receive, send_with_headers)
            finally:
                seconds = round(time.perf_counter() - began, 6)
                fields = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds}
                log.info("request", extra=fields)


# The middleware of REST that counts requests and traces them, for `app.edge`.


class TracingMiddleware(HttpMiddleware):
    """A span of every request, a child of the caller's where it sends a ``traceparent``."""

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request in a span."""
        parent = Headers(scope=scope).get(PARENT_HEADER)
        with span("request", {"http.request.method": scope["method"]}, parent=parent) as current:

            async def send_noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    current.set_attribute("http.response.status_code", message["status"])
                    current.set_attribute("http.route", _route(scope))
                await send(message)

            await self._app(scope, receive, send_noting)


class MetricsMiddleware(HttpMiddleware):
    """Counts requests and their time by route; addresses that no route has are one."""

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        began, answered = time.perf_counter(), False
        method = scope["method"] if scope["method"] in _METHODS else "other"

        def count(status: int) -> None:
            nonlocal answered
            answered = True
            REQUESTS.labels(method, _route(scope), str(status)).inc()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            if not answered:
                # A defect: the middleware around this one answers it.
                count(HTTPStatus.INTERNAL_SERVER_ERROR)
            REQUEST_SECONDS.labels(method, _route(scope)).observe(time.perf_counter() - began)


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
