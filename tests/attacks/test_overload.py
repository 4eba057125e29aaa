"""Large bodies, long heads, slow and idle connections: none of them silences the service for others.

No test here asserts how fast the machine is: what is compared with a limit in seconds is whether somebody else is answered
at all while the attack goes on, and the limits are those of the service's own time-outs.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from meshwright.app.edge.bodies import IDLE_BODY_S, LARGE_BODY_BYTES
from meshwright.app.edge.connection import HEAD_S, MAX_HEAD_BYTES
from meshwright.app.edge.long_work import BODIES_OF_A_TENANT
from tests.attacks.overload import large_request
from tests.attacks.served import Served, served, watching

MIB = 1024 * 1024
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("overload")
    limits = {"MESHWRIGHT_MAX_CONNECTIONS_PER_PEER": "64"}
    with served(f"sqlite:///{folder / 'plans.db'}", folder, limits) as running:
        yield running


def connect(service: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=30)


def answer_of(connection: socket.socket) -> bytes:
    """Return the bytes that come until the service closes the connection; nothing where it was reset."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass
    return received


@pytest.mark.slow
def test_large_bodies_leave_others_their_answers(service: Served) -> None:
    """Without a thread of its own for long work, one of these bodies silences everybody until it is read."""
    text = json.dumps(large_request(700)).encode()
    assert len(text) > 3 * MIB
    answers: list[int] = []

    def send() -> None:
        answers.append(httpx.post(f"{service.url}/v1/plans", content=text, headers=JSON, timeout=300).status_code)

    began_s = time.monotonic()
    with watching(f"{service.url}/healthz") as watch:
        senders = [threading.Thread(target=send) for _ in range(3)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    took_s = time.monotonic() - began_s
    assert set(answers) <= {200, 202}
    assert watch.statuses == {200}
    assert watch.slowest_s() < took_s / 4, "somebody waited for as long as a body takes"


@pytest.mark.slow
def test_a_large_body_is_answered_as_a_short_one(service: Served) -> None:
    """It is read in a process of its own; what comes of it is the same."""
    short = json.dumps(large_request(1) | {"search": {"seed": 7}}).encode()
    bodies = [short, short + b" " * LARGE_BODY_BYTES]
    with httpx.Client(base_url=service.url, headers=JSON | {"prefer": "respond-async"}, timeout=60) as client:
        jobs = [client.post("/v1/plans", content=body, headers={"idempotency-key": "once"}).json() for body in bodies]
        faulty = [client.post("/v1/plans", content=body.replace(b'"seed"', b'"sead"')) for body in bodies]
        broken = client.post("/v1/plans", content=b"{" + b" " * LARGE_BODY_BYTES)
    assert jobs[0]["id"] == jobs[1]["id"]
    assert [answer.status_code for answer in faulty] == [422, 422]
    assert faulty[0].json()["errors"] == faulty[1].json()["errors"]
    assert broken.status_code == 400


def begun_body(service: Served, announced: int) -> socket.socket:
    """Return a connection over which the head of a request and the first byte of its body were sent."""
    connection = connect(service)
    head = (
        f"POST /v1/plans HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {announced}\r\n\r\n"
    )
    connection.sendall(head.encode() + b"{")
    return connection


@pytest.mark.slow
def test_one_tenant_has_no_more_in_hand_than_its_share(service: Served) -> None:
    """Bodies count as soon as they are announced, and those that are too many are refused before they come."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(begun_body(service, 8 * MIB)) for _ in range(BODIES_OF_A_TENANT + 2)]
        answers, _, _ = select.select(connections, [], [], IDLE_BODY_S / 2)
        while len(answers) < 2:
            answers, _, _ = select.select(connections, [], [], 0.1)
        assert [connection.recv(12) for connection in answers] == [b"HTTP/1.1 429"] * 2
        assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_a_body_that_is_refused_is_not_read(service: Served) -> None:
    """Its rest would be read and dropped without this: as much work for the event loop as one that is taken."""
    with begun_body(service, 256 * MIB) as connection:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 256 * MIB:
                connection.sendall(b" " * MIB)
                sent += MIB
        assert sent < 64 * MIB, "no more than what the kernel keeps for two sockets"
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()


def test_a_short_body_that_is_refused_ends_no_connection(service: Served) -> None:
    with httpx.Client(base_url=service.url) as client:
        for _ in range(3):
            answer = client.post("/v1/plans", content=b"{" * 1000, headers={"content-type": "text/plain"})
            assert (answer.status_code, answer.headers.get("connection")) == (415, None)


@pytest.mark.parametrize("piece", [1024, 4 * MIB], ids=["dripped", "at-once"])
@pytest.mark.parametrize("part", ["address", "header"])
def test_a_head_has_its_limit(service: Served, part: str, piece: int) -> None:
    long = b"a" * (4 * MIB)
    start = b"GET /" + long if part == "address" else b"GET /healthz HTTP/1.1\r\nx-long: " + long
    with connect(service) as connection:
        try:
            for place in range(0, len(start), piece):
                connection.sendall(start[place : place + piece])
            connection.sendall(b" HTTP/1.1\r\n\r\n" if part == "address" else b"\r\n\r\n")
        except ConnectionError:
            pass
        assert answer_of(connection)[:12] in (b"", b"HTTP/1.1 431")
    assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_a_head_within_the_limit_is_read(service: Served) -> None:
    value = "a" * (MAX_HEAD_BYTES - 1024)
    assert httpx.get(f"{service.url}/healthz", headers={"x-long": value}).status_code == 200
    refused = httpx.get(f"{service.url}/healthz", headers={"x-long": value + 2048 * "a"})
    assert (refused.status_code, refused.json()["status"]) == (431, 431)
    assert "connection of 127.0.0.1 refused" in service.log.read_text()


@pytest.mark.slow
def test_requests_that_never_end_are_ended(service: Served) -> None:
    """All at once, so that the test takes as long as the longest of them."""
    body = b"POST /v1/plans HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    begun = {sent: connect(service) for sent in (b"", b"GET /healthz HT", body)}
    for sent, connection in begun.items():
        connection.sendall(sent)
    for connection in begun.values():
        connection.settimeout(3 * max(IDLE_BODY_S, HEAD_S))
        assert connection.recv(65536)[:12] == b"HTTP/1.1 408"
        connection.close()


def test_a_peer_has_so_many_connections_at_most(service: Served) -> None:
    """More are closed at once; what the peer has goes on, and when it lets go of some it is served again."""
    connections: list[socket.socket] = []
    with httpx.Client(base_url=service.url) as earlier:
        assert earlier.get("/healthz").status_code == 200
        try:
            connections.extend(connect(service) for _ in range(80))
            assert earlier.get("/healthz").status_code == 200
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{service.url}/healthz")
        finally:
            for connection in connections:
                connection.close()
    for _ in range(100):
        try:
            assert httpx.get(f"{service.url}/healthz").status_code == 200
            break
        except httpx.TransportError:
            time.sleep(0.1)
    else:
        pytest.fail("the peer is never served again")


@pytest.mark.slow
def test_peers_together_leave_another_its_connections(tmp_path: Path) -> None:
    """At 256 descriptors, three peers that each stay within their own limit."""
    with contextlib.ExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # What is started meanwhile has it for good.
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            small = stack.enter_context(served(f"sqlite:///{tmp_path / 'plans.db'}", tmp_path))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for place in range(300):
            address = (f"127.0.0.{2 + place % 3}", 0)
            stack.enter_context(socket.create_connection(("127.0.0.1", small.port), timeout=30, source_address=address))
        assert httpx.get(f"{small.url}/healthz").status_code == 200


@pytest.mark.slow
def test_followers_that_never_read_hold_nobody_up(tmp_path: Path) -> None:
    """Nor do they keep the service from ending: that it does within its time ``served`` asserts."""
    followers: list[socket.socket] = []
    with served(f"sqlite:///{tmp_path / 'plans.db'}", tmp_path) as service, httpx.Client(base_url=service.url) as client:
        asked = client.post("/v1/plans", json=large_request(2), headers={"prefer": "respond-async"})
        assert asked.status_code == 202
        before = service.memory_bytes()
        try:
            for _ in range(60):
                follower = socket.socket()
                # The kernel takes little for it, so the service has to wait with what it would send.
                follower.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                follower.connect(("127.0.0.1", service.port))
                follower.sendall(f"GET {asked.headers['location']}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                followers.append(follower)
            with watching(f"{service.url}/healthz") as watch:
                assert client.post(asked.headers["location"] + "/cancel").status_code == 200
                for seed in range(20):
                    document = large_request(1) | {"search": {"seed": seed}}
                    assert client.post("/v1/plans", json=document, headers={"prefer": "respond-async"}).status_code == 202
            assert watch.statuses == {200}
            assert service.memory_bytes() < before + 64 * MIB
            service.process.terminate()
            assert service.process.wait(60) in (0, -signal.SIGTERM)
        finally:
            for follower in followers:
                follower.close()


@pytest.mark.slow
def test_memory_comes_back(service: Served, tmp_path: Path) -> None:
    text = json.dumps(large_request(300)).encode()
    before = None
    for _ in range(6):
        answer = httpx.post(f"{service.url}/v1/plans", content=text, headers=JSON, timeout=300)
        assert answer.status_code in (200, 202)
        before = before or service.memory_bytes()
    assert service.memory_bytes() < 1.3 * before + 32 * MIB
