"""The attacks of ``benchmarks/attacks.py``: each bounded in count and time, against a service of this machine alone.

An act takes the arena, attacks for at most about a quarter of a minute, and returns what became of it in a few words. It raises
AssertionError where the attacker got something else than the service's own refusals.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import httpx

from benchmarks.attack_watch import MODEST
from benchmarks.attacked import ATTACKER, Arena, together
from tests.attacks.dripping import dripping
from tests.attacks.issuer import forged
from tests.attacks.overload import large_request
from tests.attacks.stalled_database import frozen

MIB = 2**20
ASYNC = {"prefer": "respond-async"}
LOST = (httpx.TransportError, OSError)
QUICK: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "seed-llama-1b"},
    "cluster": {"catalog": "dgx-h100", "nodes": 1},
    "workload": {"kind": "training", "global_batch": 8, "seq_len": 4096},
    "search": {"tp": [1], "pp": [1], "cp": [1], "microbatch": [1]},
}
HARD: dict[str, Any] = {
    "schema": "meshwright.request/1",
    "model": {"catalog": "deepseek-v3"},
    "cluster": {"catalog": "dgx-h100", "nodes": 256},
    "workload": {"kind": "training", "global_batch": 8192, "seq_len": 4096},
    "search": {"space": "free", "time_limit_s": 5},
}
POSTGRESQL = "postgresql"


@dataclass(frozen=True)
class Attack:
    """An attack: its number in the list of defects, its name, the limit that meets it, and the act.

    needs      what the database's URL must begin with
    stops_plans   the other tenant can't be served while it lasts, as where the database is frozen: only ``/healthz`` must
                  answer
    """

    number: int
    name: str
    limit: str
    act: Callable[[Arena], str]
    needs: str = ""
    stops_plans: bool = False


def hard_questions(arena: Arena) -> str:
    """Two questions that nobody can decide in their time, one after the other on one worker."""
    with arena.worker(), arena.client(arena.keys[0]) as client:
        statuses = Counter[str]()
        for seed in range(2):
            asked = client.post("/v1/plans", json=HARD | {"search": {**HARD["search"], "seed": seed}}, headers=ASYNC)
            assert asked.status_code == 202, asked.text
            statuses[ended(client, asked.headers["location"])] += 1
    assert set(statuses) == {"succeeded"}, statuses
    return f"both ended as {words(statuses)}"


def large_bodies(arena: Arena) -> str:
    """Six valid requests of 4 MB at once, through two keys."""
    text = json.dumps(large_request(700)).encode()

    def send(place: int) -> int:
        headers = {"content-type": "application/json", **ASYNC}
        with arena.client(arena.keys[place % 2]) as client:
            answer = client.post("/v1/plans", content=text, headers=headers)
            if answer.status_code == 202:
                client.post(answer.headers["location"] + "/cancel")
            return answer.status_code

    statuses = Counter(together([lambda place=place: send(place) for place in range(6)]))
    assert set(statuses) <= {202, 429}, statuses
    return words(statuses)


def long_heads(arena: Arena) -> str:
    """A header of 64 MiB and one of 300 MiB at once, an address of 64 MiB, and a header that drips."""
    answers = Counter[str]()
    starts = ((b"GET /healthz HTTP/1.1\r\nx-long: ", 64), (b"GET /healthz HTTP/1.1\r\nx-long: ", 300), (b"GET /", 64))
    for start, size_mib in starts:
        with arena.connect() as connection:
            try:
                connection.sendall(start)
                for _ in range(size_mib):
                    connection.sendall(b"a" * MIB)
            except OSError:
                pass
            answers[_status_of(connection)] += 1
    with arena.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nx-drip: ")
            for _ in range(200):
                connection.sendall(b"a")
                time.sleep(0.05)
        answers[_status_of(connection)] += 1
    return words(answers)


def half_open(arena: Arena) -> str:
    """1,100 connections of one peer, which never end their headers, at 1,024 descriptors."""
    return _never_asking(arena, [ATTACKER] * 1100)


def half_open_of_many(arena: Arena) -> str:
    """1,200 such connections, of three peers that each stay within their own limit."""
    return _never_asking(arena, [f"127.0.0.{2 + place % 3}" for place in range(1200)])


def _never_asking(arena: Arena, addresses: Sequence[str]) -> str:
    with ExitStack() as stack:
        opened = [_begin(stack, arena, address) for address in addresses]
        time.sleep(12.0)
        open_still = sum(1 for connection in opened if connection is not None and _is_open(connection))
    assert open_still == 0, f"{open_still} are open after the time-out of headers"
    return f"all {len(addresses)} are closed after 12 s"


def _begin(stack: ExitStack, arena: Arena, address: str) -> socket.socket | None:
    try:
        connection = stack.enter_context(arena.connect(address))
        connection.sendall(b"GET /healthz HT")
    except OSError:
        return None
    return connection


def unfinished_bodies(arena: Arena) -> str:
    """200 bodies of 8 MB of which the last byte never comes."""
    size = 8_000_000
    head = (
        f"POST /v1/plans HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {arena.keys[0]}\r\n"
        f"content-type: application/json\r\ncontent-length: {size}\r\n\r\n{{"
    ).encode()
    whole = memoryview(head + b" " * (size - 2))
    with ExitStack() as stack:
        statuses = Counter(_sent_at_once([stack.enter_context(arena.connect()) for _ in range(200)], whole))
    assert all(str(status) in ("408", "429", "503", "closed") for status in statuses), statuses
    return words(statuses)


def _sent_at_once(connections: Sequence[socket.socket], sent: memoryview, within_s: float = 40.0) -> list[str]:
    """Send the same over all connections until each is answered or closed: what each answered.

    In one thread: 200 that send would leave the service, on the same cores, one part in 200 of them.
    """
    places, statuses, until_s = dict.fromkeys(connections, 0), list[str](), time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while selector.get_map() and time.monotonic() < until_s:
            for key, events in selector.select(1.0):
                connection = cast("socket.socket", key.fileobj)
                if events & selectors.EVENT_WRITE:
                    with contextlib.suppress(OSError):
                        places[connection] += connection.send(sent[places[connection] :][:MIB])
                if events & selectors.EVENT_READ:
                    selector.unregister(connection)
                    statuses.append(_status_of(connection))
                elif places[connection] == len(sent):
                    selector.modify(connection, selectors.EVENT_READ)
    return statuses + ["silent"] * (len(connections) - len(statuses))


def frozen_database(arena: Arena) -> str:
    """PostgreSQL stopped for eight seconds, while 60 others ask."""
    with arena.client(arena.keys[0]) as client:

        def ask() -> int:
            return client.get("/v1/jobs").status_code

        with frozen(arena.database.rsplit(":", 1)[1].split("/")[0]):
            began_s = time.monotonic()
            statuses = Counter(together([ask] * 60))
            slowest_s = time.monotonic() - began_s
            time.sleep(max(0.0, 8.0 - slowest_s))
        assert set(statuses) == {503}, statuses
        back_s = time.monotonic()
        while ask() != 200:
            assert time.monotonic() < back_s + 20, "it does not recover"
            time.sleep(0.1)
    return f"{words(statuses)} within {slowest_s:.1f} s; served again {time.monotonic() - back_s:.1f} s after it"


def many_jobs(arena: Arena) -> str:
    """2,300 jobs at top urgency through two keys, before another's first job."""
    with (
        arena.client(arena.keys[0]) as first,
        arena.client(arena.keys[1]) as second,
        arena.client(arena.modest, MODEST) as modest,
    ):

        def submit(client: httpx.Client, numbers: range) -> Counter[int]:
            statuses = Counter[int]()
            for seed in numbers:
                document = QUICK | {"search": {**QUICK["search"], "seed": seed}}
                statuses[client.post("/v1/plans", json=document, headers={**ASYNC, "priority": "u=0"}).status_code] += 1
            return statuses

        statuses = Counter[int]()
        for counted in together([lambda: submit(first, range(1150)), lambda: submit(second, range(1150, 2300))]):
            assert isinstance(counted, Counter), counted
            statuses += counted
        assert set(statuses) <= {202, 429}, statuses
        with arena.worker(quick=True):
            time.sleep(3)
            asked = modest.post("/v1/plans", json=QUICK | {"search": {**QUICK["search"], "seed": 10_000}}, headers=ASYNC)
            began_s = time.monotonic()
            while modest.get(asked.headers["location"]).json()["status"] == "queued":
                assert time.monotonic() < began_s + 60, "another's first job waits"
                time.sleep(0.05)
            took_s = time.monotonic() - began_s
            ready = httpx.get(f"{arena.service.url}/readyz").status_code
            assert ready == 200, ready
    return f"{words(statuses)}; another's first job began after {took_s:.1f} s"


