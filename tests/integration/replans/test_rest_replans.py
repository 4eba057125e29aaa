"""Re-plan batches as a REST client meets them."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import solve_here
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.app.service.webhook import WebhookSender, webhook_settings
from meshwright.app.store.calibrations import CalibrationStore
from meshwright.app.store.engine import open_engine
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.switching import switch_bytes
from tests.integration.calibrations.service import fitted
from tests.integration.replans.rest_replans import BySize, Json, Receiver, ask, put
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service

pytestmark = pytest.mark.both_databases


class SearchingSolver(FakeSolver):
    """The real solver, in this process."""

    def __call__(self, request: PlanRequest, *beat: Any) -> Plan:
        return solve_here(request)


def finished(client: httpx.Client, address: str) -> Json:
    deadline_s = time.monotonic() + 30
    while (batch := client.get(address).json())["status"] == "running":
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.02)
    document: Json = batch
    return document


def outcomes(batch: Json) -> Json:
    return {name: count for name, count in batch["outcomes"].items() if count}


@pytest.fixture
def sized(settings: Settings) -> Iterator[httpx.Client]:
    with running_service(settings, BySize()) as client:
        yield client


def test_a_changed_cluster_is_planned_again_plan_by_plan(sized: httpx.Client) -> None:
    put(sized, 2)
    ask(sized, 0, 5, 6, 7)
    changed = put(sized, 1, replan="start")
    assert changed["stale"] == 4
    batch = finished(sized, changed["replan"])
    assert outcomes(batch) == {"worse": 1, "infeasible": 1, "failed": 1, "unchanged": 1}
    assert (batch["cluster"], batch["version"], batch["plans"]) == ("prod", 2, 4)
    items = {item["outcome"]: item for item in sized.get(batch["items"]).json()["items"]}
    assert (items["worse"]["old_value"], items["worse"]["new_value"]) == (8.0, 16.0)
    assert "+100.00%" in items["worse"]["reason"]
    assert (items["infeasible"]["switch_bytes"], items["failed"]["switch_bytes"]) == (None, None)
    assert items["infeasible"]["reason"] == "weights and optimizer state alone do not fit"
    assert "secret" not in items["failed"]["reason"]
    only = sized.get(batch["items"], params={"outcome": "worse"}).json()["items"]
    assert only == [items["worse"]]
    # What was planned again is current; what failed stays stale.
    stale = sized.get("/v1/questions", params={"stale": True}).json()["questions"]
    assert [item["digest"] for item in stale] == [items["failed"]["question"]]
    plans = {item["plan"] for item in sized.get("/v1/questions", params={"stale": False}).json()["questions"]}
    assert items["worse"]["new_plan"] in plans


def test_a_plan_with_a_stored_calibration_is_planned_again_with_it(settings: Settings) -> None:
    with running_service(settings, BySize()) as client:
        engine = open_engine(settings.database_url)
        calibration = fitted()
        CalibrationStore(engine).keep(calibration)
        engine.dispose()
        put(client, 2)
        asked = client.post("/v1/plans", json=training(cluster={"name": "prod"}, calibrations=["h100_sxm@1"]))
        assert asked.is_success, asked.text
        batch = finished(client, put(client, 1, replan="start")["replan"])
        (item,) = client.get(batch["items"]).json()["items"]
        assert item["outcome"] == "worse", item["reason"]
        (group,) = client.get(f"/v1/plans/{item['new_plan']}").json()["request"]["cluster"]["groups"]
        assert group["node"]["device"]["calibration"] == calibration.name


@pytest.mark.slow_beyond(1)
def test_a_new_calibration_starts_a_batch_of_what_follows_it(sized: httpx.Client) -> None:
    put(sized, 2)
    ask(sized, 0, 7)
    document = dict(fitted().document)
    inline = {"catalog": "dgx-h100", "nodes": 2}
    assert sized.post("/v1/calibrations", json=document, params={"replan": "mark"}).json()["replan"] is None
    sized.post("/v1/plans", json=training(cluster=inline, calibrations=["h100_sxm"], search={"seed": 3}))
    sized.post("/v1/plans", json=training(cluster=inline, calibrations=["h100_sxm@1"], search={"seed": 4}))
    sized.post("/v1/plans", json=training(cluster=inline, search={"seed": 5}))
    newer = document | {"software": ["newer"]}
    added = sized.post("/v1/calibrations", json=newer, params={"replan": "start"}).json()
    assert added["stale"] == 3
    batch = finished(sized, added["replan"])
    assert (batch["cause"], batch["version"]) == ("calibration h100_sxm is at version 2", 2)
    assert (batch["cluster"], outcomes(batch)) == (None, {"unchanged": 3})
    for item in sized.get(batch["items"]).json()["items"]:
        assert sized.get(f"/v1/plans/{item['new_plan']}").json()["request"]["calibrations"] == [newer]
        assert item["old_plan"] != item["new_plan"]
    assert sized.get("/v1/questions", params={"stale": True}).json()["questions"] == []
    again = sized.post("/v1/calibrations", json=newer, params={"replan": "start"})
    assert (again.status_code, again.json()["replan"]) == (200, None)
    asked_for = sized.post("/v1/replans", json={"calibration": "h100_sxm"})
    assert finished(sized, asked_for.headers["location"])["plans"] == 0


@pytest.mark.slow_beyond(1)
def test_the_report_says_what_moves_to_switch(settings: Settings) -> None:
    with running_service(settings, SearchingSolver()) as client:
        put(client, 2)
        # Two stages: with fewer devices, some of them come to hold the other one. A smaller model would leave a node idle.
        search = {"pp": [2], "tp": [1], "cp": [1], "microbatch": [1], "schedules": ["1f1b"]}
        request = training(cluster={"name": "prod"}, model={"catalog": "llama-3.2-1b"}, search=search)
        asked = client.post("/v1/plans", json=request)
        assert asked.is_success, asked.text
        batch = finished(client, put(client, 1, replan="start")["replan"])
        (trained,) = client.get(batch["items"]).json()["items"]
        old, new = (read_plan_document(client.get(f"/v1/plans/{trained[name]}").json()) for name in ("old_plan", "new_plan"))
        switch = switch_bytes(old, new)
        assert trained["switch_bytes"] == round(switch.moved_bytes) > 0
        assert trained["switch_storage_bytes"] == round(switch.storage_bytes)
        assert trained["switch_s"] == switch.time_s
        assert batch["switch_bytes"] == trained["switch_bytes"]
        # The way back leads to a plan that is stored.
        back = finished(client, put(client, 2, replan="start")["replan"])
        assert back["switch_bytes"] == round(switch_bytes(new, old).moved_bytes) > 0


def test_plans_that_are_stored_are_not_made_again(settings: Settings) -> None:
    solver = BySize()
    with running_service(settings, solver) as client:
        put(client, 2)
        ask(client, 0, 1)
        batch = finished(client, put(client, 1, replan="start")["replan"])
        assert outcomes(batch) == {"worse": 2}
        calls = solver.calls
        batch = finished(client, put(client, 2, replan="start")["replan"])
        assert outcomes(batch) == {"better": 2}
        assert solver.calls == calls


def test_equal_requests_of_a_batch_are_solved_once(settings: Settings) -> None:
    solver = BySize()
    with running_service(settings, solver) as client:
        put(client, 2)
        for objective in ({}, {"objective": "throughput"}):
            client.post("/v1/plans", json=training(cluster={"name": "prod"}, **objective))
        assert solver.calls == 1
        batch = finished(client, put(client, 1, replan="start")["replan"])
        assert (outcomes(batch), solver.calls) == ({"worse": 2}, 2)


def test_only_what_is_stale_is_planned_again(sized: httpx.Client) -> None:
    put(sized, 2)
    ask(sized, 0)
    empty = sized.post("/v1/replans", json={"cluster": "prod"})
    assert (empty.status_code, finished(sized, empty.headers["location"])["plans"]) == (202, 0)
    put(sized, 1)
    other = sized.post("/v1/replans", json={"model": "nonesuch"})
    assert finished(sized, other.headers["location"])["plans"] == 0
    everything = sized.post("/v1/replans", json={})
    assert outcomes(finished(sized, everything.headers["location"])) == {"worse": 1}
    listed = sized.get("/v1/replans", params={"limit": 2}).json()
    assert [item["plans"] for item in listed["replans"]] == [1, 0]
    assert sized.get("/v1/replans", params={"cursor": listed["next_cursor"]}).json()["next_cursor"] is None


@contextmanager
def held_replan(settings: Settings, *seeds: int, max_solves: int) -> Iterator[tuple[httpx.Client, threading.Event, str]]:
    """A service whose cluster has lost a node, and the address of its re-plan, whose first solve waits for the gate."""
    gate = threading.Event()
    gate.set()
    solver = FakeSolver(gate=gate)
    with running_service(replace(settings, max_solves=max_solves), solver) as client:
        put(client, 2)
        ask(client, *seeds)
        gate.clear()
        address = put(client, 1, replan="start")["replan"]
        wait_until(lambda: solver.calls == len(seeds) + 1)
        yield client, gate, address


def test_a_batch_can_be_cancelled(settings: Settings) -> None:
    with held_replan(settings, 0, 1, max_solves=1) as (client, gate, address):
        cancelled = client.post(address + "/cancel").json()
        assert (cancelled["status"], outcomes(cancelled)) == ("cancelled", {"cancelled": 2})
        assert client.post(address + "/cancel").status_code == 409
        wait_until(lambda: client.get("/readyz").json()["queue"]["running"] == 0)
        assert client.get("/readyz").json()["queue"]["queued"] == 0
        gate.set()


def test_a_cancelled_batch_leaves_what_another_waits_for(settings: Settings) -> None:
    with held_replan(settings, 0, max_solves=2) as (client, gate, first):
        second = client.post("/v1/replans", json={}).headers["location"]
        wait_until(lambda: client.get(second + "/items").json()["items"][0]["job"] is not None)
        assert client.post(first + "/cancel").json()["status"] == "cancelled"
        gate.set()
        assert outcomes(finished(client, second)) == {"unchanged": 1}
        # One that has ended stays as it ended.
        assert client.post(second + "/cancel").status_code == 409
        assert client.get(second).json()["status"] == "finished"


def test_a_batch_ends_without_a_job_that_is_cancelled(settings: Settings) -> None:
    with held_replan(settings, 0, max_solves=2) as (client, gate, address):
        job = client.get(address + "/items").json()["items"][0]["job"]
        assert client.post(job + "/cancel").json()["status"] == "cancelled"
        assert outcomes(finished(client, address)) == {"cancelled": 1}
        gate.set()


def test_a_batch_is_cancelled_with_the_job_that_starts_it(settings: Settings) -> None:
    with running_service(settings, None) as client:
        put(client, 2)
        client.post("/v1/plans", json=training(cluster={"name": "prod"}), headers={"prefer": ""})
        address = put(client, 1, replan="start")["replan"]
        starts = next(job for job in client.get("/v1/jobs").json()["jobs"] if job["kind"] == "batch")
        assert client.post(f"/v1/jobs/{starts['id']}/cancel").json()["status"] == "cancelled"
        assert client.get(address).json()["status"] == "cancelled"


def test_a_change_during_a_batch_keeps_its_plans_stale(settings: Settings) -> None:
    with held_replan(settings, 0, max_solves=1) as (client, gate, address):
        put(client, 3)
        gate.set()
        finished(client, address)
        stale = client.get("/v1/questions", params={"stale": True}).json()["questions"]
        assert [item["stale_reason"] for item in stale] == ["cluster prod is at version 3"]


def test_unknown_batches(sized: httpx.Client) -> None:
    for address in ("/v1/replans/none", "/v1/replans/none/items"):
        assert sized.get(address).status_code == 404
    assert sized.post("/v1/replans/none/cancel").status_code == 404


def deliver(sender: WebhookSender) -> None:
    """Begin the calls that are due, and wait for their ends."""
    sender()
    sender.close()


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    ("statuses", "said"), [([200], "delivered: 200"), ([500, 204], "delivered: 204"), ([307] * 3, "failed: 307")]
)
def test_a_finished_batch_calls_back_signed(settings: Settings, statuses: list[int], said: str) -> None:
    allowed = replace(settings, webhook_hosts="127.0.0.1", webhook_secret="s3cret")
    tries = len(statuses)
    receiver = Receiver(list(statuses))
    server = receiver.serve()
    with running_service(allowed, BySize()) as client:
        put(client, 2)
        ask(client, 0)
        url = f"http://127.0.0.1:{server.server_port}/done"
        address = put(client, 1, replan="start", webhook=url)["replan"]
        finished(client, address)
        engine = open_engine(settings.database_url)
        deliver(WebhookSender(engine, webhook_settings(allowed), sleep=lambda seconds: None))
        deliver(WebhookSender(engine, webhook_settings(allowed), sleep=lambda seconds: None))
        engine.dispose()
        assert client.get(address).json()["webhook_status"] == said
    server.shutdown()
    server.server_close()
    assert len(receiver.received) == tries
    headers, body = receiver.received[-1]
    assert json.loads(body)["outcomes"]["worse"] == 1
    moment, mac = (part.partition("=")[2] for part in headers["meshwright-signature"].split(","))
    assert mac == hmac.new(b"s3cret", f"{moment}.".encode() + body, hashlib.sha256).hexdigest()


@pytest.mark.slow
def test_a_call_of_a_worker_that_was_killed_is_made_by_another(settings: Settings) -> None:
    allowed = replace(settings, webhook_hosts="127.0.0.1", webhook_secret="s3cret")
    receiver = Receiver([0, 200])
    server = receiver.serve()
    with running_service(allowed, BySize()) as client:
        put(client, 2)
        ask(client, 0)
        address = put(client, 1, replan="start", webhook=f"http://127.0.0.1:{server.server_port}/done")["replan"]
        finished(client, address)
        script = f"""
