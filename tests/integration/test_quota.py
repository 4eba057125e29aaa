"""A tenant may have so many bytes stored: what comes and goes is counted, and what would be more is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import Engine, select

from meshwright.app.base.settings import Auth, Settings
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.migrate import downgrade, upgrade
from meshwright.app.store.plans import PlanRepository
from meshwright.app.store.principal import Scope
from meshwright.app.store.tables import calibrations, checks, plans, questions, registered, runs, tenant_bytes
from tests.integration.calibrations.service import fitted
from tests.integration.db import numbered
from tests.integration.rest import problem
from tests.integration.security.service import header
from tests.support.fakes import FakeSolver
from tests.support.requests_given import tiny_graph, training
from tests.support.service import running_service

pytestmark = pytest.mark.both_databases

DOCUMENTS = {
    plans: ("plan", "request"),
    questions: ("document",),
    registered: ("document",),
    calibrations: ("document",),
    runs: ("run", "predicted"),
    checks: ("report",),
}


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = open_engine(settings.database_url)
    yield engine
    engine.dispose()


def counted(engine: Engine) -> dict[str, int]:
    with reading(engine) as connection:
        return {row.tenant: row.bytes for row in connection.execute(select(tenant_bytes))}


def measured(engine: Engine) -> dict[str, int]:
    """The bytes of each tenant's documents, all of them read."""
    found: dict[str, int] = {}
    with reading(engine) as connection:
        for table, names in DOCUMENTS.items():
            for row in connection.execute(select(table.c.tenant, *(table.c[name] for name in names))):
                found[row.tenant] = found.get(row.tenant, 0) + sum(len(text.encode()) for text in row[1:])
    return found


def fill(client: httpx.Client, **options: dict[str, str]) -> tuple[str, ...]:
    """Store something of every kind that can be deleted; where it is."""
    client.put("/v1/clusters/prod", json={"catalog": "dgx-h100", "nodes": 1}, **options).raise_for_status()
    client.put("/v1/models/ours", json={"graph": tiny_graph()}, **options).raise_for_status()
    body = training(cluster={"name": "prod"}, model={"name": "ours"})
    plan = client.post("/v1/plans", json=body, **options).raise_for_status().headers["location"]
    return "/v1/clusters/prod", "/v1/models/ours", plan


def test_what_comes_and_goes_is_counted(client: httpx.Client, engine: Engine) -> None:
    assert counted(engine) == {}
    things = fill(client)
    fill(client)
    client.post("/v1/calibrations", json=dict(fitted().document)).raise_for_status()
    run = {"plan": things[-1].rpartition("/")[2], "step_time_s": 16.0}
    client.post("/v1/runs", json=run).raise_for_status()
    assert counted(engine) == measured(engine)
    before = counted(engine)["default"]
    for thing in things:
        assert client.delete(thing, params={"with_dependents": True}).status_code == 204
        assert counted(engine) == measured(engine)
    assert 0 < counted(engine)["default"] < before


def test_what_was_stored_before_is_counted_in_bytes(engine: Engine) -> None:
    repository = PlanRepository(engine, "acme")
    repository.add(replace(numbered(1), plan='{"name":"Größe"}'))
    downgrade(engine, "0013")
    upgrade(engine)
    assert counted(engine) == measured(engine) != {}
    repository.add(numbered(1))
    repository.add(numbered(2))
    assert counted(engine) == measured(engine)


def test_a_tenant_at_its_limit_stores_no_more(settings: Settings, engine: Engine) -> None:
    guarded = replace(settings, auth=Auth.REQUIRED)
    full, other = (header(guarded, Scope.ADMIN, tenant=tenant) for tenant in ("full", "other"))
    with running_service(guarded, FakeSolver()) as client:
        things = fill(client, headers=full)
    stored = counted(engine)["full"]
    with running_service(replace(guarded, max_stored_bytes=stored), FakeSolver()) as client:
        cluster = {"catalog": "dgx-h100", "nodes": 2}
        refused = [
            client.put("/v1/clusters/more", json=cluster, headers=full),
            client.put("/v1/models/more", json={"graph": tiny_graph()}, headers=full),
            client.post("/v1/calibrations", json=dict(fitted().document), headers=full),
            client.post("/v1/runs", json={}, headers=full),
            client.post("/v1/checks", json={}, headers=full),
            client.post("/v1/plans", json=training(), headers=full),
        ]
        for answer in refused:
            detail = problem(answer, 507, "quota-exceeded")["detail"]
            assert f"{stored} bytes stored" in detail
            assert "delete" in detail
        assert client.get("/v1/jobs", params={"status": "queued"}, headers=full).json()["jobs"] == []
        # What is stored is still given, to read and as an answer, and another tenant has room of its own.
        assert client.get(things[-1], headers=full).status_code == 200
        asked = training(cluster={"name": "prod"}, model={"name": "ours"})
        assert client.post("/v1/plans", json=asked, headers=full).status_code == 200
        assert client.put("/v1/clusters/more", json=cluster, headers=other).status_code == 201
        assert client.delete(things[0], params={"with_dependents": True}, headers=full).status_code == 204
        assert client.put("/v1/clusters/more", json=cluster, headers=full).status_code == 201
