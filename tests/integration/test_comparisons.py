"""One question asked of several clusters over REST: a table of plans, jobs for those that are not there yet."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from meshwright.app.base.errors import SolveTimeoutError
from meshwright.app.base.settings import Settings
from meshwright.app.web.comparisons import COMPARISON_EXAMPLES, MOST_CLUSTERS
from tests.integration.rest import problem
from tests.support.fakes import FakeSolver
from tests.support.requests_given import training
from tests.support.service import running_service


def compared(*clusters: object, **changes: Any) -> dict[str, Any]:
    """A comparison of a training request on some clusters."""
    asked = training(**changes)
    del asked["cluster"]
    return {"clusters": list(clusters), "request": asked}


def test_each_cluster_has_a_row_the_best_first_and_its_plan_is_stored(client: httpx.Client, solver: FakeSolver) -> None:
    whole = client.post("/v1/comparisons", json=COMPARISON_EXAMPLES["training"]["value"])
    assert whole.status_code == 200
    table = whole.json()
    assert table["schema"] == "meshwright.clusters/1"
    rows = table["clusters"]
    assert {row["cluster"] for row in rows} == {"8xH100", "8xMI300X", "2x dgx-a100"}
    assert [row["certificate"]["objective"] for row in rows] == sorted(row["certificate"]["objective"] for row in rows)
    for row in rows:
        stored = client.get(f"/v1/plans/{row['digest']}").json()
        assert {name: stored[name] for name in ("devices", "predicted", "feasible")} == {
            name: row[name] for name in ("devices", "predicted", "feasible")
        }
        assert row["launcher"] == "megatron-lm" and row["job"] is None
    again = client.post("/v1/comparisons", json=COMPARISON_EXAMPLES["training"]["value"])
    assert again.json() == table and solver.calls == 3


def test_who_does_not_wait_gets_jobs_and_later_the_whole(client: httpx.Client) -> None:
    asked = compared("8xH100", "8xA100")
    first = client.post("/v1/comparisons", json=asked, headers={"prefer": ""})
    assert first.status_code == 202
    rows = first.json()["clusters"]
    for row in rows:
        assert row["feasible"] is None and row["predicted"] is None
        assert client.get(row["job"]).json()["kind"] == "plan"
    assert client.post("/v1/comparisons", json=asked).status_code == 200


def test_a_cluster_that_can_not_be_asked_says_why_beside_those_that_can(client: httpx.Client) -> None:
    table = client.post("/v1/comparisons", json=compared("8xH100", "8xB9000", {"catalog": "dgx-h100", "nodes": 0})).json()
    first, *others = table["clusters"]
    assert first["cluster"] == "8xH100" and first["refused"] is None
    assert {row["cluster"]: row["feasible"] for row in others} == {"8xB9000": False, "0x dgx-h100": False}
    assert any("B9000" in row["refused"] for row in others) and any("nodes" in row["refused"] for row in others)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (compared("8xB9000", "7xB9000"), "B9000"),
        (compared(), "clusters"),
        (compared(*["8xH100"] * (MOST_CLUSTERS + 1)), "clusters"),
        (compared("8xH100") | {"cluster": "8xH100"}, "cluster"),
        ({"clusters": ["8xH100"], "request": training()}, "request.cluster"),
        (compared("8xH100", workload={"kind": "training"}), "workload"),
    ],
)
def test_a_comparison_that_can_not_be_used_says_why(client: httpx.Client, body: dict[str, Any], said: str) -> None:
    answer = client.post("/v1/comparisons", json=body)
    assert said in str(problem(answer, 422, answer.json()["type"].rpartition(":")[2]))


def test_a_job_that_failed_is_said_in_its_row(settings: Settings) -> None:
    with running_service(settings, FakeSolver(failure=SolveTimeoutError("it took too long"))) as client:
        (row,) = client.post("/v1/comparisons", json=compared("8xH100")).json()["clusters"]
    assert (row["feasible"], row["refused"], row["job"]) == (False, "it took too long", None)
