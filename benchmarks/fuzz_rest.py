"""Throw mutated bodies at the service: ``python -m benchmarks.fuzz_rest [--bodies N] [--within-s S] [--tally FILE]``.

The whole service runs in this process over an SQLite file, without workers; bodies go through its ASGI interface, so that
the time goes into the service and not into sockets. Documents of every endpoint that takes one are mutated (values, fields,
structure, bytes). Body number i follows from the seed and i alone: with ``--tally`` a run goes on where the last one ended,
and ``--only I`` sends one body again and prints its answer. It fails on any 5xx, on an answer that does not come in 30 s, and
on memory that keeps growing.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.requests.examples import REQUEST_EXAMPLES
from meshwright.app.web.main import create_app

LIMIT_S = 30.0
WARM_UP = 4000
"""Bodies after which memory is looked at first: caches have filled by then."""
LOOK_EVERY = 2000
MAX_GROWTH = 1.10
SEED = 0
LONG_LIST = 1000
"""Lists longer than this are not made fifty times as long: bodies would soon be too large to be read at all."""
UNLIMITED = 10**9
CALIBRATION = Path("costmodels/hardware/calibrations")

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 1e-308, 2**53, 2**63, -(2**63), 10**30, "", " ", "a", "0", "é", "\u0000",
    "\u202e", "x" * 10_000, "../../etc/passwd", "http://127.0.0.1:1/", "'; DROP TABLE plans; --", [], {}, [[]], [{}], {"a": {}},
    [0] * 1000, {"": 0}, "NaN", "Infinity", "sha256:" + "0" * 64,
)  # fmt: skip


@dataclass
class Tally:
    """The tally of the bodies so far."""

    first: int = 0
    sent: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest_s: float = 0.0
    slowest_body: int = 0
    growth: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    endpoint_cpu_s: dict[str, float] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


def seeds() -> list[tuple[str, str, Any]]:
    """(method, path, document) of every endpoint that takes a body."""
    requests = [example["value"] for example in REQUEST_EXAMPLES.values()]
    plans = [("POST", "/v1/plans", document) for document in requests]
    named = {"model": {"name": "fuzz"}, "cluster": {"name": "fuzz"}, "calibrations": ["h100_sxm"]}
    report = {
        "folder": "plans", "exit_code": 0, "policy": {}, "accept": "meshwright check plans --update",
        "plans": [{"name": "a.plan.yaml", "verdict": "same", "findings": [], "now": {"tokens_per_s": 1.5}}],
        "counts": {"same": 1}, "meshwright_changes": {}, "updated": False, "schema": "meshwright.check/1",
    }  # fmt: skip
    return [
        *plans,
        ("POST", "/v1/plans", requests[0] | named),
        ("POST", "/v1/plans", requests[0] | {"calibrations": [calibration()]}),
        ("POST", "/v1/calibrations?replan=start", calibration()),
        ("PUT", "/v1/clusters/fuzz?replan=start", {"groups": [{"name": "a", "node": "dgx-h100", "nodes": 2}]}),
        ("PUT", "/v1/clusters/fuzz", {"catalog": "dgx-h100", "nodes": 2, "oversubscription": 1.0}),
        ("PUT", "/v1/models/fuzz?replan=start", requests[0]["model"]),
        ("POST", "/v1/replans", {"cluster": "fuzz", "model": "fuzz", "webhook": "https://hooks.example/x"}),
        ("POST", "/v1/checks", {"project": "fuzz", "report": report}),
        ("POST", "/v1/keys", {"name": "fuzz", "scopes": ["plans:read"], "expires_in_days": 1}),
        ("POST", "/v1/keys/000000000000/rotation", {"grace_hours": 1}),
    ]


def calibration() -> dict[str, Any]:
    """A calibration document whose curves are those that are shipped for the A100."""
    kernels = json.loads((CALIBRATION / "kernels" / "a100_sxm.json").read_text())
    collectives = json.loads((CALIBRATION / "collectives" / "a100_sxm.json").read_text())
    return {
        "schema": "meshwright.calibration/1", "key": "a100_sxm", "kernels": kernels | {"provenance": {"fuzz": "1 rows"}},
        "collectives": collectives, "samples": {"digest": "sha256:" + "0" * 64, "rows": 1},
    }  # fmt: skip


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one to three places changed."""
    # Several times as fast as a deep copy.
    whole = json.loads(json.dumps(document))
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places(whole) or [([whole], 0)])
        act = chance.randrange(6)
        if act == 0 and isinstance(holder, dict):
            del holder[key]
        elif act == 1 and isinstance(holder, dict):
            holder[chance.choice(("extra", "", "schema", str(key) + "s"))] = copy.deepcopy(chance.choice(ODD_VALUES))
        elif act == 2 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * chance.choice((-1, 0, 10, 1e6, 0.1, 3))
        elif act == 3 and isinstance(holder[key], list):
            holder[key] = holder[key] * chance.choice((0, 2, 50 if len(holder[key]) < LONG_LIST else 2))
        elif act == 4:
            other, name = chance.choice(places(document))
            holder[key] = copy.deepcopy(other[name])
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return whole


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in a document."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            found.append((holder, key))
            waiting.append(holder[key])
    return found


