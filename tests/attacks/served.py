"""A service as operators run it, ``meshwright serve`` in a process of its own, and what others see of it meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.service_process import service_bytes

COMMAND = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()"]


@dataclass(frozen=True, slots=True)
class Served:
    """A running service."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def memory_bytes(self) -> int:
        """Memory of the service's process and of those that it reads large bodies in, workers left out."""
        return service_bytes(self.process.pid)


@contextmanager
def served(
    database_url: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    workers: int = 0,
    *,
    command: Sequence[str] = COMMAND,
    cwd: Path | None = None,
) -> Iterator[Served]:
    """Run a service without authentication until the block ends; in the folder ``cwd`` where one is given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"MESHWRIGHT_DATABASE_URL": database_url, "MESHWRIGHT_AUTH": "off", **(environment or {})}
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "serve", "--port", str(port), "--workers", str(workers)], env=os.environ | settings, stderr=log, cwd=cwd
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield Served(url, port, process, folder / "serve.log")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the service ended at its start"
        try:
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the service does not answer")


@dataclass
class Watch:
    """Answers to somebody who asks again and again, at a steady pace: seconds until each, and their statuses."""

    seconds: list[float] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)

    def slowest_s(self) -> float:
        """The longest answer."""
        assert self.seconds, "nothing was asked"
        return max(self.seconds)


@contextmanager
def watching(url: str, *, every_s: float = 0.05) -> Iterator[Watch]:
    """Ask an address all the while."""
    watch, stop = Watch(), threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=30) as client:
            while not stop.is_set():
                began_s = time.monotonic()
                try:
                    watch.statuses.add(client.get(url).status_code)
                except httpx.TransportError:
                    watch.statuses.add(0)
                watch.seconds.append(time.monotonic() - began_s)
                stop.wait(every_s)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(60)
