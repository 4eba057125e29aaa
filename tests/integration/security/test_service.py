"""The service behind its gate: who gets in, what each may do, what is written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.store.principal import Scope
from meshwright.app.web.main import create_app
from tests.integration.security.service import header
from tests.support.command_line import Cli
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service

OPEN = {"/healthz", "/readyz", "/v1/schemas", "/v1/schemas/{name}", "/v1/models", "/v1/hardware"}
"""Addresses that show no one's data."""


@pytest.fixture
def guarded(settings: Settings) -> Settings:
    # Tests ask faster than strangers may.
    return replace(settings, auth=Auth.REQUIRED, max_failed_auths_per_s=1000)


@pytest.fixture
def service(guarded: Settings) -> Iterator[httpx.Client]:
    with running_service(guarded, FakeSolver()) as client:
        yield client


def test_every_address_asks_for_a_caller_unless_it_shows_no_ones_data(service: httpx.Client, guarded: Settings) -> None:
    paths: dict[str, Any] = create_app(guarded).openapi()["paths"]
    for path, methods in paths.items():
        for method in methods:
            answer = service.request(method, path.replace("{", "").replace("}", ""), json={})
            assert (answer.status_code == 401) == (path not in OPEN), (method, path, answer.text)
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["type"].endswith(":unauthenticated")


def test_each_caller_may_do_what_its_scopes_say(service: httpx.Client, guarded: Settings) -> None:
    reader, writer = header(guarded, Scope.PLANS_READ), header(guarded, Scope.PLANS_WRITE)
    both, admin = header(guarded, Scope.PLANS_READ, Scope.PLANS_WRITE), header(guarded, Scope.ADMIN)
    asked = {"content": service.build_request("POST", "/", json=training()).content}
    json_type = {"content-type": "application/json"}
    for caller, may_read, may_write in ((reader, 1, 0), (writer, 0, 1), (both, 1, 1), (admin, 1, 1)):
        refusal = {0: (403,), 1: (200, 201, 202)}
        assert service.get("/v1/plans", headers=caller).status_code in refusal[may_read]
        assert service.post("/v1/plans", headers=caller | json_type, **asked).status_code in refusal[may_write]
        assert (service.get("/v1/keys", headers=caller).status_code == 200) == (caller is admin)
    said = service.get("/v1/plans", headers=writer).json()
    assert "plans:read" in said["detail"]


def test_keys_are_made_rotated_and_revoked(service: httpx.Client, guarded: Settings) -> None:
    admin = header(guarded, Scope.ADMIN)
    made = service.post("/v1/keys", headers=admin, json={"name": "ci", "scopes": ["plans:read"], "expires_in_days": 3})
    assert made.status_code == 201
    key = {"authorization": f"Bearer {made.json()['key']}"}
    prefix = made.json()["prefix"]
    assert service.get("/v1/plans", headers=key).status_code == 200
    turned = service.post(f"/v1/keys/{prefix}/rotation", headers=admin, json={"grace_hours": 0})
    assert turned.status_code == 201
    assert service.get("/v1/plans", headers=key).status_code == 401
    newer = {"authorization": f"Bearer {turned.json()['key']}"}
    assert service.get("/v1/plans", headers=newer).status_code == 200
    assert service.delete(f"/v1/keys/{turned.json()['prefix']}", headers=admin).json()["revoked_at"] is not None
    assert service.get("/v1/plans", headers=newer).status_code == 401
    listed = service.get("/v1/keys", headers=admin)
    assert made.json()["key"] not in listed.text
    assert len(listed.json()["keys"]) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"name": "ci"},
        {"name": "ci", "scopes": []},
        {"name": "ci", "scopes": ["root"]},
        {"name": "", "scopes": ["admin"]},
        {"name": "ci", "scopes": ["admin"], "expires_in_days": 0},
        {"name": "ci", "scopes": ["admin"], "tenant": "rival"},
    ],
)
def test_a_key_that_can_not_be_is_refused(service: httpx.Client, guarded: Settings, body: dict[str, Any]) -> None:
    assert service.post("/v1/keys", headers=header(guarded, Scope.ADMIN), json=body).status_code == 422


