"""The service plans with calibrations that its caller has stored, or that stand in the request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.requests.digests import calibration_files
from meshwright.app.store.calibrations import CalibrationStore
from meshwright.app.store.engine import open_engine
from tests.integration.calibrations.service import fitted
from tests.support.requests_given import training

pytestmark = pytest.mark.both_databases


def test_requests_name_stored_calibrations(client: httpx.Client, settings: Settings) -> None:
    engine = open_engine(settings.database_url)
    calibration = fitted()
    CalibrationStore(engine).keep(calibration)
    engine.dispose()
    shipped = client.post("/v1/plans", json=training()).json()
    assert "calibrations" not in shipped["request"]
    by_name = client.post("/v1/plans", json=training(calibrations=["h100_sxm@1"])).json()
    inline = client.post("/v1/plans", json=training(calibrations=[dict(calibration.document)])).json()
    assert by_name["digest"] == inline["digest"] != shipped["digest"]
    (group,) = by_name["request"]["cluster"]["groups"]
    assert group["node"]["device"]["calibration"] == calibration.name


def test_calibrations_that_are_not_there(client: httpx.Client) -> None:
    answer = client.post("/v1/plans", json=training(calibrations=["h100_sxm@1"]))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "calibrations.0"
    for wrong in ("h100.json", {}, {"schema": "meshwright.calibration/1", "key": "h100_sxm"}, 7):
        answer = client.post("/v1/plans", json=training(calibrations=[wrong]))
        assert answer.status_code == 422, wrong


def posted(client: httpx.Client, document: Any, **params: str) -> httpx.Response:
    return client.post("/v1/calibrations", json=document, params=params)


def test_calibrations_are_added_listed_and_given(client: httpx.Client) -> None:
    document = dict(fitted().document)
    first, again = posted(client, document), posted(client, document)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["version"], first.json()["stale"], first.json()["replan"]) == (1, 0, None)
    second = posted(client, document | {"software": ["newer"]}).json()
    assert (second["key"], second["version"]) == ("h100_sxm", 2)
    page = client.get("/v1/calibrations", params={"limit": 1}).json()
    rest = client.get("/v1/calibrations", params={"cursor": page["next_cursor"], "device": "h100_sxm"}).json()
    assert [item["version"] for item in page["calibrations"] + rest["calibrations"]] == [2, 1]
    assert client.get("/v1/calibrations", params={"device": "a100_sxm"}).json()["calibrations"] == []
    whole = client.get(first.headers["location"])
    assert whole.json()["document"] == document
    assert client.get("/v1/calibrations/h100_sxm").json()["name"] == second["name"]
    assert client.get("/v1/calibrations/h100_sxm@1").json() == whole.json()
    held = client.get(first.headers["location"], headers={"if-none-match": whole.headers["etag"]})
    assert (held.status_code, held.content) == (304, b"")


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("reference", ["none", "h100_sxm@9", "h100_sxm@sha256:00", "%00", "x" * 300])
def test_calibrations_that_no_one_added(client: httpx.Client, reference: str) -> None:
    answer = client.get(f"/v1/calibrations/{reference}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:meshwright:problem:no-such-resource")


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"key": "a/b"},
        {"key": ""},
        {"kernels": {}},
        {"samples": {}},
        {"samples": {"rows": -1, "digest": "sha256:" + "0" * 64}},
        {"samples": {"rows": 1, "digest": "none"}},
        {"samples": None},
    ],
)
def test_documents_that_are_no_calibration(client: httpx.Client, change: dict[str, Any]) -> None:
    answer = posted(client, {**fitted().document, **change})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:meshwright:problem:invalid-request"), answer.text
    assert client.get("/v1/calibrations").json()["calibrations"] == []


def test_a_calibration_whose_numbers_overflow(client: httpx.Client) -> None:
    kernels = json.loads(calibration_files()["kernels/h100_sxm.json"]) | {"provenance": {"made up": "1 rows"}}
    document = {**fitted().document, "kernels": kernels}
    assert posted(client, document).status_code == 201
    tables = list(tables_of(kernels))
    for table in tables:
        table["step"] = 1e308
    assert tables
    assert posted(client, document).status_code == 422


def tables_of(node: Any) -> Iterator[dict[str, Any]]:
    """Every table of a calibration's curves."""
    if isinstance(node, dict):
        if "step" in node:
            yield node
        for value in node.values():
            yield from tables_of(value)


def test_a_registered_cluster_is_planned_with_its_newest_calibration(client: httpx.Client) -> None:
    client.put("/v1/clusters/prod", json={"catalog": "dgx-h100", "nodes": 1})
    on_prod = training(cluster={"name": "prod"})
    shipped = client.post("/v1/plans", json=on_prod).json()
    document = dict(fitted().document)
    added = posted(client, document).json()
    assert added["stale"] == 1
    (stale,) = client.get("/v1/questions", params={"calibration": "h100_sxm", "stale": True}).json()["questions"]
    assert (stale["plan"], stale["stale_reason"]) == (shipped["digest"], "calibration h100_sxm is at version 1")
    measured = client.post("/v1/plans", json=on_prod).json()
    assert measured["request"]["calibrations"] == [document]
    assert client.get("/v1/questions", params={"stale": True}).json()["questions"] == []
    # A version that is named stays, and so does what other requests say.
    pinned = training(cluster={"name": "prod"}, calibrations=["h100_sxm@1"])
    assert client.post("/v1/plans", json=pinned).json()["digest"] == measured["digest"]
    newer = posted(client, document | {"software": ["newer"]}).json()
    assert newer["stale"] == 1
    assert client.post("/v1/plans", json=pinned).json()["digest"] == measured["digest"]
    assert client.post("/v1/plans", json=on_prod).json()["request"]["calibrations"][0]["software"] == ["newer"]


@pytest.mark.parametrize("version", ["²", "٣", "①", "9" * 400])
def test_odd_digits_are_no_version(client: httpx.Client, version: str) -> None:
    """Every path of the service that names something takes a superscript for a name nobody has."""
    reference = quote(f"a@{version}")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        if "get" in methods and "{" in path:
            answer = client.get(re.sub(r"\{\w+\}", reference, path))
            assert answer.status_code < 500, path
            assert client.get(path.split("{")[0].rstrip("/"), params={"cursor": version}).status_code < 500, path
    answer = client.post("/v1/plans", json=training(calibrations=[f"h100_sxm@{version}"]))
    assert answer.status_code == 422
