"""Answers to requests whose bodies nobody reads to their end: the connection ends with the answer.

A body that is refused goes on coming. Uvicorn reads it all the same and drops it, so that the connection can be used again:
of 200 bodies of 8 MB that were refused at once this was three seconds of processor on the event loop. Here nothing more is
read: the answer says that the connection ends, and after a moment it does.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.app.http.middleware import HttpMiddleware

DROPPED_BYTES = 64 * 1024
"""The rest of a body up to this length is read and dropped: that takes less than a new connection."""
LINGER_S = 1.0
"""The answer's head start over the end of the connection. Bytes that come after the end reset it, and some systems then forget
an answer that was not read yet (RFC 9112, 9.6). Most clients read it while they send."""
MOST_LINGERING = 64
"""Connections that linger at once; what uvicorn read ahead of each is kept so long, at most 320 KiB. Others end at once."""


class UnreadBodyMiddleware(HttpMiddleware):
    """Ends connections whose requests were answered before the end of a long body."""

    def __init__(self, app: ASGIApp):
        super().__init__(app)
        self._lingering = 0

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not _may_be_long(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        is_read = is_refused = False

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_closing(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and not is_read:
                is_refused = True
                MutableHeaders(scope=message)["connection"] = "close"
            if is_refused and message["type"] == "http.response.body" and not message.get("more_body", False):
                await self._end_soon(message, send)
            else:
                await send(message)

        await self._app(scope, receive_noting, send_closing)

    async def _end_soon(self, message: Message, send: Send) -> None:
        """Send the last part of an answer; the server closes the connection when it is told that no more comes."""
        if self._lingering < MOST_LINGERING:
            self._lingering += 1
            try:
                await send({**message, "more_body": True})
                await asyncio.sleep(LINGER_S)
            finally:
                self._lingering -= 1
            message = {"type": "http.response.body", "body": b""}
        await send(message)


def _may_be_long(headers: Headers) -> bool:
    """Return True if a request's body is longer than what is dropped, or may be: its length is not announced."""
    length = headers.get("content-length", "")
    return "transfer-encoding" in headers or (length.isdigit() and int(length[:20]) > DROPPED_BYTES)
