"""Deleting what is registered or planned, as a REST client meets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.store.principal import Scope
from tests.integration.rest import Json, problem
from tests.integration.security.service import header
from tests.support.fakes import FakeSolver
from tests.support.requests_given import tiny_graph, training
from tests.support.service import running_service

pytestmark = pytest.mark.both_databases

ALL = {"with_dependents": True}


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that lets the solver of ``gated`` go on."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def gated(settings: Settings, gate: threading.Event) -> Iterator[httpx.Client]:
    with running_service(settings, FakeSolver(gate=gate)) as client:
        yield client


def put(client: httpx.Client, nodes: int = 1, name: str = "prod", **options: Any) -> httpx.Response:
    return client.put(f"/v1/clusters/{name}", json={"catalog": "dgx-h100", "nodes": nodes}, **options)


def ask(client: httpx.Client, name: str = "prod", **options: Any) -> httpx.Response:
    return client.post("/v1/plans", json=training(cluster={"name": name}), **options)


def in_the_way(response: httpx.Response) -> dict[str, str]:
    """What depends on the thing that was to be deleted, by kind."""
    errors: list[Json] = problem(response, 409, "in-use")["errors"]
    return {error["field"]: error["given"] for error in errors}


def test_what_nothing_depends_on_goes_with_all_its_versions(client: httpx.Client) -> None:
    put(client, 1)
    put(client, 2)
    put(client, 1, "other")
    assert client.put("/v1/models/prod", json={"graph": tiny_graph()}).status_code == 201
    gone = client.delete("/v1/clusters/prod")
    assert (gone.status_code, gone.content) == (204, b"")
    problem(client.get("/v1/clusters/prod"), 404, "no-such-resource")
    problem(client.delete("/v1/clusters/prod"), 404, "no-such-resource")
    assert [item["name"] for item in client.get("/v1/clusters").json()["items"]] == ["other"]
    assert client.delete("/v1/models/prod").status_code == 204
    assert client.get("/v1/registered-models").json()["items"] == []
    assert put(client, 3).json()["version"] == 1


def test_what_is_named_by_questions_goes_with_them_alone(client: httpx.Client) -> None:
    put(client)
    put(client, 2, "other")
    client.put("/v1/models/ours", json={"graph": tiny_graph()})
    body = training(cluster={"name": "prod"}, model={"name": "ours"})
    digest = client.post("/v1/plans", json=body).json()["digest"]
    ask(client, "other")
    for address in ("/v1/clusters/prod", "/v1/models/ours"):
        assert in_the_way(client.delete(address)) == {"plans": digest}
        assert client.get(address).status_code == 200
    assert client.delete("/v1/clusters/prod", params=ALL).status_code == 204
    assert [item["cluster"] for item in client.get("/v1/questions").json()["questions"]] == ["other"]
    assert client.get(f"/v1/plans/{digest}").status_code == 200
    assert client.delete("/v1/models/ours").status_code == 204
    assert ask(client).status_code == 422


def test_a_finished_batch_stands_in_no_ones_way(client: httpx.Client) -> None:
    put(client, 2)
    ask(client)
    batch = put(client, 1, params={"replan": "start"}).json()["replan"]
    deadline_s = time.monotonic() + 20
    while client.get(batch).json()["status"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert client.delete("/v1/clusters/prod", params=ALL).status_code == 204
    assert client.get(batch).json()["status"] == "finished"
    assert client.get(f"{batch}/items").json()["items"] == []


def test_a_job_that_runs_is_named_and_comes_to_its_end(gated: httpx.Client, gate: threading.Event) -> None:
    put(gated)
    job = ask(gated, headers={"prefer": ""})
    assert job.status_code == 202, job.text
    for params in ({}, ALL):
        assert in_the_way(gated.delete("/v1/clusters/prod", params=params)) == {"jobs": job.json()["id"]}
    gate.set()
    assert ask(gated).status_code in (200, 201)
    assert gated.delete("/v1/clusters/prod", params=ALL).status_code == 204
    assert gated.get(job.json()["plan"] or f"{job.headers['location']}/plan").status_code == 200


def test_a_batch_that_runs_is_named(gated: httpx.Client, gate: threading.Event) -> None:
    put(gated, 2)
    gate.set()
    ask(gated)
    gate.clear()
    batch = put(gated, 1, params={"replan": "start"}).json()["replan"]
    found = in_the_way(gated.delete("/v1/clusters/prod", params=ALL))
    assert f"/v1/replans/{found['replans']}" == batch


def test_a_deleted_plan_is_gone_and_made_again_when_it_is_asked_for(client: httpx.Client) -> None:
    key = {"idempotency-key": "once"}
    made = client.post("/v1/plans", json=training(), headers=key)
    address = made.headers["location"]
    assert client.get(address).status_code == 200
    gone = client.delete(address)
    assert (gone.status_code, gone.content) == (204, b"")
    problem(client.get(address), 404, "plan-not-found")
    problem(client.delete(address), 404, "plan-not-found")
    problem(client.delete("/v1/plans/sha256:0"), 422, "invalid-request")
    assert client.get("/v1/plans").json()["plans"] == []
    (job,) = client.get("/v1/jobs").json()["jobs"]
    problem(client.get(f"/v1/jobs/{job['id']}/plan"), 404, "plan-not-found")
    again = client.post("/v1/plans", json=training(), headers=key)
    assert (again.status_code, again.headers["location"]) == (201, address)
    assert client.get(address).status_code == 200


def test_a_plan_that_another_process_deletes_is_gone(client: httpx.Client, settings: Settings) -> None:
    address = client.post("/v1/plans", json=training()).headers["location"]
    assert client.get(address).status_code == 200
    with running_service(settings, None) as other:
        assert other.delete(address).status_code == 204
    problem(client.get(address), 404, "plan-not-found")
    # A question is never pointed to a text that the process remembers of a plan that is gone.
    put(client)
    digest = ask(client).json()["digest"]
    with running_service(settings, None) as other:
        assert other.delete(f"/v1/plans/{digest}", params=ALL).status_code == 204
    assert ask(client).json()["digest"] == digest
    assert client.get(f"/v1/plans/{digest}").status_code == 200


def test_what_rests_on_a_plan_is_named(client: httpx.Client) -> None:
    put(client)
    plan = ask(client)
    address, digest = plan.headers["location"], plan.json()["digest"]
    run = client.post("/v1/runs", json={"schema": "meshwright.run/1", "plan": digest, "step_time_s": 16.0}).json()
    (question,) = client.get("/v1/questions").json()["questions"]
    assert in_the_way(client.delete(address)) == {"questions": question["digest"], "runs": run["id"]}
    assert client.get(address).status_code == 200
    assert client.delete(address, params=ALL).status_code == 204
    assert client.get("/v1/questions").json()["questions"] == []
    assert [each["id"] for each in client.get("/v1/runs").json()["runs"]] == [run["id"]]
    assert client.delete("/v1/clusters/prod").status_code == 204


def test_a_plan_that_a_batch_compares_with_is_named(gated: httpx.Client, gate: threading.Event) -> None:
    put(gated, 2)
    gate.set()
    old = ask(gated).headers["location"]
    gate.clear()
    put(gated, 1, params={"replan": "start"})
    assert "replans" in in_the_way(gated.delete(old, params=ALL))
    gate.set()


def test_only_its_tenant_deletes_a_thing_and_only_with_the_scope(settings: Settings) -> None:
    guarded = replace(settings, auth=Auth.REQUIRED)
    with running_service(guarded, FakeSolver()) as client:
        owner, rival = (header(guarded, Scope.CLUSTERS_WRITE, Scope.PLANS_READ, tenant=each) for each in ("acme", "rival"))
        weak = header(guarded, Scope.PLANS_WRITE, Scope.CALIBRATIONS_WRITE)
        put(client, headers=owner)
        planner = header(guarded, Scope.PLANS_WRITE)
        plan = client.post("/v1/plans", json=training(), headers=planner).headers["location"]
        problem(client.delete(plan, headers=header(guarded, Scope.ADMIN, tenant="rival")), 404, "plan-not-found")
        problem(client.delete(plan, headers=owner), 403, "forbidden")
        assert client.delete(plan, headers=planner).status_code == 204
        problem(client.delete("/v1/clusters/prod", headers=rival, params=ALL), 404, "no-such-resource")
        problem(client.delete("/v1/clusters/prod", headers=weak), 403, "forbidden")
        # A thing of the same name is another tenant's own.
        put(client, headers=rival)
        assert client.delete("/v1/clusters/prod", headers=rival).status_code == 204
        assert client.get("/v1/clusters/prod", headers=owner).status_code == 200
        assert client.delete("/v1/clusters/prod", headers=owner).status_code == 204
