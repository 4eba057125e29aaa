"""The REST service as a client meets it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import create_autospec

import httpx
import pytest

from meshwright.app.base.errors import SolveTimeoutError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.edge.problems import KINDS
from meshwright.app.requests.examples import REQUEST_EXAMPLES
from meshwright.app.requests.limits import MAX_DEVICES
from meshwright.app.service import planning as service
from meshwright.app.store.calibrations import CalibrationRepository, NewCalibration
from meshwright.app.store.engine import open_engine
from tests.integration.rest import problem
from tests.support.fakes import FakeSolver
from tests.support.requests_given import serving, training
from tests.support.service import running_service


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one service for all tests that store nothing."""
    settings = Settings(f"sqlite:///{tmp_path_factory.mktemp('refusing') / 'plans.db'}", auth=Auth.OFF)
    with running_service(settings, FakeSolver(failure=AssertionError("nothing to solve"))) as client:
        yield client


def submit(client: httpx.Client, seed: int = 0, **headers: str) -> httpx.Response:
    """Ask for a plan without waiting for it."""
    return client.post("/v1/plans", json=training(search={"seed": seed}), headers={"prefer": ""} | headers)


def post_bytes(client: httpx.Client, body: bytes, media_type: str = "application/json") -> httpx.Response:
    return client.post("/v1/plans", content=body, headers={"content-type": media_type})


def test_the_same_request_again_gives_the_stored_plan(client: httpx.Client, solver: FakeSolver) -> None:
    first = client.post("/v1/plans", json=training())
    again = client.post("/v1/plans", json=training(objective="throughput", search={"seed": 0}))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.content == again.content
    assert solver.calls == 1
    plan = first.json()
    assert first.headers["location"] == f"/v1/plans/{plan['digest']}"
    assert client.get(first.headers["location"]).content == first.content


