"""Metrics: what is counted, and that they can be scraped."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from meshwright.app.base.errors import SolveTimeoutError
from meshwright.app.base.settings import SettingError, Settings
from meshwright.app.edge import observability as metrics
from meshwright.app.edge.observability import registry
from meshwright.app.service.queue_metrics import read_address, serve_metrics
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import ensure_ready
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service


def value(name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with running_service(settings, FakeSolver()) as client:
        yield client


def test_requests_are_counted_by_route_and_status(client: httpx.Client) -> None:
    one = {"method": "GET", "route": "/v1/plans/{digest}", "status": "422"}
    before = value("meshwright_requests_total", **one)
    client.get("/v1/plans/nonsense")
    client.get("/v1/plans/other")
    assert value("meshwright_requests_total", **one) == before + 2
    assert value("meshwright_request_seconds_count", method="GET", route="/v1/plans/{digest}") >= 1


def test_addresses_and_methods_of_strangers_make_no_series_of_their_own(client: httpx.Client) -> None:
    # Time is counted when the answer has left: that of the first requests, before the second ones are answered.
    for _ in range(2):
        client.get("/a")
        client.request("BREW", "/coffee")
    before = len(list(series()))
    for number in range(20):
        client.get(f"/{number}")
        client.request(f"BREW{number}", "/coffee")
    assert len(list(series())) == before


def series() -> Iterator[str]:
    for family in registry.collect():
        for sample in family.samples:
            yield f"{sample.name}{sorted(sample.labels.items())}"


def test_cache_hits_and_solves_are_counted(client: httpx.Client) -> None:
    names = ("stored", "queued", "joined")
    before = {how: value("meshwright_plan_answers_total", how=how) for how in names}
    solves = value("meshwright_solves_total", kind="training", status="optimal")
    gaps = value("meshwright_plan_gap_count", kind="training")
    for _ in range(3):
        client.post("/v1/plans", json=training())
    assert {how: value("meshwright_plan_answers_total", how=how) - before[how] for how in names} == {
        "stored": 2,
        "queued": 1,
        "joined": 0,
    }
    assert value("meshwright_solves_total", kind="training", status="optimal") == solves + 1
    assert value("meshwright_plan_gap_count", kind="training") == gaps + 1


def test_failures_are_counted_by_reason(settings: Settings) -> None:
    before = value("meshwright_solve_failures_total", reason="SolveTimeout")
    with running_service(settings, FakeSolver(failure=SolveTimeoutError("too long"))) as client:
        client.post("/v1/plans", json=training())
    assert value("meshwright_solve_failures_total", reason="SolveTimeout") == before + 1


def test_metrics_and_the_queue_can_be_scraped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "registry", metrics.CollectorRegistry())
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    port = serve_metrics("127.0.0.1:0", engine)
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
    assert found["meshwright_jobs_queued"] == 0
    assert found["meshwright_workers_alive"] == 0
    assert "meshwright_queue_age_seconds" in found
    with pytest.raises(SettingError, match="can't be served"):
        serve_metrics(f"127.0.0.1:{port}", engine)


def test_without_an_address_nothing_listens(settings: Settings) -> None:
    assert serve_metrics("", open_engine(settings.database_url)) is None


@pytest.mark.parametrize("address", ["9464", ":9464", "host:", "host:99999", "host:x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(SettingError, match="HOST:PORT"):
        read_address(address)


def test_metrics_tell_nothing_of_whose_plans_they_are(client: httpx.Client) -> None:
    document = training()
    client.post("/v1/plans", json=document)
    text = json.dumps(list(series()))
    assert "llama" not in text
    assert "sha256" not in text
