"""Reading a request body: its type, its size and its form are checked before anything is built from it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from meshwright.app.documents.text import parse_document
from meshwright.app.errors import BodyTooLargeError, MalformedError, MediaTypeError, short_text
from meshwright.costmodels.errors import InvalidInputError

JSON = "application/json"
SHORT_BODY_BYTES = 4096
"""A body that is parsed in less time than a thread takes to start on it."""


def body_of(schema: str) -> dict[str, Any]:
    """Return the OpenAPI entry of an operation whose body is read by hand: one of the document's component schemas."""
    return {"requestBody": {"required": True, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}}


async def read_json_body(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """The parsed JSON object in the body.

    Raises MediaTypeError, BodyTooLargeError as soon as more than ``max_bytes`` are announced or have come, and
    MalformedError for bytes that are no JSON of a sane depth.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != JSON:
        raise MediaTypeError("the body's content type is not read here", given=media_type or "none", allowed=JSON)
    body = await _read(request, max_bytes)
    if not body.lstrip().startswith(b"{"):
        raise MalformedError(
            "the body is no JSON object", given=short_text(body[:20].decode("utf-8", "replace")), allowed="{...}"
        )
    try:
        document: dict[str, Any]
        if len(body) <= SHORT_BODY_BYTES:
            document = parse_document(body, what="request body")
        else:
            document = await asyncio.to_thread(parse_document, body, what="request body")
    except InvalidInputError as error:
        raise MalformedError(error.problem, given=error.given, allowed=error.allowed, remedy=error.remedy) from None
    return document


def is_short(request: Request) -> bool:
    """Return True if the announced body is so short that reading it takes less time than a thread needs to start on it."""
    announced = request.headers.get("content-length", "")
    return announced.isdigit() and int(announced[:20]) <= SHORT_BODY_BYTES


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > max_bytes:
        raise _too_large(announced, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(f"more than {max_bytes}", max_bytes)
    return bytes(body)


def _too_large(given: str, max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        "the body is too large",
        given=f"{given} bytes",
        allowed=f"at most {max_bytes} bytes",
        remedy="send a smaller model graph, or raise MESHWRIGHT_MAX_BODY_BYTES",
    )
