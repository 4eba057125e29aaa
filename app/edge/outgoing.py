"""Calls to other services, each with one deadline for the whole of it.

A time-out of an HTTP client bounds one read. A server that sends a byte now and then, or one informational answer (102) after
another, never exceeds it and would hold its caller for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class Called:
    """The answer to a call, its body cut off at the length that was asked for."""

    status: int
    body: bytes


def call_once(
    method: str,
    url: str,
    *,
    within_s: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    max_answer_bytes: int = 0,
) -> Called:
    """Return the answer of a service; follows no redirect. For threads without an event loop. Raises httpx.HTTPError."""
    try:
        return asyncio.run(asyncio.wait_for(_call(method, url, body, headers, max_answer_bytes), within_s))
    except TimeoutError:
        raise httpx.TimeoutException(f"no whole answer within {within_s:g} s") from None


async def _call(method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None, most: int) -> Called:
    async with (
        httpx.AsyncClient(timeout=None, follow_redirects=False) as client,
        client.stream(method, url, content=body, headers=headers) as answer,
    ):
        received = b""
        if most:
            async for chunk in answer.aiter_bytes():
                received += chunk
                if len(received) > most:
                    break
        return Called(answer.status_code, received[: most + 1])
