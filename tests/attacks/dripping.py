"""A server whose answer never ends: a byte of a header or body, or an informational answer, every tenth of a second."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_BEGINNINGS = {"header": (b"HTTP/1.1 200 OK\r\nx-long: ", b"a"), "informational": (b"", b"HTTP/1.1 102 Processing\r\n\r\n")}
_BODY = (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"a")


@contextmanager
def dripping(what: str) -> Iterator[str]:
    """Give the URL of such a server; it takes any number of connections until the block ends."""
    begin, piece = _BEGINNINGS.get(what, _BODY)
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(begin)
            while not over.wait(0.1):
                connection.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        over.set()
        listener.close()