def test_the_same_body_again_is_not_resolved_again(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(training()).encode()
    answers = [post_bytes(client, body) for _ in range(2)]
    monkeypatch.setattr(service, "resolve_request", create_autospec(service.resolve_request, side_effect=AssertionError))
    answers.append(post_bytes(client, body))
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert len({answer.content for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    problem(post_bytes(client, body, "text/plain"), 415, "unsupported-media-type")


def test_a_changed_request_is_another_plan(client: httpx.Client) -> None:
    digests = {
        client.post("/v1/plans", json=document).json()["digest"]
        for document in (training(), training(search={"seed": 1}), training(cluster={"catalog": "dgx-h100", "nodes": 2}))
    }
    assert len(digests) == 3


def test_the_plan_document_holds_its_request(client: httpx.Client) -> None:
    plan = client.post("/v1/plans", json=training()).json()
    again = client.post("/v1/plans", json=plan["request"])
    assert again.status_code == 200
    assert again.json()["digest"] == plan["digest"]


def test_lists_go_page_by_page(client: httpx.Client) -> None:
    made = [client.post("/v1/plans", json=training(search={"seed": seed})).json()["digest"] for seed in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get("/v1/plans", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += [item["digest"] for item in page["plans"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_newer_calibration_makes_a_plan_stale(client: httpx.Client, settings: Settings) -> None:
    digest = client.post("/v1/plans", json=training()).json()["digest"]

    def stale_since() -> tuple[str | None, str | None]:
        answer = client.get(f"/v1/plans/{digest}")
        listed = client.get("/v1/plans").json()["plans"]
        return answer.headers.get("meshwright-stale-since"), listed[0]["stale_since"]

    assert stale_since() == (None, None)
    engine = open_engine(settings.database_url)
    now = datetime.now(UTC)
    for key in ("a100_sxm", "h100_sxm"):
        new = NewCalibration(f"{key}@sha256:0", key, now, "a table", 1, "sha256:0", "{}")
        CalibrationRepository(engine).add(new)
    engine.dispose()
    header, listed = stale_since()
    assert header == now.isoformat()
    assert listed is not None
    assert datetime.fromisoformat(listed) == now


def test_lists_are_filtered(client: httpx.Client) -> None:
    client.post("/v1/plans", json=training())
    client.post("/v1/plans", json=training(model={"catalog": "qwen3-8b"}))

    def models(**params: str) -> list[str]:
        return [item["model"] for item in client.get("/v1/plans", params=params).json()["plans"]]

    assert models(model="qwen3-8b") == ["qwen3-8b"]
    assert models(feasible="true") == ["qwen3-8b", "llama-3.1-8b"]
    assert models(feasible="false") == []


@pytest.mark.parametrize(
    "params", [{"limit": "0"}, {"limit": "201"}, {"cursor": "x"}, {"cursor": "cGxhbjox!"}, {"feasible": "?"}, {"model": "\x00"}]
)
def test_bad_list_parameters(refusing: httpx.Client, params: dict[str, str]) -> None:
    document = problem(refusing.get("/v1/plans", params=params), 422, "invalid-request")
    assert [fault["field"] for fault in document["errors"]] == list(params)


def test_unknown_plans_and_digests(refusing: httpx.Client) -> None:
    problem(refusing.get("/v1/plans/sha256:" + "0" * 64), 404, "plan-not-found")
    problem(refusing.get("/v1/plans/sha256:12"), 422, "invalid-request")


def test_unknown_addresses_and_methods(refusing: httpx.Client) -> None:
    problem(refusing.get("/v2/plans"), 404, "not-found")
    response = refusing.delete("/v1/plans")
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET, POST"


def test_reference_lists(refusing: httpx.Client) -> None:
    models = {item["name"]: item for item in refusing.get("/v1/models").json()["models"]}
    assert models["llama-3.1-8b"]["parameters"] == 8_030_261_248
    nodes = {item["name"]: item for item in refusing.get("/v1/hardware").json()["node_types"]}
    assert nodes["dgx-h100"]["devices_per_node"] == 8
    for item in refusing.get("/v1/schemas").json()["schemas"]:
        assert refusing.get(f"/v1/schemas/{item['name']}").json()["title"] == item["id"]
    problem(refusing.get("/v1/schemas/none"), 422, "invalid-request")


def test_health_and_readiness(refusing: httpx.Client) -> None:
    assert refusing.get("/healthz").json() == {"status": "ok"}
    assert refusing.get("/readyz").json()["status"] == "ok"


def test_readiness_needs_the_database() -> None:
    settings = Settings("postgresql://nobody@127.0.0.1:1/none", auth=Auth.OFF)
    with running_service(settings, FakeSolver()) as client:
        assert client.get("/healthz").status_code == 200
        response = client.get("/readyz")
        problem(response, 503, "not-ready")
        assert response.headers["retry-after"]
        problem(client.get("/v1/plans"), 503, "store-unavailable")


def test_request_ids_are_taken_or_made(refusing: httpx.Client) -> None:
    assert refusing.get("/healthz", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for unusable in ("a b", "x" * 200, ""):
        given = refusing.get("/healthz", headers={"x-request-id": unusable}).headers["x-request-id"]
        assert len(given) == 32


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON object"),
        (b"null", "no JSON object"),
        (b"schema: meshwright.request/1", "no JSON object"),
        (b'{"a": NaN}', "not finite"),
        (b'{"a": -Infinity}', "not finite"),
        (b'{"a": 1e999}', "not finite"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"{" + b'"a":{' * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": ' + b"1" * 100_000 + b"}", "too large"),
    ],
)
def test_bodies_that_are_no_documents(refusing: httpx.Client, body: bytes, said: str) -> None:
    assert said in problem(post_bytes(refusing, body), 400, "malformed-document")["detail"]


def with_text(text: str) -> bytes:
    return json.dumps(training(model={"catalog": text})).encode()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (json.dumps(training(cluster={"catalog": "dgx-h100", "nodes": 0})).encode(), "cluster.nodes"),
        (json.dumps(training(cluster={"catalog": "dgx-h100", "nodes": -3})).encode(), "cluster.nodes"),
        (json.dumps(training(cluster={"catalog": "dgx-h100", "nodes": MAX_DEVICES})).encode(), "cluster"),
        (json.dumps(training(cluster={"catalog": "dgx-h100", "nodes": 10**18})).encode(), "cluster"),
        (json.dumps(training(model={"config": {"model_type": "nonesuch"}})).encode(), "model.config"),
        (json.dumps(training(search={"time_limit_s": 5000})).encode(), "search.time_limit_s"),
        (json.dumps(training(surprise=1)).encode(), "surprise"),
        (with_text("\x00"), "model.catalog"),
        (json.dumps(training(**{"\x07": 1})).encode(), ""),
    ],
)
def test_requests_that_cannot_be_used(refusing: httpx.Client, body: bytes, field: str) -> None:
    document = problem(post_bytes(refusing, body), 422, "invalid-request")
    assert [fault["field"] for fault in document["errors"]] == [field]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "application/yaml", ""])
def test_other_content_types(refusing: httpx.Client, media_type: str) -> None:
    problem(post_bytes(refusing, json.dumps(training()).encode(), media_type), 415, "unsupported-media-type")


def test_content_type_may_name_its_charset(client: httpx.Client) -> None:
    body = json.dumps(training()).encode()
    assert post_bytes(client, body, "application/json; charset=utf-8").status_code == 201


def answer_to(client: httpx.Client, *pieces: bytes) -> bytes:
    """The first bytes that the service answers to a request whose end is never sent."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=20) as connection:
        head = b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"".join(pieces))
        return connection.recv(4096)


def test_large_bodies_are_refused_before_they_have_come(refusing: httpx.Client) -> None:
    megabyte = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    announced = answer_to(refusing, b"Content-Length: 200000000\r\n\r\n")
    unannounced = answer_to(refusing, b"Transfer-Encoding: chunked\r\n\r\n", *[megabyte] * 9)
    for answer in (announced, unannounced):
        assert answer.startswith(b"HTTP/1.1 413 ")


def test_large_bodies_get_a_problem_document(refusing: httpx.Client) -> None:
    document = problem(post_bytes(refusing, b"{" + b" " * 8 * 2**20), 413, "body-too-large")
    assert "8388608" in document["detail"]


def test_every_example_of_openapi_runs(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    operation = schema["paths"]["/v1/plans"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert examples.keys() == REQUEST_EXAMPLES.keys()
    for example in examples.values():
        response = client.post("/v1/plans", json=example["value"])
        assert response.status_code == 201
        assert str(response.status_code) in operation["responses"]


def test_openapi_names_every_document_it_refers_to(refusing: httpx.Client) -> None:
    schema = refusing.get("/openapi.json").json()
    names = set(schema["components"]["schemas"])
    references = {part.split('"')[0] for part in json.dumps(schema).split("#/components/schemas/")[1:]}
    assert references <= names


def test_openapi_statuses_are_those_of_known_problems(refusing: httpx.Client) -> None:
    known = {str(kind.status) for kind in KINDS} | {"200", "201", "202", "204", "304"}
    for path in refusing.get("/openapi.json").json()["paths"].values():
        for operation in path.values():
            assert set(operation["responses"]) <= known


def test_equal_requests_at_once_are_solved_once(settings: Settings) -> None:
    gate = threading.Event()
    solver = FakeSolver(gate=gate)
    with running_service(settings, solver) as client, ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(client.post, "/v1/plans", json=training()) for _ in range(4)]
        _wait_until(lambda: solver.calls == 1)
        # The service answers others while it solves.
        assert client.get("/readyz").status_code == 200
        gate.set()
        statuses = sorted(answer.result().status_code for answer in answers)
    assert statuses == [200, 200, 200, 201]
    assert solver.calls == 1


def test_too_many_waiting_jobs_are_refused_and_those_taken_go_on_without_their_callers(settings: Settings) -> None:
    gate = threading.Event()
    few = replace(settings, max_solves=1, max_waiting_jobs=2)
    solver = FakeSolver(gate=gate)
    with running_service(few, solver) as client:
        assert submit(client, seed=0).status_code == 202
        _wait_until(lambda: solver.calls == 1)
        assert [submit(client, seed=seed).status_code for seed in (1, 2)] == [202, 202]
        refusal = submit(client, seed=3)
        problem(refusal, 429, "queue-full")
        assert refusal.headers["retry-after"]
        assert submit(client, seed=2).status_code == 202
        gate.set()
        _wait_until(lambda: len(client.get("/v1/plans").json()["plans"]) == 3)


def test_a_solve_that_overstays(settings: Settings) -> None:
    with running_service(settings, FakeSolver(failure=SolveTimeoutError("ended after 90 s"))) as client:
        problem(client.post("/v1/plans", json=training()), 504, "solve-timeout")
        assert client.get("/v1/plans").json()["plans"] == []


def test_a_defect_is_a_plain_500(settings: Settings) -> None:
    with running_service(settings, FakeSolver(failure=ZeroDivisionError("secret detail"))) as client:
        response = client.post("/v1/plans", json=serving())
        problem(response, 500, "internal-error")
        assert "secret" not in response.text
        # and the service goes on
        assert client.get("/healthz").status_code == 200


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
