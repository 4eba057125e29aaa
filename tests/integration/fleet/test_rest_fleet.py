"""Registered models and clusters, and requests that name them, as a REST client meets them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.requests_given import tiny_graph, training

Json = dict[str, Any]

pytestmark = pytest.mark.both_databases


def put_cluster(client: httpx.Client, nodes: int, name: str = "prod", **options: Any) -> httpx.Response:
    return client.put(f"/v1/clusters/{name}", json={"catalog": "dgx-h100", "nodes": nodes}, **options)


def on(name: str = "prod", **changes: Any) -> Json:
    return training(cluster={"name": name}, **changes)


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


def test_every_change_is_a_version(client: httpx.Client) -> None:
    first, same, second = put_cluster(client, 2), put_cluster(client, 2), put_cluster(client, 1)
    assert [answer.status_code for answer in (first, same, second)] == [201, 200, 201]
    assert [answer.json()["version"] for answer in (first, same, second)] == [1, 1, 2]
    assert client.get("/v1/clusters/prod").json()["document"]["groups"][0]["nodes"] == 1
    assert client.get("/v1/clusters/prod", params={"version": 1}).json()["document"]["groups"][0]["nodes"] == 2
    versions = client.get("/v1/clusters/prod/versions", params={"limit": 1}).json()
    rest = client.get("/v1/clusters/prod/versions", params={"cursor": versions["next_cursor"]}).json()
    assert [item["version"] for item in versions["items"] + rest["items"]] == [2, 1]


def test_lists_show_the_newest_version_of_each(client: httpx.Client) -> None:
    put_cluster(client, 1, "a")
    put_cluster(client, 1, "b")
    put_cluster(client, 2, "a")
    items = client.get("/v1/clusters").json()["items"]
    assert [(item["name"], item["version"]) for item in items] == [("a", 2), ("b", 1)]
    assert client.get("/v1/registered-models").json()["items"] == []


def test_a_change_must_start_from_the_version_that_its_maker_saw(client: httpx.Client) -> None:
    etag = put_cluster(client, 2).headers["etag"]
    assert client.get("/v1/clusters/prod", headers={"if-none-match": etag}).status_code == 304
    assert put_cluster(client, 3, headers={"if-match": etag}).status_code == 201
    assert problem(put_cluster(client, 4, headers={"if-match": etag})) == (412, "version-changed")
    assert problem(put_cluster(client, 4, "new", headers={"if-match": etag})) == (412, "version-changed")


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 201, "%00"])
def test_names_that_are_none(client: httpx.Client, name: str) -> None:
    assert problem(put_cluster(client, 1, name)) == (422, "invalid-request")
    assert problem(client.get(f"/v1/clusters/{name}")) == (404, "no-such-resource")


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(
    "document", [{}, {"nodes": 1}, {"name": "other"}, {"catalog": "dgx-h100", "nodes": 10**9}, {"catalog": "none"}]
)
def test_clusters_that_are_none(client: httpx.Client, document: Json) -> None:
    assert problem(client.put("/v1/clusters/prod", json=document)) == (422, "invalid-request")


def test_a_request_may_name_what_is_registered(client: httpx.Client) -> None:
    put_cluster(client, 1)
    assert client.put("/v1/models/ours", json={"graph": tiny_graph()}).status_code == 201
    plan = client.post("/v1/plans", json=on(model={"name": "ours"})).json()
    assert plan["model"] == "ours"
    inline = training(model={"graph": tiny_graph(), "name": "ours"})
    assert client.post("/v1/plans", json=inline).json()["digest"] == plan["digest"]


def test_names_that_nothing_is_registered_under(client: httpx.Client) -> None:
    answer = client.post("/v1/plans", json=on("nonesuch"))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "cluster.name"


def test_a_cluster_name_goes_with_nothing_else(client: httpx.Client) -> None:
    put_cluster(client, 1)
    answer = client.post("/v1/plans", json=training(cluster={"name": "prod", "oversubscription": 2.0}))
    assert answer.json()["errors"][0]["field"] == "cluster.name"


def test_a_change_makes_dependent_plans_stale_and_asking_again_current(client: httpx.Client) -> None:
    put_cluster(client, 2)
    put_cluster(client, 2, "other")
    old = client.post("/v1/plans", json=on()).json()["digest"]
    client.post("/v1/plans", json=on("other", search={"seed": 1}))

    def standing(staleness: str) -> list[str]:
        return [item["digest"] for item in client.get("/v1/plans", params={"staleness": staleness}).json()["plans"]]

    assert standing("stale") == []
    assert put_cluster(client, 1).json()["stale"] == 1
    assert standing("stale") == [old]
    questions = client.get("/v1/questions", params={"stale": True}).json()["questions"]
    assert [(item["cluster"], item["plan"]) for item in questions] == [("prod", old)]
    assert "version 2" in questions[0]["stale_reason"]
    new = client.post("/v1/plans", json=on()).json()["digest"]
    assert (standing("stale"), standing("superseded")) == ([], [old])
    assert new in standing("current")
    about = client.get("/v1/plans", params={"cluster": "prod"}).json()["plans"]
    assert [item["digest"] for item in about] == [new, old]
    # The old cluster again: its plan is stored, and current again.
    put_cluster(client, 2)
    assert client.post("/v1/plans", json=on()).json()["digest"] == old
    assert standing("superseded") == [new]