def restarts(arena: Arena) -> str:
    """Three orderly ends of the worker amid a solve, which then is finished."""
    with arena.client(arena.keys[0]) as client:
        hard = HARD | {"search": {**HARD["search"], "seed": 99, "time_limit_s": 8}}
        job = client.post("/v1/plans", json=hard, headers={**ASYNC, "priority": "u=0"}).headers["location"]
        for _ in range(3):
            with arena.worker():
                _until(lambda: client.get(job).json()["status"] == "running")
        with arena.worker():
            status = ended(client, job)
    assert status == "succeeded", status
    return f"the job ended as {status}"


def hanging_issuer(arena: Arena) -> str:
    """Ten forged tokens at a time from each of three peers, at an issuer that hangs."""
    return _forging(arena, hangs=True)


def failing_issuer(arena: Arena) -> str:
    """The same at an issuer that answers 503."""
    return _forging(arena, hangs=False)


def _forging(arena: Arena, *, hangs: bool) -> str:
    arena.issuer.hangs = hangs
    before, token = arena.issuer.asked, forged()

    began_s, statuses = time.monotonic(), Counter[object]()
    with ExitStack() as stack:
        clients = [stack.enter_context(arena.client(token, f"127.0.0.{2 + place}")) for place in range(3)]
        while time.monotonic() < began_s + 10:
            asked = [lambda client=client: client.get("/v1/plans").status_code for client in clients for _ in range(10)]
            statuses += Counter(together(asked))
    assert set(statuses) <= {401, 429, 503}, statuses
    return f"{words(statuses)}; the issuer was asked {arena.issuer.asked - before} times"


