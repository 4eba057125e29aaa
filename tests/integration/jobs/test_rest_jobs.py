"""Jobs as a REST client meets them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from meshwright.app.base.errors import SolveMemoryError, SolveTimeoutError
from meshwright.app.base.settings import Settings
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress
from meshwright.solver.problem.request import PlanRequest
from tests.support.fakes import FakeSolver, feasible_plan, undecided_plan
from tests.support.requests_given import training
from tests.support.service import running_service

Json = dict[str, Any]

pytestmark = pytest.mark.both_databases


def submit(client: httpx.Client, seed: int = 0, **headers: str) -> httpx.Response:
    """Ask for a plan without waiting for it."""
    return client.post("/v1/plans", json=training(search={"seed": seed}), headers={"prefer": ""} | headers)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def job(client: httpx.Client, address: str) -> Json:
    document: Json = client.get(address).json()
    return document


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def gated(settings: Settings, gate: threading.Event) -> Iterator[httpx.Client]:
    """A client of a service whose one solve at a time ends when the gate opens."""
    with running_service(replace(settings, max_solves=1), FakeSolver(gate=gate)) as client:
        yield client
        gate.set()


def test_a_new_request_is_a_job_and_then_a_plan(client: httpx.Client) -> None:
    answer = submit(client)
    assert answer.status_code == 202
    address = answer.headers["location"]
    assert answer.json()["status"] == "queued"
    wait_until(lambda: job(client, address)["status"] == "succeeded")
    done = job(client, address)
    plan = client.get(done["plan"])
    assert plan.json()["digest"] == done["digest"]
    again = submit(client)
    assert (again.status_code, again.content) == (200, plan.content)


def test_equal_requests_share_a_job(gated: httpx.Client) -> None:
    assert submit(gated).headers["location"] == submit(gated).headers["location"]
    assert submit(gated).headers["location"] != submit(gated, seed=1).headers["location"]


def test_waiting_ends_with_the_job_when_time_is_up(gated: httpx.Client) -> None:
    answer = submit(gated, prefer="wait=1")
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")


def test_more_urgent_jobs_go_first(settings: Settings, gate: threading.Event) -> None:
    order: list[int] = []

    class Noting(FakeSolver):
        def __call__(self, request: PlanRequest, *beat: Any) -> Plan:
            order.append(request.search.seed)
            return super().__call__(request, *beat)

    solver = Noting(gate=gate)
    with running_service(replace(settings, max_solves=1), solver) as client:
        submit(client, seed=0)
        wait_until(lambda: solver.calls == 1)
        submit(client, seed=1)
        submit(client, seed=2, priority="u=5")
        submit(client, seed=3, priority="u=0, i")
        gate.set()
        wait_until(lambda: solver.calls == 4)
    assert order == [0, 3, 1, 2]


@pytest.mark.parametrize("priority", ["u=8", "u=-1", "high", ""])
def test_priorities_that_are_none(client: httpx.Client, priority: str) -> None:
    answer = submit(client, priority=priority)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "priority"


def test_a_cancelled_job_ends_and_its_request_can_be_made_again(gated: httpx.Client, gate: threading.Event) -> None:
    first = submit(gated).headers["location"]
    wait_until(lambda: job(gated, first)["status"] == "running")
    assert gated.post(first + "/cancel").json()["status"] == "cancelled"
    refused = gated.post(first + "/cancel")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:meshwright:problem:job-is-final")
    second = submit(gated).headers["location"]
    assert second != first
    gate.set()
    wait_until(lambda: job(gated, second)["status"] == "succeeded")
    assert job(gated, first)["status"] == "cancelled"
    assert gated.get(first + "/plan").status_code == 200


def test_events_tell_every_change_until_the_end(settings: Settings, gate: threading.Event) -> None:
    solver = FakeSolver(gate=gate)
    solver.progress = Progress(3, 9, best=4.0, bound=3.0, note="so far")
    with running_service(settings, solver) as client:
        address = submit(client).headers["location"]
        seen: list[Json] = []
        with client.stream("GET", address + "/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if seen[-1]["progress"]:
                        gate.set()
    assert seen[-1]["status"] == "succeeded"
    with_progress = [event["progress"] for event in seen if event["progress"]]
    said = {"done": 3, "total": 9, "best": 4.0, "bound": 3.0, "gap": 0.25, "note": "so far", "best_plan": None}
    assert with_progress[0] == said


def test_the_best_plan_so_far_can_be_had_while_the_search_goes_on(settings: Settings, gate: threading.Event) -> None:
    class Improving(FakeSolver):
        def __call__(self, request: PlanRequest, on_beat: Any = None) -> Plan:
            plan = feasible_plan(request)
            so_far = replace(plan, certificate=replace(plan.certificate, objective=18.0, bound=15.0, gap=1 / 6))
            self.progress = Progress(3, 9, best=18.0, bound=15.0, incumbent=lambda: so_far)
            on_beat(self.progress)
            self.progress = Progress(4, 9, best=18.0, bound=15.5)
            return super().__call__(request, on_beat)

    with running_service(settings, Improving(gate=gate)) as client:
        address = submit(client).headers["location"]
        wait_until(lambda: (job(client, address)["progress"] or {}).get("done") == 4)
        running = job(client, address)
        short = running["progress"]["best_plan"]
        assert (short["objective"], short["unit"], short["devices"], short["axes"]["pp"]) == (18.0, "s", 8, 2)
        whole = client.get(running["best_plan"])
        assert short["digest"] == "sha256:" + hashlib.sha256(whole.content).hexdigest()
        assert (whole.json()["certificate"]["gap"], whole.json()["digest"]) == (1 / 6, running["digest"])
        assert client.post(address + "/cancel").is_success
        assert client.get(running["best_plan"]).content == whole.content
        gate.set()
        second = submit(client, prefer="wait=30")
        (done,) = client.get("/v1/jobs", params={"status": "succeeded"}).json()["jobs"]
        assert client.get(done["best_plan"]).content == second.content


def test_a_job_without_a_plan_so_far_has_none_to_give(gated: httpx.Client) -> None:
    assert gated.get(submit(gated).headers["location"] + "/best-plan").status_code == 404


def test_a_watcher_that_was_cut_off_is_sent_what_is_newer(gated: httpx.Client, gate: threading.Event) -> None:
    address = submit(gated).headers["location"]
    wait_until(lambda: job(gated, address)["status"] == "running")
    with gated.stream("GET", address + "/events") as stream:
        seen = next(line for line in stream.iter_lines() if line.startswith("id: ")).removeprefix("id: ")
    gate.set()
    rest = gated.get(address + "/events", headers={"last-event-id": seen}).text
    ids = [line.removeprefix("id: ") for line in rest.splitlines() if line.startswith("id: ")]
    assert seen not in ids
    assert '"status":"succeeded"' in rest
    assert gated.get(address + "/events", headers={"last-event-id": ids[-1]}).status_code == 204
    assert '"status":"succeeded"' in gated.get(address + "/events", headers={"last-event-id": "other"}).text


def test_many_watchers_of_one_job(gated: httpx.Client, gate: threading.Event) -> None:
    address = submit(gated).headers["location"]
    with ThreadPoolExecutor(8) as threads:
        streams = [threads.submit(gated.get, address + "/events") for _ in range(8)]
        time.sleep(0.2)
        gate.set()
        assert all('"status":"succeeded"' in stream.result().text for stream in streams)


@pytest.mark.parametrize(
    ("failure", "status", "name"),
    [
        (SolveTimeoutError("ended"), 504, "solve-timeout"),
        (SolveMemoryError("too much"), 507, "solve-out-of-memory"),
        (ZeroDivisionError("secret"), 500, "internal-error"),
    ],
)
def test_a_failed_job_says_why(settings: Settings, failure: Exception, status: int, name: str) -> None:
    with running_service(settings, FakeSolver(failure=failure)) as client:
        answer = submit(client, prefer="wait=30")
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:meshwright:problem:{name}")
        failed = client.get("/v1/jobs").json()["jobs"][0]
        assert failed["status"] == "failed"
        assert failed["problem"]["status"] == status
        assert "secret" not in json.dumps(failed)
        assert client.get(f"/v1/jobs/{failed['id']}/plan").status_code == 404


def test_an_undecided_plan_is_given_and_not_stored(settings: Settings) -> None:
    class Undecided(FakeSolver):
        def __call__(self, request: PlanRequest, *beat: Any) -> Plan:
            return undecided_plan(request)

    with running_service(settings, Undecided()) as client:
        answer = submit(client, prefer="wait=30")
        assert answer.status_code == 200
        assert client.get(answer.headers["location"]).content == answer.content
        assert client.get("/v1/plans").json()["plans"] == []
        assert client.get(f"/v1/plans/{answer.json()['digest']}").status_code == 404


def test_an_idempotency_key_leads_to_one_job(gated: httpx.Client) -> None:
    def post(seed: int) -> httpx.Response:
        return submit(gated, seed, **{"idempotency-key": "k-1"})

    first = post(0).headers["location"]
    assert gated.post(first + "/cancel").status_code == 200
    assert post(0).headers["location"] == first
    other = post(1)
    assert (other.status_code, other.json()["type"]) == (422, "urn:meshwright:problem:idempotency-key-reused")


def test_jobs_are_listed_and_filtered(gated: httpx.Client) -> None:
    made = [submit(gated, seed).json()["id"] for seed in range(3)]
    first = gated.get("/v1/jobs", params={"limit": 2}).json()
    rest = gated.get("/v1/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["jobs"] + rest["jobs"]] == made[::-1]
    assert rest["next_cursor"] is None
    wait_until(lambda: len(gated.get("/v1/jobs", params={"status": "running"}).json()["jobs"]) == 1)
    assert gated.get("/v1/jobs", params={"model": "nonesuch"}).json()["jobs"] == []
    plan_cursor = {"cursor": "cGxhbjox"}
    assert gated.get("/v1/jobs", params=plan_cursor).status_code == 422


@pytest.mark.parametrize("address", ["/v1/jobs/none", "/v1/jobs/none/plan", "/v1/jobs/none/events", "/v1/jobs/" + "0" * 36])
def test_unknown_jobs(client: httpx.Client, address: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:meshwright:problem:no-such-resource")


def test_readiness_reports_the_queue_and_its_age(settings: Settings) -> None:
    with running_service(replace(settings, max_queue_age_s=1), None) as client:
        idle = {"queued": 0, "running": 0, "oldest_s": 0.0, "workers": 0, "is_late": False}
        assert client.get("/readyz").json()["queue"] == idle
        submit(client)
        assert client.get("/readyz").json()["queue"]["queued"] == 1
        wait_until(lambda: client.get("/readyz").json()["queue"]["is_late"])
        assert client.get("/readyz").status_code == 200, "reads can be served all the same"


def test_a_plan_that_the_caller_has_is_not_sent_again(client: httpx.Client) -> None:
    plan = submit(client, prefer="wait=30")
    again = client.get(plan.headers["location"], headers={"if-none-match": plan.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(plan.headers["location"], headers={"if-none-match": '"other"'}).content == plan.content
