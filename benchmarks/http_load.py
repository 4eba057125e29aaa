"""A light HTTP/1.1 client for load: it costs a tenth of what the service spends on a request, so that both fit on few cores.

It knows what our own service sends: answers with a ``Content-Length`` over connections that stay open.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

LATENESS_S = 1.0
"""More than this behind its times, an open load is more than the service can take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer, and the seconds from when it was due to be asked until all of it was there."""

    status: int
    body: bytes
    seconds: float


class Connection:
    """One connection; a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """A connection to a service."""
        return cls(*await asyncio.open_connection(host, port))

    async def ask(self, request: bytes, due_s: float | None = None) -> Answer:
        """The answer to the bytes of a request, timed from ``due_s`` of ``time.perf_counter`` or from now."""
        began_s = time.perf_counter() if due_s is None else due_s
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        return Answer(int(head[9:12]), body, time.perf_counter() - began_s)

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def get(path: str, key: str = "") -> bytes:
    """Bytes of a GET request, which shows an API key where one is given."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{_shown(key)}\r\n".encode()


def post(path: str, document: dict[str, Any], key: str = "") -> bytes:
    """Bytes of a POST request with a JSON body, which shows an API key where one is given."""
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{_shown(key)}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _shown(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


@asynccontextmanager
async def connected(host: str, ports: Sequence[int], number: int) -> AsyncIterator[list[Connection]]:
    """That many connections, dealt out to the ports of a service, which closes those on which nothing is asked for a while."""
    connections = [await Connection.open(host, ports[index % len(ports)]) for index in range(number)]
    yield connections
    for connection in connections:
        await connection.close()


async def closed_load(connections: list[Connection], make: Callable[[], bytes], *, seconds: float) -> list[Answer]:
    """Answers to requests that each connection asks one after the other, as fast as they come."""
    answers: list[Answer] = []
    end_s = time.perf_counter() + seconds

    async def one(connection: Connection) -> None:
        while time.perf_counter() < end_s:
            answers.append(await connection.ask(make()))

    await asyncio.gather(*(one(connection) for connection in connections))
    return answers


async def open_load(
    connections: list[Connection], make: Callable[[], bytes], *, rate_per_s: float, seconds: float
) -> list[Answer]:
    """Answers to requests that are due at even times, whether or not earlier ones are answered.

    A request that finds every connection busy waits for one, and its time counts from when it was due. Stops early when it
    falls behind by ``LATENESS_S``.
    """
    answers: list[Answer] = []
    times = _even_times(rate_per_s, seconds)
    is_behind = False

    async def one(connection: Connection) -> None:
        nonlocal is_behind
        for due_s in times:
            wait_s = due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            is_behind = is_behind or wait_s < -LATENESS_S
            if is_behind:
                return
            answers.append(await connection.ask(make(), due_s))

    await asyncio.gather(*(one(connection) for connection in connections))
    return answers


def _even_times(rate_per_s: float, seconds: float) -> Iterator[float]:
    began_s = time.perf_counter()
    return (began_s + number / rate_per_s for number in range(int(rate_per_s * seconds)))
