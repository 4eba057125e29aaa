"""A service under attack: the real processes, two tenants with keys, a token issuer that misbehaves, and what others see.

Attackers come from ``ATTACKER`` and the addresses after it, the other tenant from ``MODEST``, the probe of ``/healthz`` from
another: to the service they are different peers, and all of them are loopback addresses (Linux has the whole of 127/8).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx

from benchmarks.attack_watch import ASK_S, MODEST
from benchmarks.service_process import MESHWRIGHT, ServiceProcess, running_process
from meshwright.app.requests.examples import TRAINING_REQUEST

ATTACKER = "127.0.0.2"
DESCRIPTORS = 1024
"""Of the service: what many systems give a process."""
HEALTH_LIMIT_S, PLAN_LIMIT_S = 1.0, 0.25
MEMORY_LIMIT, MEMORY_WITHIN_S = 1.10, 30.0


@dataclass
class Issuer:
    """A token issuer on a loopback address: it never answers, or answers 503; how often it was asked."""

    hangs: bool = True
    asked: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Give its URL until the block ends."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                if issuer.hangs:
                    issuer.over.wait(ASK_S)
                self.send_error(503)

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            self.over.set()
            server.shutdown()
            server.server_close()


@dataclass(frozen=True)
class Arena:
    """A service that is ready to be attacked.

    keys       of the greedy tenant, which attacks
    modest     key of the other tenant, and the address of its stored plan
    database   the URL; port of its server where it is one
    """

    service: ServiceProcess
    port: int
    keys: tuple[str, str]
    modest: str
    plan: str
    issuer: Issuer
    database: str
    folder: Path

    def client(self, key: str = "", address: str = ATTACKER) -> httpx.Client:
        """A client that shows a key and comes from an address."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = httpx.HTTPTransport(verify=False, local_address=address, limits=httpx.Limits(max_connections=200))
        return httpx.Client(base_url=self.service.url, headers=headers, timeout=ASK_S * 10, transport=transport)

    def connect(self, address: str = ATTACKER) -> socket.socket:
        """A bare connection from an address."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=ASK_S, source_address=(address, 0))

    @contextmanager
    def worker(self, *, quick: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process of this database, told to stop when the block ends; one whose solves take half a second at most."""
        command = [*MESHWRIGHT, "worker"]
        if quick:
            command = [sys.executable, "-c", "from tests.crash.worker import main; main()", self.database, "1", "15"]
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(command, env=self.service.environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def arena(folder: Path, database: str) -> Iterator[Arena]:
    """Start a service over a database without rows, have the modest tenant's plan made, and take each kind of request once."""
    issuer = Issuer()
    with issuer.serving() as issuer_url:
        settings = {
            "MESHWRIGHT_DATABASE_URL": database,
            "MESHWRIGHT_AUTH": "required",
            "MESHWRIGHT_OIDC_ISSUER": issuer_url,
            "MESHWRIGHT_WEBHOOK_HOSTS": "127.0.0.1",
            "MESHWRIGHT_WEBHOOK_SECRET": "of the benchmark alone",
            "MESHWRIGHT_MAX_SOLVES": "1",
            "MESHWRIGHT_DRAIN_S": "1",
            "MESHWRIGHT_MAX_WAITING_JOBS": "4000",
        }
        subprocess.run([*MESHWRIGHT, "migrate"], env=os.environ | settings, check=True, capture_output=True)
        with ExitStack() as stack:
            with few_descriptors():
                service = stack.enter_context(running_process(folder, "--workers", "0", **settings))
            port = int(service.url.rsplit(":", 1)[1])
            made = [_key(service, tenant) for tenant in ("greedy", "greedy", "modest")]
            ready = Arena(service, port, (made[0], made[1]), made[2], "", issuer, database, folder)
            with ready.worker(quick=True), ready.client(made[2], MODEST) as client:
                answer = client.post("/v1/plans", json=TRAINING_REQUEST, headers={"prefer": "wait=250"})
                answer.raise_for_status()
            yield Arena(service, port, ready.keys, made[2], answer.headers["location"], issuer, database, folder)


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Give what is started meanwhile so few descriptors: a service looks once, at its start, how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _key(service: ServiceProcess, tenant: str) -> str:
    command = [*MESHWRIGHT, "keys", "create", "attack", "--scope", "admin", "--tenant", tenant]
    return subprocess.run(command, env=service.environment, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Seen:
    """The answers to one who asks at even times: seconds of each from when it was due, and how many had each status."""

    seconds: tuple[float, ...]
    statuses: Counter[int]

    def slowest_s(self) -> float:
        """The longest answer."""
        return max(self.seconds, default=0.0)

    def p99_s(self) -> float:
        """The time within which 99 of 100 answers came."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[98] if len(self.seconds) > 1 else 0.0


@dataclass
class Others:
    """The answers that others had, once the block of ``watching`` is over."""

    health: Seen = field(default_factory=lambda: Seen((), Counter()))
    plan: Seen = field(default_factory=lambda: Seen((), Counter()))


@contextmanager
def watching(arena: Arena) -> Iterator[Others]:
    """Ask for ``/healthz`` and for the modest tenant's stored plan at even times, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.attack_watch", str(arena.port), arena.plan]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert watcher.stdin is not None and watcher.stdout is not None
    others = Others()
    try:
        print(arena.modest, file=watcher.stdin, flush=True)
        assert watcher.stdout.readline() == "begun\n", "nobody watches"
        yield others
    finally:
        watcher.stdin.close()
        found = json.loads(watcher.stdout.read())
        watcher.wait(ASK_S)
    others.health, others.plan = (
        Seen(tuple(found[name]["seconds"]), Counter(int(status) for status in found[name]["statuses"]))
        for name in ("health", "plan")
    )


def memory_back(arena: Arena, before: int) -> tuple[int, float]:
    """Wait until the service's memory is back within its limit: what it is then, and the seconds that this took."""
    began_s = time.monotonic()
    while (now := arena.service.resident_bytes()) > MEMORY_LIMIT * before and time.monotonic() < began_s + MEMORY_WITHIN_S:
        time.sleep(0.25)
    return now, time.monotonic() - began_s


def together(acts: list[Callable[[], object]]) -> list[object]:
    """Carry out several things at once, each in a thread: what each gave, or the error that it ended with."""
    results: list[object] = [None] * len(acts)

    def run(place: int) -> None:
        try:
            results[place] = acts[place]()
        except (httpx.HTTPError, OSError) as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * ASK_S)
    return cast("list[object]", results)