def bytes_of(document: Any, chance: random.Random) -> bytes:
    """The document's bytes, one in five with some of them changed too."""
    body = bytearray(json.dumps(document).encode())
    if chance.random() < 0.2:
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body) + 1)
            act = chance.randrange(4)
            if act == 0:
                del body[at : at + chance.randint(1, 40)]
            elif act == 1:
                body[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
            elif act == 2:
                body[at:at] = b"[" * chance.choice((1, 300, 5000))
            else:
                body = body[: at or 1]
    return bytes(body)


def bodies(first: int, documents: list[tuple[str, str, Any]]) -> Iterator[tuple[int, str, str, bytes]]:
    """(number, method, path, body), without an end."""
    number = first
    while True:
        chance = random.Random(f"{SEED}/{number}")
        method, path, document = chance.choice(documents)
        yield number, method, path, bytes_of(mutated(document, chance), chance)
        number += 1


async def call(app: FastAPI, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of the service's answer."""
    address, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": address, "raw_path": address.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    sent = False
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await asyncio.wait_for(app(scope, receive, send), LIMIT_S)
    return status, b"".join(parts)


async def fuzz(app: FastAPI, tally: Tally, *, n_bodies: int, within_s: float) -> None:
    """Send bodies until there are so many, or until the time is up."""
    began_s, first = time.perf_counter(), tally.sent
    resident = 0
    for number, method, path, body in bodies(first, seeds()):
        if number == n_bodies or time.perf_counter() - began_s > within_s:
            break
        one_s, one_cpu_s = time.perf_counter(), time.process_time()
        try:
            status, answer = await call(app, method, path, body)
        except TimeoutError:
            status, answer = 0, b"no answer"
        took_s = time.perf_counter() - one_s
        if took_s > tally.slowest_s:
            tally.slowest_s, tally.slowest_body = took_s, number
        endpoint = f"{method} {path.partition('?')[0]}"
        tally.statuses[f"{endpoint} {status}"] = tally.statuses.get(f"{endpoint} {status}", 0) + 1
        tally.endpoint_cpu_s[endpoint] = tally.endpoint_cpu_s.get(endpoint, 0.0) + time.process_time() - one_cpu_s
        if status >= 500 or status == 0:
            tally.bad.append(f"body {number}, {method} {path}: {status} {answer[:300]!r}")
        tally.sent = number + 1
        if (number + 1 - first) % LOOK_EVERY == 0:
            gc.collect()
            if number + 1 - first == WARM_UP:
                resident = resident_bytes()
            elif resident:
                print(f"{number + 1:,} bodies; resident memory x{resident_bytes() / resident:.3f}", flush=True)
    if resident:
        tally.growth.append(round(resident_bytes() / resident, 4))


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run(given: argparse.Namespace, tally: Tally, folder: Path) -> None:
    settings = Settings(
        f"sqlite:///{folder / 'plans.db'}",
        auth=Auth.OFF,
        max_requests_per_s=UNLIMITED,
        max_waiting_jobs=UNLIMITED,
        webhook_hosts="hooks.example",
        webhook_secret="fuzz",
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        for name in ("clusters", "models"):
            document = {"catalog": "dgx-h100"} if name == "clusters" else {"catalog": "llama-3.1-8b"}
            status, answer = await call(app, "PUT", f"/v1/{name}/fuzz", json.dumps(document).encode())
            assert status == 201, answer
        if given.only is not None:
            _, method, path, body = next(bodies(given.only, seeds()))
            print(method, path, body[:2000], *await call(app, method, path, body))
            return
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        await fuzz(app, tally, n_bodies=given.bodies, within_s=given.within_s)
        tally.seconds += time.perf_counter() - began_s
        tally.cpu_seconds += time.process_time() - began_cpu_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=100_000, help="bodies in all")
    parser.add_argument("--within-s", type=float, default=float("inf"), help="seconds after which this piece ends")
    parser.add_argument("--tally", type=Path, help="file that keeps what came of the bodies so far, to go on from")
    parser.add_argument("--first", type=int, default=0, help="number of the first body, where there is no tally to go on from")
    parser.add_argument("--only", type=int, help="send the body of this number alone")
    given = parser.parse_args()
    tally = Tally(first=given.first, sent=given.first)
    if given.tally is not None and given.tally.exists():
        tally = Tally(**json.loads(given.tally.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(given, tally, Path(folder)))
    if given.tally is not None:
        given.tally.write_text(json.dumps(asdict(tally)))
    for name, count in sorted(tally.statuses.items()):
        print(f"{name:44} {count:8,}")
    for endpoint, cpu_s in sorted(tally.endpoint_cpu_s.items()):
        n = sum(count for name, count in tally.statuses.items() if name.startswith(f"{endpoint} "))
        print(f"{endpoint:40} {1e3 * cpu_s / n:8.1f} ms of processor a body")
    spent = f"{tally.seconds:.0f} s ({tally.cpu_seconds:.0f} s of processor)"
    print(f"{tally.sent - tally.first:,} bodies from {tally.first:,} on in {spent}")
    print(f"slowest answer {tally.slowest_s:.2f} s (body {tally.slowest_body}); growth of memory by piece: {tally.growth}")
    for line in tally.bad[:20]:
        print("BAD", line)
    return 0 if not tally.bad and all(growth <= MAX_GROWTH for growth in tally.growth) else 1


if __name__ == "__main__":
    sys.exit(main())
