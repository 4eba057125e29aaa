"""The middleware of REST that counts requests and traces them, for `app.observability`."""

from __future__ import annotations

import time
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from meshwright.app.http.middleware import HttpMiddleware
from meshwright.app.observability.metrics import REQUEST_SECONDS, REQUESTS
from meshwright.app.observability.tracing import PARENT_HEADER, span


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
