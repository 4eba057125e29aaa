"""Two tenants behind one service: whatever one asks for, nothing of the other's comes out or changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.requests.digests import keyed_request
from meshwright.app.store.principal import Scope
from meshwright.app.web.main import create_app
from tests.integration.calibrations.service import fitted
from tests.integration.security.service import header
from tests.support.fakes import FakeSolver
from tests.support.requests_given import resolved, tiny_graph, training
from tests.support.service import running_service

MARK = "acmesecret"
"""Stands in everything that the first tenant names."""

REPORT: dict[str, Any] = {
    "schema": "meshwright.check/1",
    "folder": MARK,
    "exit_code": 0,
    "policy": {},
    "accept": "meshwright check plans --update",
    "plans": [{"name": f"{MARK}.plan.yaml", "verdict": "same", "now": {"devices": 8}}],
    "counts": {"same": 1},
    "meshwright_changes": {},
}


def acme_request(**changes: Any) -> dict[str, Any]:
    return training(model={"graph": tiny_graph() | {"name": MARK}}, **changes)


BODIES: dict[str, Any] = {
    "POST /v1/plans": acme_request(),
    "POST /v1/comparisons": {
        "clusters": [acme_request()["cluster"]],
        "request": {name: value for name, value in acme_request().items() if name != "cluster"},
    },
    "POST /v1/checks": {"project": MARK, "report": REPORT},
    "POST /v1/keys": {"name": MARK, "scopes": ["plans:read"]},
    "POST /v1/keys/{prefix}/rotation": {"grace_hours": 1},
    "POST /v1/webhook-secrets": {"grace_hours": 1},
    "PUT /v1/clusters/{name}": {"catalog": "dgx-h100", "nodes": 1},
    "PUT /v1/models/{name}": {"graph": tiny_graph() | {"name": MARK}},
    "POST /v1/replans": {"cluster": MARK},
    "POST /v1/calibrations": {**fitted().document, "key": MARK},
    "POST /v1/runs": {"step_time_s": 1.0, "label": MARK},
}
"""The bodies that the first tenant sends to every endpoint that takes a document."""

STATELESS = {"/v1/explain", "/v1/predictions", "/v1/simulations"}
"""Endpoints that know nothing but what they are asked."""
SHARED = {"/healthz", "/readyz", "/v1/schemas", "/v1/schemas/{name}", "/v1/models", "/v1/hardware", *STATELESS}
"""Endpoints that show no one's data."""
LAUNCH = "/v1/plans/{digest}/launch"
"""Plans of the solver that stands in here start nowhere: only that they are not another's is looked at."""

ENDLESS = {"/v1/jobs/{job_id}/events"}
"""Streams end with their job; the second tenant has none that does not."""

IDENTIFIER = re.compile(r"(?:\w+@)?sha256:[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{12}\b")


@dataclass(frozen=True)
class House:
    """A service with two tenants, one of which has something everywhere."""

    client: httpx.Client
    acme: dict[str, str]
    rival: dict[str, str]
    endpoints: tuple[tuple[str, str, dict[str, Any]], ...]
    identifiers: tuple[str, ...]

    def all_of_acme(self) -> dict[str, str]:
        """Everything that the first tenant sees in lists, without what grows by itself."""
        lists = {path for method, path, _ in self.endpoints if method == "get" and "{" not in path}
        left_out = SHARED | {"/v1/audit", "/v1/checks/trend"}
        return {path: self.client.get(path, headers=self.acme).text for path in sorted(lists - left_out)}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    path = tmp_path_factory.mktemp("house") / "plans.db"
    guarded = Settings(f"sqlite:///{path}", auth=Auth.REQUIRED, max_failed_auths_per_s=1000, webhook_secret="s3cret")
    with running_service(guarded, FakeSolver()) as client:
        acme, rival = (header(guarded, Scope.ADMIN, tenant=tenant) for tenant in ("acme", "rival"))
        endpoints = tuple(
            (method, path, operation)
            for path, methods in create_app(guarded).openapi()["paths"].items()
            for method, operation in methods.items()
        )
        for caller, mark in ((acme, MARK), (rival, "rivalsown")):
            ask_of_a_cluster(client, caller, mark)
        seen = fill(client, acme, endpoints, MARK)
        # What the other has as well (calibrations that come with Meshwright) is no one's.
        common = set(fill(client, rival, endpoints, "rivalsown"))
        yield House(client, acme, rival, endpoints, tuple(name for name in seen if name not in common))


def ask_of_a_cluster(client: httpx.Client, caller: dict[str, str], name: str) -> None:
    """Register a cluster and plan on it by its name."""
    registered = client.put(f"/v1/clusters/{name}", headers=caller, json={"catalog": "dgx-h100", "nodes": 1})
    assert registered.status_code == 201, registered.text
    planned = client.post("/v1/plans", headers=caller, json=training(cluster={"name": name}))
    assert planned.status_code == 201, planned.text


