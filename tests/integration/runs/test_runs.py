"""Measured runs by REST and by the command line: stored once, a tenant's own, never changed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.store.engine import open_engine, writing
from tests.support.command_line import Cli
from tests.support.requests_given import training

pytestmark = pytest.mark.both_databases


def planned(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    plan: dict[str, Any] = client.post("/v1/plans", json=training(**changes), headers={"prefer": "wait=60"}).json()
    return plan


def test_a_run_is_stored_once(client: httpx.Client) -> None:
    plan = planned(client)
    step_time_s = plan["predicted"]["step_time_s"] * 1.1
    run = {"plan": plan["digest"], "step_time_s": step_time_s}
    first, again = client.post("/v1/runs", json=run), client.post("/v1/runs", json={**run, "outcome": "completed"})
    assert (first.status_code, again.status_code) == (201, 200), first.text
    shown = client.get(first.headers["location"]).json()
    assert first.json() | shown == first.json() and again.json() | shown == again.json()
    assert first.json()["calibration"].startswith(f"runs.{shown['cluster']}.{shown['profile']}@sha256:")
    assert (again.json()["calibration"], again.json()["stale"], again.json()["replan"]) == (None, 0, None)
    assert first.json()["measured"] == {"step_time_s": step_time_s}
    assert first.json()["predicted"]["step_time_s"] == plan["predicted"]["step_time_s"]
    assert first.json()["cluster"].startswith("dgx-h100-") and first.json()["profile"] == "megatron-lm"
    assert client.post("/v1/runs", json={**run, "label": "second"}).status_code == 201
    page = client.get("/v1/runs", params={"limit": 1, "plan": plan["digest"]}).json()
    rest = client.get("/v1/runs", params={"cursor": page["next_cursor"], "model": plan["model"]}).json()
    assert [item["label"] for item in page["runs"] + rest["runs"]] == ["second", ""]
    assert client.get("/v1/runs", params={"cluster": "other"}).json()["runs"] == []


def test_the_number_of_nodes_and_the_model_share_a_cluster_and_hardware_does_not(client: httpx.Client) -> None:
    def cluster_of(**changes: Any) -> tuple[str, str]:
        run = client.post("/v1/runs", json={"plan": planned(client, **changes)["digest"], "outcome": "out_of_memory"}).json()
        return run["cluster"], run["profile"]

    base = cluster_of()
    assert cluster_of(cluster={"catalog": "dgx-h100", "nodes": 2}) == base
    assert cluster_of(model={"catalog": "llama-3.1-70b"}) == base
    assert cluster_of(cluster={"catalog": "dgx-a100", "nodes": 1})[0] != base[0]
    assert cluster_of(cluster={"catalog": "dgx-h100", "nodes": 1, "oversubscription": 2.0})[0] != base[0]
    assert cluster_of(search={"launcher": "torchtitan"}) == (base[0], "torchtitan")


def test_the_idempotency_key_of_a_run(client: httpx.Client) -> None:
    run = {"plan": planned(client)["digest"], "outcome": "out_of_memory"}
    key = {"idempotency-key": "one"}
    assert client.post("/v1/runs", json=run, headers=key).status_code == 201
    assert client.post("/v1/runs", json=run, headers=key).status_code == 200
    other = client.post("/v1/runs", json={**run, "label": "other"}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "urn:meshwright:problem:idempotency-key-reused")
    assert len(client.get("/v1/runs").json()["runs"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"plan": "sha256:" + "0" * 64, "step_time_s": 1.0}, 422, "plan"),
        ({"step_time_s": 1.0}, 422, "plan"),
        ({"plan": "sha256:" + "0" * 64, "step_time_s": "7s"}, 422, "step_time_s"),
        ({"plan": "a\nb", "step_time_s": 1.0}, 422, "plan"),
        ({"plan": "sha256:" + "0" * 64, "label": "x" * 20_000}, 413, None),
    ],
)
def test_bodies_that_are_no_run(client: httpx.Client, body: dict[str, Any], status: int, field: str | None) -> None:
    answer = client.post("/v1/runs", json=body)
    assert answer.status_code == status, answer.text
    assert field is None or answer.json()["errors"][0]["field"] == field
    assert client.get("/v1/runs").json()["runs"] == []


def test_runs_that_no_one_reported(client: httpx.Client) -> None:
    for run_id in ("none", "sha256:" + "0" * 64, "%00", "x" * 300):
        assert client.get(f"/v1/runs/{run_id}").status_code == 404


def test_the_database_refuses_to_change_a_run(client: httpx.Client, settings: Settings) -> None:
    client.post("/v1/runs", json={"plan": planned(client)["digest"], "outcome": "out_of_memory"})
    engine = open_engine(settings.database_url)
    for change in ("UPDATE runs SET model = 'x'", "DELETE FROM runs"):
        with pytest.raises(StoreError, match="append-only"), writing(engine) as connection:
            connection.execute(text(change))
    engine.dispose()
    assert len(client.get("/v1/runs").json()["runs"]) == 1


def test_observe_stores_what_rest_shows(cli: Cli, client: httpx.Client, settings: Settings, monkeypatch: Any) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    plan = planned(client)
    path = cli.write("plan.json", plan)
    step = f"{plan['predicted']['step_time_s']:g}"
    assert cli("observe", path, "--step-time", step, "--dry-run", "--json") == 0, cli.err
    document = json.loads(cli.out)
    assert client.get("/v1/runs").json()["runs"] == []
    for stored in ("Stored; what runs here have told is", "It was stored already"):
        assert cli("observe", plan["digest"][:20], "--step-time", f"{step}s") == 0, cli.err
        assert stored in cli.out
    assert client.post("/v1/runs", json=document).status_code == 200
    (run,) = client.get("/v1/runs").json()["runs"]
    assert run["measured"] == {"step_time_s": float(step)}


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--out-of-memory", "--step-time", "1"),
        ("--step-time", "-1"),
        ("--step-time", "1GB"),
        ("--peak-memory", "71"),
        ("--log", "none.log"),
        ("--log", "x", "--step-time", "1"),
        ("--log", "x", "--log-format", "other"),
        ("--tokens-per-s", "5"),
    ],
)
def test_options_that_are_no_run(cli: Cli, client: httpx.Client, options: tuple[str, ...]) -> None:
    path = cli.write("plan.json", planned(client))
    assert cli("observe", path, *options) == 2
    assert "error" in cli.err.lower() and client.get("/v1/runs").json()["runs"] == []
