"""The load that the service bears: ``PYTHONPATH=. python -m benchmarks.service_load [--processes N] [--database URL] ...``.

Starts ``meshwright serve``, N times on ports of their own, over a new SQLite file or another database, has it plan one request,
and then measures, each from several connections at once: stored plans by digest, stored plans by the same request, new
requests (202 and a job; no worker runs), clients that follow a job, and the service's memory before and after. For each kind
of request it prints how many a second the service bears at most, and how long answers take at the rate that it must bear,
counted from when each was due.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.http_load import Answer, Connection, closed_load, connected, get, open_load, post

HOST, FIRST_PORT = "127.0.0.1", 8766
URL = f"http://{HOST}:{FIRST_PORT}"
CONNECTIONS = 8
REQUEST: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {"kind": "training", "global_batch": 128, "seq_len": 8192},
}
ADDITIONS = 3_000_000
FLAT_PER_S, FLAT_TURN_S = 50.0, 20.0
START = "from meshwright.app.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Service:
    """The processes of a service, each with a port of its own, and the API key that it is shown, if it asks for one."""

    pids: tuple[int, ...]
    ports: tuple[int, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request: its bytes, the status of its answer, and how many a second the service is to bear."""

    name: str
    make: Callable[[], bytes]
    status: int
    target_per_s: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--watchers", type=int, default=500, help="clients that follow one job")
    parser.add_argument("--flat-s", type=float, default=0.0, help="seconds of mixed load between the two looks at memory")
    parser.add_argument("--database", help="URL of a migrated database without rows, in place of a new SQLite file")
    parser.add_argument("--processes", type=int, default=1, help="processes that serve the database")
    parser.add_argument("--authenticated", action="store_true", help="ask for an API key, and show one with every request")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        limits = {"MESHWRIGHT_MAX_WAITING_JOBS": "1000000", "MESHWRIGHT_MAX_REQUESTS_PER_S": "1000000"}
        limits["MESHWRIGHT_AUTH"] = "required" if given.authenticated else "off"
        environment = os.environ | limits | {"MESHWRIGHT_DATABASE_URL": given.database or f"sqlite:///{folder}/plans.db"}
        worker = start(environment, "worker")
        ports = tuple(range(FIRST_PORT, FIRST_PORT + given.processes))
        serving = [start(environment, "serve", "--port", str(port), "--workers", "0") for port in ports]
        try:
            asyncio.run(are_ready(ports))
            key = made_key(environment) if given.authenticated else ""
            location = asyncio.run(plan_once(key))
            worker.terminate()
            worker.wait(60)
            asyncio.run(measure(location, Service(tuple(process.pid for process in serving), ports, key), given))
        finally:
            for process in (worker, *serving):
                process.terminate()
                process.wait(60)
    return 0


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, *arguments], env=environment, stderr=subprocess.DEVNULL)