def fill(
    client: httpx.Client, caller: dict[str, str], endpoints: tuple[tuple[str, str, dict[str, Any]], ...], mark: str
) -> tuple[str, ...]:
    """Let a tenant do everything there is to do; the identifiers of what it has then."""
    seen: dict[str, None] = {}
    # What makes something comes before what shows it, and what needs an identifier comes last.
    for method, path, operation in sorted(endpoints, key=lambda endpoint: ("{" in endpoint[1], endpoint[0] == "get")):
        if path in SHARED | ENDLESS | {LAUNCH} or method == "delete":
            continue
        body = body_of(method, path, mark)
        assert (body is not None) == ("requestBody" in operation), f"BODIES needs a document for {method} {path}"
        for address in addresses(path, tuple(seen)):
            params = {"project": mark, "plan": f"{mark}.plan.yaml"} if path == "/v1/checks/trend" else None
            key = {"idempotency-key": MARK} if path == "/v1/plans" and body else {}
            answer = client.request(method, address, headers=caller | key, json=body, params=params)
            assert answer.status_code < 500, answer.text
            # A job that has ended can't be cancelled, but it was found.
            if answer.is_success or answer.status_code == 409:
                seen |= dict.fromkeys(IDENTIFIER.findall(answer.text))
                break
        else:
            pytest.fail(f"a tenant could not {method} {path}")
    return tuple(seen)


def body_of(method: str, path: str, mark: str) -> Any:
    """The document for an endpoint, with other names in it; None for an endpoint that takes none."""
    body = BODIES.get(f"{method.upper()} {path}")
    if body is None:
        return None
    renamed = json.loads(json.dumps(body).replace(MARK, mark))
    if path == "/v1/runs":
        # A run is of a plan that the tenant has.
        planned = body_of("POST", "/v1/plans", mark)
        renamed["plan"] = keyed_request(resolved(planned)).digest
    return renamed


def addresses(path: str, identifiers: tuple[str, ...]) -> list[str]:
    """The path with each identifier in its place."""
    return [re.sub(r"\{\w+\}", identifier, path) for identifier in identifiers] if "{" in path else [path]


def test_the_first_tenant_has_something_everywhere(house: House) -> None:
    found = house.all_of_acme()
    assert len(found) >= 4
    for path, text in found.items():
        assert MARK in text or IDENTIFIER.search(text), path


def test_what_the_first_tenant_has_is_not_there_for_the_second(house: House) -> None:
    before = house.all_of_acme()
    for method, path, _ in house.endpoints:
        # A PUT makes something of the caller's own under any name.
        if path in SHARED or "{" not in path or method == "put":
            continue
        for identifier in house.identifiers:
            answer = ask(house, method, path, identifier)
            # 422 is for an identifier of another kind, which says nothing of what there is.
            assert answer.status_code in (404, 422), (method, path, answer.status_code, answer.text)
    assert house.all_of_acme() == before


def test_a_plan_that_the_first_tenant_has_is_solved_anew(house: House) -> None:
    request = training(workload={"kind": "training", "global_batch": 64, "seq_len": 1024})
    # Of three that are alike the second reads the plan from the store and the third from memory.
    callers = (*[house.acme] * 3, *[house.rival] * 3)
    statuses = [house.client.post("/v1/plans", headers=caller, json=request).status_code for caller in callers]
    assert statuses == [201, 200, 200, 201, 200, 200]


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
def test_nothing_crosses(house: House, data: st.DataObject) -> None:
    before = house.all_of_acme()
    received = ""
    for _ in range(data.draw(st.integers(1, 6))):
        method, path, operation = data.draw(st.sampled_from(house.endpoints))
        if path in SHARED | ENDLESS:
            continue
        identifier = data.draw(st.sampled_from(house.identifiers))
        if method == "put":
            # Under the first tenant's identifiers the second would register things of its own, and be shown them later.
            identifier = "rivalsown"
        params = data.draw(filters(operation))
        answer = ask(house, method, path, identifier, params)
        assert answer.status_code < 500, answer.text
        assert answer.status_code != 403, answer.text
        sent = f"{answer.request.url} {answer.request.content!r} {received}"
        for found in IDENTIFIER.findall(answer.text):
            assert found not in house.identifiers or found in sent, (method, path, answer.text)
        # An answer may repeat what it was asked for.
        assert MARK not in answer.text.replace(identifier, ""), (method, path, answer.text)
        # What it was just given is its own.
        received += answer.text if answer.is_success else ""
    assert house.all_of_acme() == before


def ask(house: House, method: str, path: str, identifier: str, params: dict[str, Any] | None = None) -> httpx.Response:
    """The second tenant's request, with documents that name nothing of the first one's."""
    address = re.sub(r"\{\w+\}", identifier, path)
    body = body_of(method, path, "rivalsown")
    asked = {"launcher": "megatron-lm"} if path == LAUNCH else {}
    return house.client.request(method, address, headers=house.rival, json=body, params={**asked, **(params or {})})


def filters(operation: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Query parameters that could lead to the first tenant's rows: its names, and cursors that point past its rows."""
    choices: dict[str, st.SearchStrategy[Any]] = {}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query":
            schema = parameter["schema"]
            if parameter["name"] == "launcher":
                choices["launcher"] = st.just("megatron-lm")
            elif parameter["name"] == "limit":
                choices["limit"] = st.integers(1, 3)
            elif parameter["name"] != "cursor" and "string" in json.dumps(schema) and "enum" not in json.dumps(schema):
                choices[parameter["name"]] = st.just("acme")
    required = {p["name"] for p in operation.get("parameters", []) if p.get("required") and p["in"] == "query"}
    return st.fixed_dictionaries(
        {name: choices[name] for name in required}, optional={name: choices[name] for name in choices if name not in required}
    )