from meshwright.app.store.engine import open_engine
from meshwright.app.service.webhook import WebhookSender, WebhookSettings
WebhookSender(open_engine({settings.database_url!r}), WebhookSettings(frozenset({{"127.0.0.1"}}), "s3cret"))()
"""
        worker = subprocess.Popen([sys.executable, "-c", script])
        wait_until(lambda: len(receiver.received) == 1)
        worker.kill()
        worker.wait()
        assert client.get(address).json()["webhook_status"] == "sending"
        engine = open_engine(settings.database_url)
        deliver(WebhookSender(engine, webhook_settings(allowed)))
        assert len(receiver.received) == 1, "a call that was begun a moment ago is left to its worker"
        deliver(WebhookSender(engine, webhook_settings(allowed), takeover_s=0.0))
        engine.dispose()
        assert client.get(address).json()["webhook_status"] == "delivered: 200"
    receiver.forget.set()
    server.shutdown()
    server.server_close()
    first, second = (headers["meshwright-delivery"] for headers, _ in receiver.received)
    assert first == second == address.rpartition("/")[2]


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/x",
        "http://hooks.example/x",
        "https://hooks.example@evil.example/",
        "https://user:pw@hooks.example/",
        "file:///etc/passwd",
        "https://hooks.example:99999/",
        "//hooks.example/",
        "",
    ],
)
def test_only_allowed_hosts_are_called(settings: Settings, url: str) -> None:
    allowed = replace(settings, webhook_hosts="hooks.example", webhook_secret="s3cret")
    with running_service(allowed, None) as client:
        put(client, 2)
        document, options = dict(fitted().document), {"replan": "start", "webhook": url}
        assert client.post("/v1/calibrations", json=document, params=options).status_code == 422
        assert client.get("/v1/calibrations").json()["calibrations"] == []
        refused = client.put(
            "/v1/clusters/prod", json={"catalog": "dgx-h100", "nodes": 1}, params={"replan": "start", "webhook": url}
        )
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "webhook"
        assert client.post("/v1/replans", json={"webhook": url}).status_code == 422
        assert client.post("/v1/replans", json={"webhook": "https://hooks.example/x"}).status_code == 202


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