def made_key(environment: dict[str, str]) -> str:
    """A new API key that may do everything."""
    command = [sys.executable, "-c", START, "keys", "create", "load", "--scope", "admin"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def showing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def are_ready(ports: Sequence[int]) -> None:
    """Wait for the service."""
    async with httpx.AsyncClient(timeout=300) as client:
        for port in ports:
            await is_ready(client, f"http://{HOST}:{port}/readyz")


async def plan_once(key: str) -> str:
    """Have the service make one plan: where that is."""
    async with httpx.AsyncClient(base_url=URL, timeout=300, headers=showing(key)) as client:
        made = await client.post("/v1/plans", json=REQUEST, headers={"prefer": "wait=250"})
        made.raise_for_status()
        return made.headers["location"]


async def is_ready(client: httpx.AsyncClient, url: str) -> None:
    for _ in range(600):
        try:
            if (await client.get(url)).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit(f"{url}: not ready")


async def measure(location: str, service: Service, given: argparse.Namespace) -> None:
    seed = iter(range(1, 10**9))
    by_digest, by_request = get(location, service.key), post("/v1/plans", REQUEST, service.key)

    def new() -> bytes:
        return post("/v1/plans", REQUEST | {"search": {"seed": next(seed)}}, service.key)

    kinds = (
        Kind("stored plan, by digest", lambda: by_digest, 200, 400),
        Kind("stored plan, by request", lambda: by_request, 200, 400),
        Kind("new request", new, 202, 150),
    )
    for kind in kinds:
        async with connected(HOST, service.ports, CONNECTIONS) as connections:
            await load(service, kind, connections, given.seconds)
    limits = httpx.Limits(max_connections=given.watchers + 1)
    async with httpx.AsyncClient(base_url=URL, timeout=60, limits=limits, headers=showing(service.key)) as client:
        job = (await client.post("/v1/plans", json=REQUEST | {"search": {"seed": next(seed)}})).headers["location"]
        await follow(client, job, given.watchers)
    before = resident_mib(service)
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + given.flat_s:
        for kind in kinds:
            async with connected(HOST, service.ports, CONNECTIONS) as connections:
                turn_s = min(FLAT_TURN_S, given.flat_s / len(kinds))
                await open_load(connections, kind.make, rate_per_s=FLAT_PER_S, seconds=turn_s)
        print(f"after {time.perf_counter() - began_s:.0f} s of mixed load: {resident_mib(service):.0f} MiB", flush=True)
    print(f"memory: {before:.0f} MiB before, {resident_mib(service):.0f} MiB after")


async def load(service: Service, kind: Kind, connections: list[Connection], seconds: float) -> None:
    """Print what the service bears at most, what an answer costs, and the times at the rate that is to be borne."""
    print(f"the machine now adds {additions_per_s() / 1e6:.0f} million numbers a second in a Python loop", flush=True)
    cpu_before_s = cpu_s(service)
    fastest = checked(kind, await closed_load(connections, kind.make, seconds=seconds))
    cpu_ms = (cpu_s(service) - cpu_before_s) / len(fastest) * 1e3
    print(f"{kind.name}: at most {len(fastest) / seconds:.0f}/s, {cpu_ms:.2f} ms of processor each", flush=True)
    paced = checked(kind, await open_load(connections, kind.make, rate_per_s=kind.target_per_s, seconds=seconds))
    median_ms, p99_ms = statistics.median(paced) * 1e3, statistics.quantiles(paced, n=100)[98] * 1e3
    rate = f"{len(paced)} of {kind.target_per_s * seconds:.0f} at {kind.target_per_s}/s"
    print(f"    {rate}: median {median_ms:.1f} ms, p99 {p99_ms:.1f} ms", flush=True)


def additions_per_s() -> float:
    """Return this machine's speed at this moment, other users of its processor counted: the figures are to be read by it."""
    total, began_s = 0, time.perf_counter()
    for number in range(ADDITIONS):
        total += number
    return ADDITIONS / (time.perf_counter() - began_s)


def checked(kind: Kind, answers: list[Answer]) -> list[float]:
    """Seconds of the answers, which are all as they should be."""
    for answer in answers:
        if answer.status != kind.status:
            raise SystemExit(f"{kind.name}: {answer.status} {answer.body[:200]!r}")
    return [answer.seconds for answer in answers]


async def follow(client: httpx.AsyncClient, job: str, watchers: int) -> None:
    """Have many clients follow one job, cancel it, and print how long the last of them took to hear of it."""
    heard: list[float] = []
    listening = 0

    async def watch() -> None:
        nonlocal listening
        async with client.stream("GET", job + "/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    listening += '"queued"' in line
                    if '"cancelled"' in line:
                        heard.append(time.perf_counter())

    watching = [asyncio.create_task(watch()) for _ in range(watchers)]
    while listening < watchers:
        await asyncio.sleep(0.05)
    began_s = time.perf_counter()
    (await client.post(job + "/cancel")).raise_for_status()
    await asyncio.gather(*watching)
    print(f"{len(heard)} of {watchers} clients that follow a job heard of its end within {max(heard) - began_s:.2f} s")


def cpu_s(service: Service) -> float:
    """Processor time of a service so far (Linux)."""
    ticks = 0
    for pid in service.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(service: Service) -> float:
    """Resident memory of a service (Linux)."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in service.pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