def guessed_keys(arena: Arena) -> str:
    """Wrong API keys for ten seconds, each with another ``X-Forwarded-For``."""
    statuses, began_s = Counter[int](), time.monotonic()
    with arena.client(f"mwk_{'0' * 12}_{'a' * 43}") as client:
        while time.monotonic() < began_s + 10:
            number = sum(statuses.values())
            client.headers["x-forwarded-for"] = f"192.0.2.{number % 250}"
            statuses[client.get("/v1/plans").status_code] += 1
    assert set(statuses) <= {401, 429}, statuses
    return words(statuses)


def dripping_receivers(arena: Arena) -> str:
    """Twenty finished re-plans whose webhook's receiver never ends its answer."""
    with dripping("header") as slow, arena.client(arena.keys[0]) as client, arena.worker():
        for number in range(20):
            name = f"c{number}"
            client.put(f"/v1/clusters/{name}", json={"catalog": "dgx-h100", "nodes": 1}).raise_for_status()
            answer = client.put(
                f"/v1/clusters/{name}", params={"replan": "start", "webhook": slow}, json={"catalog": "dgx-h100", "nodes": 2}
            )
            assert answer.is_success, answer.text
        time.sleep(10)
    return "20 calls begun, one at a time"


def followers(arena: Arena) -> str:
    """200 streams of events whose clients never read."""
    with arena.client(arena.keys[0]) as client, ExitStack() as stack:
        job = client.post("/v1/plans", json=QUICK | {"search": {**QUICK["search"], "seed": 20_000}}, headers=ASYNC).headers[
            "location"
        ]
        head = f"GET {job}/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {arena.keys[0]}\r\n\r\n".encode()
        for _ in range(200):
            follower = stack.enter_context(socket.socket())
            follower.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            follower.bind((ATTACKER, 0))
            follower.connect(("127.0.0.1", arena.port))
            follower.sendall(head)
        for seed in range(100):
            client.post("/v1/plans", json=QUICK | {"search": {**QUICK["search"], "seed": 30_000 + seed}}, headers=ASYNC)
        client.post(job + "/cancel")
        time.sleep(8)
    return "200 streams that nobody reads"


def packed_bodies(arena: Arena) -> str:
    """A gzip bomb of 1 GiB as a body, and a document nested 100,000 deep."""
    bomb = gzip.compress(b" " * (1024 * MIB), 1)[: 8 * MIB - 1024]
    nested = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    statuses = Counter[int]()
    with arena.client(arena.keys[0]) as client:
        for content, headers in ((bomb, {"content-encoding": "gzip"}), (nested, {})):
            headers = {"content-type": "application/json", **headers}
            for _ in range(5):
                statuses[client.post("/v1/plans", content=content, headers=headers).status_code] += 1
    assert set(statuses) <= {400, 413, 415, 422}, statuses
    return words(statuses)


