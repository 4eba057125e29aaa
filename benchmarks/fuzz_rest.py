"""Throw mutated bodies at a running service and see that it answers each: ``python benchmarks/fuzz_rest.py [BODIES]``.

Starts ``meshwright serve`` on a loopback address with a database of its own and no workers, mutates documents of every
endpoint that takes one (values, fields, structure, bytes; seeded), and sends them over several connections. It fails on any
5xx, on an answer that does not come in 30 s, on a service that ended, and on memory that keeps growing.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from app.plans.examples import REQUEST_EXAMPLES
from benchmarks.service_process import running_process

CONNECTIONS = 8
LIMIT_S = 30.0
WARM_UP = 0.2
"""Share of the bodies after which memory is looked at first: caches have filled by then."""
MAX_GROWTH = 1.10
SEED = 0

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 1e-308, 2**53, 2**63, -(2**63), 10**30, "", " ", "a", "0", "é", "\u0000",
    "\u202e", "x" * 10_000, "../../etc/passwd", "http://127.0.0.1:1/", "'; DROP TABLE plans; --", [], {}, [[]], [{}], {"a": {}},
    [0] * 1000, {"": 0}, "NaN", "Infinity", "sha256:" + "0" * 64,
)  # fmt: skip


@dataclass
class Tally:
    """What came of the bodies."""

    statuses: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    bad: list[str] = field(default_factory=list)


def seeds() -> list[tuple[str, str, Any]]:
    """(method, path, document) of every endpoint that takes a body."""
    requests = [example["value"] for example in REQUEST_EXAMPLES.values()]
    plans = [("POST", "/v1/plans", document) for document in requests]
    report = {
        "folder": "plans", "exit_code": 0, "policy": {}, "accept": "meshwright check plans --update",
        "plans": [{"name": "a.plan.yaml", "verdict": "same", "findings": [], "now": {"tokens_per_s": 1.5}}],
        "counts": {"same": 1}, "meshwright_changes": {}, "updated": False, "schema": "meshwright.check/1",
    }  # fmt: skip
    others = [
        ("POST", "/v1/checks", {"project": "fuzz", "report": report}),
        ("POST", "/v1/keys", {"name": "fuzz", "scopes": ["plans:read"], "expires_in_days": 1}),
    ]
    return plans + others


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one to three places changed."""
    whole = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places(whole) or [([whole], 0)])
        act = chance.randrange(6)
        if act == 0 and isinstance(holder, dict):
            del holder[key]
        elif act == 1 and isinstance(holder, dict):
            holder[chance.choice(("extra", "", "schema", str(key) + "s"))] = chance.choice(ODD_VALUES)
        elif act == 2 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * chance.choice((-1, 0, 10, 1e6, 0.1, 3))
        elif act == 3 and isinstance(holder[key], list):
            holder[key] = holder[key] * chance.choice((0, 2, 50))
        elif act == 4:
            other, name = chance.choice(places(whole))
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


def body_of(document: Any, chance: random.Random) -> bytes:
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


async def throw(client: httpx.AsyncClient, bodies: list[tuple[str, str, bytes]], tally: Tally) -> None:
    """Send bodies one after another."""
    for method, path, body in bodies:
        began_s = time.perf_counter()
        try:
            answer = await client.request(method, path, content=body, headers={"content-type": "application/json"})
        except httpx.HTTPError as error:
            tally.bad.append(f"{method} {path}: {type(error).__name__} after {body[:300]!r}")
            continue
        tally.slowest_s = max(tally.slowest_s, time.perf_counter() - began_s)
        tally.statuses[f"{method} {path} {answer.status_code}"] += 1
        if answer.status_code >= 500:
            tally.bad.append(f"{method} {path}: {answer.status_code} {answer.text[:200]} to {body[:300]!r}")


async def fuzz(url: str, n_bodies: int, chance: random.Random, tally: Tally) -> None:
    """Send so many mutated bodies."""
    documents = seeds()
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        made = []
        for _ in range(n_bodies):
            method, path, document = chance.choice(documents)
            made.append((method, path, body_of(mutated(document, chance), chance)))
        await asyncio.gather(*(throw(client, made[first::CONNECTIONS], tally) for first in range(CONNECTIONS)))


def main(n_bodies: int) -> int:
    chance, tally = random.Random(SEED), Tally()
    with tempfile.TemporaryDirectory() as folder, running_process(Path(folder), "--workers", "0") as service:
        asyncio.run(fuzz(service.url, int(n_bodies * WARM_UP), chance, tally))
        before = service.resident_bytes()
        left = n_bodies - int(n_bodies * WARM_UP)
        began_s = time.perf_counter()
        # In parts, so that the bodies themselves don't fill this process's memory.
        for size in [2000] * (left // 2000) + [left % 2000]:
            asyncio.run(fuzz(service.url, size, chance, tally))
        rate = left / (time.perf_counter() - began_s)
        after = service.resident_bytes()
    for name, count in sorted(tally.statuses.items()):
        print(f"{name:32} {count:8,}")
    print(f"{rate:.0f} bodies/s; slowest answer {tally.slowest_s:.2f} s; resident memory x{after / before:.3f}")
    for line in tally.bad[:20]:
        print("BAD", line)
    return 0 if not tally.bad and after <= before * MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
