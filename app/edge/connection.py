"""Connections with limits: how long the head of a request may be and may take, and how many connections a peer may have.

Uvicorn sets none of these over httptools: a header of any length is read, a connection that never asks is kept for ever. Here
they are counted where the bytes come in, before a request exists. Bodies are limited where they are read (`app.edge.bodies`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from meshwright.app.base.quoting import readable
from meshwright.app.edge.problems import HEAD_TOO_LARGE, HEAD_TOO_SLOW, ProblemKind, problem_document

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 32 * 1024
"""Address and headers of a request together: four times what browsers and proxies send at most (nginx: 8 KiB a line)."""
HEAD_S = 10.0
"""The longest time from the first byte of a request, or the start of a connection, to the end of the headers."""
TURN_BYTES = 64 * 1024
"""A connection that brought so many bytes waits until the others have had their turn. libuv reads one that has more to give up
to 32 times in a row, 8 MB: of 200 bodies at once that is a gigabyte before anybody else is heard."""
REFUSALS_BETWEEN_LINES = 100
"""One line of the log stands for so many refused connections of a peer."""

RESERVED_DESCRIPTORS = 128
"""Descriptors of the process that are not connections of callers: files, the database's pool, pipes, sockets that listen."""

MAX_PEERS = 10_000
"""Peers whose refusals are counted at once; where there are more, the count begins anew."""


class HeadTooLargeError(Exception):
    """Ends the parsing of a request whose head is too large."""


def bounded_connections(*, per_peer: int, unbounded: frozenset[str]) -> type[HttpToolsProtocol]:
    """Return the class of connections of one service, which counts those of each peer but of the ``unbounded`` proxies.

    A peer may have ``per_peer``, and no more than the process has descriptors left: several peers together then leave others
    the share of one of them (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6.2, 1998).
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS
    traits = {"open_of": Counter(), "refused_of": Counter(), "of_all": Counter(), "descriptors": descriptors}
    return type("Connection", (BoundedConnection,), traits | {"per_peer": per_peer, "unbounded": unbounded})


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed when a request's head is too long or too slow, or its peer has too many."""

    open_of: Counter[str]
    refused_of: Counter[str]
    of_all: Counter[str]
    descriptors: int
    per_peer: int
    unbounded: frozenset[str]

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._peer = ""
        self._head_bytes: int | None = 0
        self._late: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._turn_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and wait for a request, or close it at once."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self.open_of[self._peer] += 1
        self.of_all["open"] += 1
        most = min(self.per_peer, max(1, self.descriptors - self.of_all["open"]))
        if self.open_of[self._peer] > most and self._peer not in self.unbounded:
            self._is_refused = True
            self._note_refusal(f"it has {self.open_of[self._peer] - 1} already")
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_waiting()
        self.open_of[self._peer] -= 1
        self.of_all["open"] -= 1
        if not self.open_of[self._peer]:
            del self.open_of[self._peer]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head is too large by now."""
        if self._is_refused:
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE, f"a request's address and headers may have {MAX_HEAD_BYTES} bytes together")
        self._take_turns(len(data))

    def _take_turns(self, n_bytes: int) -> None:
        """Let the other connections come first once this one has brought much."""
        self._turn_bytes += n_bytes
        # One whose body nobody reads yet is paused already, by uvicorn's own flow control.
        if self._turn_bytes >= TURN_BYTES and not self.flow.read_paused and not self.transport.is_closing():
            self._turn_bytes = 0
            self.transport.pause_reading()
            self.loop.call_soon(self._have_turn)

    def _have_turn(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        """Start to count the head of a request."""
        if self._head_bytes is None:
            self._head_bytes = 0
            self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hand the request over. Raises HeadTooLargeError, which ends the parsing, for a head that came in one piece."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE, f"a request's address and headers may have {MAX_HEAD_BYTES} bytes together")
            raise HeadTooLargeError
        self._head_bytes = None
        self._end_waiting()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that can't be parsed, unless it was answered already."""
        if not self._is_refused:
            super().send_400_response(msg)

    def _expect_head(self) -> None:
        self._end_waiting()
        self._late = self.loop.call_later(HEAD_S, self._too_slow)

    def _end_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_slow(self) -> None:
        self._refuse(HEAD_TOO_SLOW, f"the address and headers of a request may take {HEAD_S:g} s")

    def _note_refusal(self, why: str) -> None:
        """Write every hundredth refusal of a peer into the log: no request exists that could be in it."""
        if len(self.refused_of) > MAX_PEERS:
            self.refused_of.clear()
        if self.refused_of[self._peer] % REFUSALS_BETWEEN_LINES == 0:
            log.warning("connection of %s refused: %s", readable(self._peer), why)
        self.refused_of[self._peer] += 1

    def _refuse(self, kind: ProblemKind, detail: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        self._note_refusal(kind.title.lower())
        self._end_waiting()
        body = json.dumps(problem_document(kind, detail)).encode()
        head = (
            f"HTTP/1.1 {kind.status} {kind.title}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)
            self.transport.close()