def test_keys_of_another_tenant_are_not_there(service: httpx.Client, guarded: Settings) -> None:
    admin, rival = header(guarded, Scope.ADMIN), header(guarded, Scope.ADMIN, tenant="rival")
    prefix = service.post("/v1/keys", headers=admin, json={"name": "ci", "scopes": ["admin"]}).json()["prefix"]
    nothing = service.get("/v1/keys/000000000000", headers=rival)
    for answer in (
        service.get(f"/v1/keys/{prefix}", headers=rival),
        service.delete(f"/v1/keys/{prefix}", headers=rival),
        service.post(f"/v1/keys/{prefix}/rotation", headers=rival, json={}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (404, nothing.json()["type"])
    assert prefix not in service.get("/v1/keys", headers=rival).text
    assert prefix not in service.get("/v1/audit", headers=rival).text


def test_changes_and_refusals_are_written_down(service: httpx.Client, guarded: Settings) -> None:
    admin, reader = header(guarded, Scope.ADMIN), header(guarded, Scope.PLANS_READ)
    made = service.post("/v1/keys", headers=admin, json={"name": "ci", "scopes": ["admin"]})
    service.delete(f"/v1/keys/{made.json()['prefix']}", headers=reader)
    service.get("/v1/keys", headers=admin)
    service.post("/v1/keys", headers=admin, json={})
    page = service.get("/v1/audit", headers=admin, params={"limit": 1}).json()
    rest = service.get("/v1/audit", headers=admin, params={"cursor": page["next_cursor"]}).json()
    assert rest["next_cursor"] is None
    entries = page["entries"] + rest["entries"]
    assert [(entry["action"], entry["status"]) for entry in entries] == [
        ("DELETE /v1/keys/{prefix}", 403),
        ("POST /v1/keys", 201),
    ]
    assert entries[1]["principal"] == f"key:{admin['authorization'].split('_')[1]}"
    assert entries[1]["request_id"] == made.headers["x-request-id"]


def test_a_caller_that_asks_too_often_is_told_when_to_come_back(guarded: Settings) -> None:
    with running_service(replace(guarded, max_requests_per_s=1), FakeSolver()) as client:
        caller, other = header(guarded, Scope.PLANS_READ), header(guarded, Scope.PLANS_READ)
        answers = [client.get("/v1/plans", headers=caller) for _ in range(8)]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert answers[-1].status_code == 429
        assert answers[-1].headers["retry-after"] == "1"
        assert client.get("/v1/plans", headers=other).status_code == 200


def test_strangers_can_not_try_keys_at_will(guarded: Settings) -> None:
    with running_service(replace(guarded, max_failed_auths_per_s=1), FakeSolver()) as client:
        statuses = [client.get("/v1/plans", headers={"authorization": f"Bearer {n}"}).status_code for n in range(6)]
        assert statuses[:2] == [401, 401]
        assert 429 in statuses
        assert client.get("/v1/plans", headers=header(guarded, Scope.PLANS_READ)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_a_service_without_authentication_stays_on_this_machine(cli: Cli, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("MESHWRIGHT_AUTH", "off")
    assert cli("serve", "--host", host, "--port", "0") == 2
    assert "meshwright keys create" in cli.err


def test_keys_by_the_command_line(cli: Cli) -> None:
    assert cli("keys", "create", "ci", "--scope", "plans:read", "--tenant", "acme", "--json") == 0
    made = cli.json()
    assert (made["tenant"], made["scopes"], made["expires_at"]) == ("acme", ["plans:read"], None)
    assert cli("keys", "rotate", made["prefix"]) == 0
    text = cli.out.strip()
    assert text.startswith("mwk_")
    assert cli("keys", "revoke", text) == 0
    assert cli("keys", "list") == 0
    assert text not in cli.out
    assert "revoked" in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80
    assert cli("keys", "list", "--tenant", "rival", "--json") == 0
    assert cli.json() == {"keys": []}
    assert cli("keys", "create", "ci", "--scope", "root") == 2
    assert "plans:write" in cli.err
    assert cli("keys", "revoke", "000000000000") == 2
