"""Reading a request body: its type, its size and its form are checked before anything is built from it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.app.base.digits import is_digits
from meshwright.app.base.documents import parse_document
from meshwright.app.base.errors import BodyTooLargeError, MalformedError, MediaTypeError, SlowBodyError, short_text
from meshwright.app.edge.long_work import LongWork
from meshwright.app.edge.middleware import HttpMiddleware
from meshwright.costmodels.errors import InvalidInputError

JSON = "application/json"
_OBJECT_BEGINS = re.compile(rb"\s*\{")
SHORT_BODY_BYTES = 4096
"""A body that is parsed in less time than a thread takes to start on it."""

FINGERPRINTED_BYTES = 64 * 1024
"""The longest body whose fingerprint is taken: a tenth of a millisecond of hashing (0.7 GB/s here)."""

LARGE_BODY_BYTES = 256 * 1024
"""A body from this size on takes longer to read than a process to start: 0.1 s and 0.03 s of processor."""

IDLE_BODY_S = 15.0
"""The longest pause of a body that comes in: retransmissions of TCP end well within it."""
SLOWEST_BODY_BYTES_PER_S = 64 * 1024
"""Bodies that come slower than this, after the first pause allowed, keep room from others: a line of 0.5 Mbit/s."""

P = ParamSpec("P")
Answer = TypeVar("Answer")


def body_of(schema: str, *, examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the OpenAPI entry of an operation whose body is read by hand: one of the document's component schemas."""
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}} | ({} if examples is None else {"examples": examples})
    return {"requestBody": {"required": True, "content": {JSON: content}}}


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A parsed body, and where work on it is done."""

    document: dict[str, Any]
    is_short: bool
    _tenant: str
    _long_work: LongWork

    async def work(self, work: Callable[P, Answer], *arguments: P.args, **options: P.kwargs) -> Answer:
        """Return the answer of work on the body, done in a thread: on a long one when it is the tenant's turn."""
        if self.is_short:
            return await asyncio.to_thread(work, *arguments, **options)
        return await self._long_work.do(self._tenant, work, *arguments, **options)


class UnparsedBody:
    """The bytes of a body, which nobody has looked at yet."""

    def __init__(self, text: bytearray, tenant: str, long_work: LongWork):
        self._text, self._tenant, self._long_work = text, tenant, long_work

    def fingerprint(self) -> str | None:
        """The SHA-256 of the bytes in hexadecimal; None for a body that takes long to hash."""
        return hashlib.sha256(self._text).hexdigest() if len(self._text) <= FINGERPRINTED_BYTES else None

    @property
    def is_large(self) -> bool:
        """True if reading the body is worth a process of its own."""
        return len(self._text) >= LARGE_BODY_BYTES

    async def work(self, work: Callable[[bytes], Answer]) -> Answer:
        """Return the answer of work on the bytes, which are forgotten here, in a thread when it is the tenant's turn."""

        def taken() -> Answer:
            whole = bytes(self._text)
            self._text.clear()
            return work(whole)

        return await self._long_work.do(self._tenant, taken)

    async def parsed(self) -> ParsedBody:
        """The body parsed, its bytes forgotten; raises MalformedError for bytes that are no JSON object of a sane depth."""
        is_short = len(self._text) <= SHORT_BODY_BYTES
        document = _parsed(self._text) if is_short else await self._long_work.do(self._tenant, _parsed, self._text)
        return ParsedBody(document, is_short, self._tenant, self._long_work)


@asynccontextmanager
async def json_body(request: Request, *, max_bytes: int) -> AsyncIterator[ParsedBody]:
    """The parsed JSON object in the body of an admitted caller; raises as ``unparsed_body`` and MalformedError."""
    async with unparsed_body(request, max_bytes=max_bytes) as body:
        yield await body.parsed()


@asynccontextmanager
async def unparsed_body(request: Request, *, max_bytes: int) -> AsyncIterator[UnparsedBody]:
    """The body of an admitted caller, which counts as in hand until the block ends.

    Raises MediaTypeError; BodyTooLargeError as soon as more than ``max_bytes`` are announced or have come; SlowBodyError;
    RateLimitedError or BusyError where too much is in hand, before the body is read if its length is announced.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != JSON:
        raise MediaTypeError("the body's content type is not read here", given=media_type or "none", allowed=JSON)
    long_work: LongWork = request.app.state.long_work
    tenant: str = request.state.principal.tenant
    with long_work.holding(tenant) as hold:
        yield UnparsedBody(await _read(request, max_bytes, hold), tenant, long_work)


def _parsed(text: bytearray) -> dict[str, Any]:
    """Return the object that a body holds, and forget its text: the text of a long one is as large as what was made of it."""
    whole = bytes(text)
    text.clear()
    return json_object(whole)


def json_object(text: bytes) -> dict[str, Any]:
    """The object that a body holds; raises MalformedError for bytes that are no JSON object of a sane depth."""
    if not _OBJECT_BEGINS.match(text):
        given = short_text(text[:20].decode("utf-8", "replace"))
        raise MalformedError("the body is no JSON object", given=given, allowed="{...}")
    try:
        document: dict[str, Any] = parse_document(text, what="request body")
    except InvalidInputError as error:
        raise MalformedError(error.problem, given=error.given, allowed=error.allowed, remedy=error.remedy) from None
    return document


async def _read(request: Request, max_bytes: int, hold: Callable[[int], None]) -> bytearray:
    given = request.headers.get("content-length", "")
    announced = int(given[:20]) if is_digits(given[:20], most=20) else 0
    if announced > max_bytes:
        raise _too_large(given, max_bytes)
    # What is announced counts at once: of many bodies the first few come in whole, and the others are told so unread.
    hold(announced)
    body, loop = bytearray(), asyncio.get_running_loop()
    began_s, chunks = loop.time(), request.stream()
    while True:
        latest_s = began_s + IDLE_BODY_S + len(body) / SLOWEST_BODY_BYTES_PER_S
        try:
            async with asyncio.timeout_at(min(loop.time() + IDLE_BODY_S, latest_s)):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise SlowBodyError(
                "the body came too slowly",
                given=f"{len(body)} bytes in {loop.time() - began_s:.0f} s",
                allowed=f"pauses of {IDLE_BODY_S:g} s and {SLOWEST_BODY_BYTES_PER_S} bytes a second",
            ) from None
        if chunk is None:
            return body
        hold(max(0, len(body) + len(chunk) - max(announced, len(body))))
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(f"more than {max_bytes}", max_bytes)


def _too_large(given: str, max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        "the body is too large",
        given=f"{given} bytes",
        allowed=f"at most {max_bytes} bytes",
        remedy="send a smaller model graph, or raise MESHWRIGHT_MAX_BODY_BYTES",
    )


# Answers to requests whose bodies nobody reads to their end: the connection ends with the answer.
#
# A body that is refused goes on coming. Uvicorn reads it all the same and drops it, so that the connection can be used again:
# of 200 bodies of 8 MB that were refused at once this was three seconds of processor on the event loop. Here nothing more is
# read: the answer says that the connection ends, and after a moment it does.

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
    return "transfer-encoding" in headers or (is_digits(length[:20], most=20) and int(length[:20]) > DROPPED_BYTES)
