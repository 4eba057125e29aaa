"""The middleware of REST: it gives every answer a request id, security headers and a line in the log, and answers even a
defect."""

from __future__ import annotations

import logging
import re
import time
import uuid
from abc import ABC, abstractmethod

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.app.http.problem_responses import problem_response
from meshwright.app.http.problems import INTERNAL, problem_document
from meshwright.app.http.request_ids import note_request_id
from meshwright.app.logs import logging_for

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