def many_plans(arena: Arena) -> str:
    """A tenant that reads as fast as it is answered, over eight connections, for ten seconds."""

    def read(place: int) -> Counter[int]:
        statuses, began_s = Counter[int](), time.monotonic()
        with arena.client(arena.keys[place % 2]) as client:
            while time.monotonic() < began_s + 10:
                statuses[client.get("/v1/plans", params={"limit": 100}).status_code] += 1
        return statuses

    statuses = Counter[int]()
    for counted in together([lambda place=place: read(place) for place in range(8)]):
        assert isinstance(counted, Counter), counted
        statuses += counted
    assert set(statuses) <= {200, 429}, statuses
    return words(statuses)


def killed_workers(arena: Arena) -> str:
    """A worker killed amid a solve; another takes the job over."""
    with arena.client(arena.keys[0]) as client:
        hard = HARD | {"search": {**HARD["search"], "seed": 98, "time_limit_s": 4}}
        job = client.post("/v1/plans", json=hard, headers={**ASYNC, "priority": "u=0"}).headers["location"]
        with arena.worker() as process:
            _until(lambda: client.get(job).json()["status"] == "running")
            os.kill(process.pid, signal.SIGKILL)
        with arena.worker():
            status = ended(client, job)
    assert status == "succeeded", status
    return f"the job ended as {status}"


def ended(client: httpx.Client, job: str, within_s: float = 300.0) -> str:
    """Wait for the end of a job: its status."""
    found: list[str] = []

    def is_final() -> bool:
        found[:] = [client.get(job).raise_for_status().json()["status"]]
        return found[0] not in ("queued", "running")

    _until(is_final, within_s)
    return found[0]


def words(counts: Counter[Any]) -> str:
    """Counts in words, the most first."""
    return ", ".join(
        f"{count} × {thing if isinstance(thing, int | str) else type(thing).__name__}" for thing, count in counts.most_common()
    )


def _until(is_so: Callable[[], bool], within_s: float = 300.0) -> None:
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s, "it does not come"
        time.sleep(0.1)


def _status_of(connection: socket.socket) -> str:
    connection.settimeout(20)
    with contextlib.suppress(OSError):
        answer = connection.recv(65536)
        if answer.startswith(b"HTTP/1.1 "):
            return answer[9:12].decode()
    return "closed"


def _is_open(connection: socket.socket) -> bool:
    """Return True where the service has not closed a connection, an answer before that or none."""
    connection.settimeout(0.5)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


ATTACKS = (
    Attack(3, "two questions that can't be decided in their time", "`search.time_limit_s`", hard_questions),
    Attack(4, "six valid bodies of 4 MB at once", "one read at a time; 4 of the largest in hand of a tenant", large_bodies),
    Attack(5, "headers of 64 and 300 MiB, an address of 64 MiB, a header that drips", "32 KiB, 10 s", long_heads),
    Attack(5, "1,100 connections of one peer that never ask, at 1,024 descriptors", "512 of a peer, 10 s", half_open),
    Attack(5, "1,200 of three peers", "a share of the descriptors for each peer, 10 s", half_open_of_many),
    Attack(5, "200 bodies of 8 MB whose last byte never comes", "4 of a tenant, 15 s", unfinished_bodies),
    Attack(6, "PostgreSQL frozen for 8 s, 60 askers", "5 s, then 503", frozen_database, POSTGRESQL, stops_plans=True),
    Attack(8, "the worker told to stop three times amid a solve", "hand-backs", restarts),
    Attack(8, "the worker killed amid a solve", "takeover after 15 s", killed_workers),
    Attack(
        9, "forged tokens of three peers, the issuer hangs", "5 s, every 30 s; 5 refusals a second of a peer", hanging_issuer
    ),
    Attack(9, "the same, the issuer answers 503", "every 30 s", failing_issuer),
    Attack(9, "guessed API keys, a new `X-Forwarded-For` with each", "5 refusals a second of a peer", guessed_keys),
    Attack(10, "20 webhooks whose answer drips", "10 s a try, one of a tenant at a time", dripping_receivers),
    Attack(13, "gzip bombs and nesting of 100,000 as bodies", "no packed bodies; depth", packed_bodies),
    Attack(14, "200 streams of events that nobody reads", "64 KiB a connection", followers),
    Attack(14, "lists of plans, as fast as they are answered, over eight connections", "1,000 requests a second", many_plans),
    Attack(7, "2,300 jobs at top urgency through two keys", "turns go from tenant to tenant", many_jobs),
)
