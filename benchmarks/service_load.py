"""How much the service bears: ``python benchmarks/service_load.py [--seconds N] [--watchers N] [--flat-s N]``.

Starts ``meshwright serve`` over a new SQLite file on the loopback address, has it plan one request, and then measures, each
from several connections at once: stored plans by digest, stored plans by the same request, new requests (202 and a job; no
worker runs), clients that follow a job, and the service's memory before and after. Prints each figure beside its target.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

URL = "http://127.0.0.1:8766"
CONNECTIONS = 8
REQUEST: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "llama-3.1-8b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {"kind": "training", "global_batch": 128, "seq_len": 8192},
}
Ask = Callable[[], Awaitable[httpx.Response]]
START = "from app.cli import main; main()"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--watchers", type=int, default=500, help="clients that follow one job")
    parser.add_argument("--flat-s", type=float, default=0.0, help="seconds of mixed load between the two looks at memory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        limits = {"MESHWRIGHT_MAX_WAITING_JOBS": "1000000", "MESHWRIGHT_AUTH": "off"}
        environment = os.environ | limits | {"MESHWRIGHT_DATABASE_URL": f"sqlite:///{folder}/plans.db"}
        worker = start(environment, "worker")
        service = start(environment, "serve", "--port", "8766", "--workers", "0")
        try:
            location = asyncio.run(plan_once())
            worker.terminate()
            worker.wait(60)
            asyncio.run(measure(location, service.pid, given))
        finally:
            for process in (worker, service):
                process.terminate()
                process.wait(60)
    return 0


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, *arguments], env=environment, stderr=subprocess.DEVNULL)


async def plan_once() -> str:
    """Wait for the service, and have it make one plan: where that is."""
    async with httpx.AsyncClient(base_url=URL, timeout=300) as client:
        for _ in range(600):
            try:
                if (await client.get("/readyz")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
        made = await client.post("/v1/plans", json=REQUEST, headers={"prefer": "wait=250"})
        made.raise_for_status()
        return made.headers["location"]


async def measure(location: str, pid: int, given: argparse.Namespace) -> None:
    limits = httpx.Limits(max_connections=given.watchers + CONNECTIONS)
    async with httpx.AsyncClient(base_url=URL, timeout=60, limits=limits) as client:
        seed = iter(range(1, 10**9))

        async def stored() -> httpx.Response:
            return await client.get(location)

        async def same() -> httpx.Response:
            return await client.post("/v1/plans", json=REQUEST)

        async def new() -> httpx.Response:
            return await client.post("/v1/plans", json=REQUEST | {"search": {"seed": next(seed)}})

        await load(pid, "stored plan, by digest", stored, 200, given.seconds, "400/s, p99 25 ms")
        await load(pid, "stored plan, by request", same, 200, given.seconds, "400/s, p99 25 ms")
        await load(pid, "new request", new, 202, given.seconds, "150/s")
        await follow(client, (await new()).headers["location"], given.watchers)
        before = resident_mib(pid)
        if given.flat_s:
            await load(pid, "mixed load, first half", stored, 200, given.flat_s / 2, "")
            await load(pid, "mixed load, second half", new, 202, given.flat_s / 2, "")
        print(f"memory: {before:.0f} MiB before, {resident_mib(pid):.0f} MiB after")


async def load(pid: int, what: str, ask: Ask, status: int, seconds: float, target: str) -> None:
    """Ask as fast as the answers come over a few connections; print the rate, the times and what an answer costs."""
    times: list[float] = []
    cpu_before_s = cpu_s(pid)
    end_s = time.perf_counter() + seconds

    async def one() -> None:
        while time.perf_counter() < end_s:
            began_s = time.perf_counter()
            answer = await ask()
            times.append(time.perf_counter() - began_s)
            if answer.status_code != status:
                raise SystemExit(f"{what}: {answer.status_code} {answer.text[:200]}")

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    median_ms, p99_ms = statistics.median(times) * 1e3, statistics.quantiles(times, n=100)[98] * 1e3
    cpu_ms = (cpu_s(pid) - cpu_before_s) / len(times) * 1e3
    said = f"{len(times) / seconds:.0f}/s, median {median_ms:.1f} ms, p99 {p99_ms:.1f} ms"
    print(f"{what}: {said}, {cpu_ms:.2f} ms of processor each ({target})", flush=True)


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


def cpu_s(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
