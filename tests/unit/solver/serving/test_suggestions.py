"""Changes that are suggested for a serving request without a plan: each is reached when its request is run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Improvements
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving.changes import is_tight, serving_changes
from meshwright.solver.suggestions import LEAST_GAIN
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.training.suggestions import changed

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")

NARROW = Search(tp=(1, 2), pp=(1,))


def asked() -> dict[str, ServingRequest]:
    """Requests without a plan, by the constraint that is tightest."""
    return {
        "p95_tpot": serving_request(tpot_ms=2.0, confidence=0.9, search=NARROW),
        "requests_per_s": serving_request(rate=60.0, ttft_ms=200.0, search=NARROW, on=cluster(per_node=2)),
        "memory": serving_request(
            model_name="llama-3.1-70b", rate=0.1, prompt=500, ttft_ms=None, tpot_ms=80.0, search=Search(tp=(1,), pp=(1,))
        ),
        "divisibility": serving_request(search=Search(tp=(3,), pp=(1,))),
    }


def run(request: object) -> Plan:
    return solve(request, stop=never_stop, progress=ignore_progress)  # type: ignore[arg-type]


EXPECTED = {
    "p95_tpot": {"slo.p95_tpot_ms"},
    "requests_per_s": {"cluster.groups.0.nodes", "workload.arrivals.requests_per_s"},
    "memory": {"workload.precision"},
    "divisibility": {"search.tp"},
}


def as_written(request: ServingRequest) -> ServingRequest:
    """The request as its document is read."""
    read = resolve_request(json.loads(json.dumps(request_document(request))), files=NoFiles())
    assert isinstance(read, ServingRequest)
    return read


@pytest.mark.slow
@pytest.mark.parametrize("constraint", list(EXPECTED))
def test_every_suggestion_is_reached(constraint: str) -> None:
    request = as_written(asked()[constraint])
    plan = run(request)
    assert not plan.feasible and plan.reason is not None and plan.reason.constraint == constraint
    assert plan.reason.remedies == tuple(f"{each.change}: {each.reaches}" for each in plan.suggestions)
    require_reached(request, plan)
    assert EXPECTED[constraint] <= {path for each in plan.suggestions for path in each.set}


def test_targets_missed_even_alone_are_moved_and_nodes_are_as_many_as_the_load_then_needs() -> None:
    """Both targets are too tight for a lone request, and the load too much for the cluster: no change alone has a plan."""
    request = as_written(serving_request(rate=40.0, ttft_ms=20.0, tpot_ms=2.0, search=NARROW, on=cluster(per_node=2)))
    plan = run(request)
    assert not plan.feasible
    assert {"slo.p95_ttft_ms", "slo.p95_tpot_ms", "cluster.groups.0.nodes"} in [set(each.set) for each in plan.suggestions]
    require_reached(request, plan)


def test_what_makes_a_plan_better_is_reached() -> None:
    """A confidence, a looser target and fewer bits each save devices of a plan that a target makes wide."""
    search = replace(NARROW, improvements=Improvements.SOLVED)
    request = as_written(serving_request(rate=12.0, confidence=0.9, ttft_ms=400.0, tpot_ms=14.0, search=search))
    plan = run(request)
    assert plan.feasible and plan.certificate.objective is not None
    for each in plan.suggestions:
        gain = 1 - each.objective / plan.certificate.objective
        assert gain >= LEAST_GAIN and each.reaches.startswith(f"{gain:.1%} better: ")
    require_reached(request, plan)
    kinds = {path for each in plan.suggestions for path in each.set}
    assert {"slo.confidence", "slo.p95_ttft_ms", "slo.p95_tpot_ms"} & kinds and len(kinds) >= 2, kinds
    plain = run(replace(request, search=replace(search, improvements=Improvements.UNASKED)))
    assert plain.suggestions == () and plain.certificate == plan.certificate


def test_what_keeps_the_targets_of_a_tight_plan_more_surely_is_reached_with_its_price() -> None:
    """A plan at the median often misses a target: what is sure takes twice the devices, or half as many more in fewer bits."""
    search = replace(NARROW, improvements=Improvements.SOLVED)
    request = as_written(serving_request(rate=20.0, confidence=0.5, ttft_ms=500.0, tpot_ms=20.0, search=search))
    plan = run(request)
    assert plan.feasible and is_tight(plan)
    sure = [each for each in plan.suggestions if each.set.get("slo.confidence") == "0.97"]
    assert [set(each.set) for each in sure] == [{"slo.confidence"}, {"slo.confidence", "workload.precision"}]
    assert sure[0].reaches.startswith("100.0% worse: ") and sure[1].reaches.startswith("50.0% worse: ")
    require_reached(request, plan)
    kept = run(replace(request, slo=replace(request.slo, confidence=0.97), search=NARROW))
    assert kept.feasible and not is_tight(kept)


def require_reached(request: ServingRequest, plan: Plan) -> None:
    for suggestion in plan.suggestions:
        document = json.loads(json.dumps(request_document(request)))
        for path, value in suggestion.set.items():
            changed(document, path, json.loads(value))
        document["search"]["improvements"] = "unasked"
        found = run(resolve_request(document, files=NoFiles()))
        assert found.feasible, suggestion
        assert found.certificate.objective is not None and found.certificate.unit == suggestion.unit
        assert found.certificate.objective <= suggestion.objective * (1 + 1e-9)


def changes_of(request: ServingRequest, constraint: str, *, need: float, have: float) -> list[list[str]]:
    reason = Reason(constraint, need, have, "", "")
    return [[change.words for change in ladder] for ladder in serving_changes(request, reason, run)]


def test_a_load_that_all_devices_keep_is_tried_before_lower_ones_and_nodes_by_what_is_missing() -> None:
    nodes, loads, *_ = changes_of(serving_request(rate=60.0), "requests_per_s", need=60.0, have=24.04)
    assert loads == ["24 requests/s instead of 60", "15 requests/s instead of 60", "6 requests/s instead of 60"]
    assert nodes == [f"{n} nodes of dgx-h100 instead of 1" for n in (3, 4, 5)]
    closed = serving_request()
    closed = replace(closed, workload=replace(closed.workload, arrivals=ClosedArrivals("closed", 3)))
    _, loads, *_ = changes_of(closed, "concurrency", need=3.0, have=0.0)
    assert loads == ["2 clients instead of 3", "1 clients instead of 3"]


def test_no_more_nodes_are_advised_than_a_search_can_look_through() -> None:
    request = serving_request(rate=60.0)
    assert changes_of(request, "requests_per_s", need=1e9, have=1.0)[0] == []
    (nodes, *_) = changes_of(request, "requests_per_s", need=200.0, have=1.0)
    assert nodes == [f"{n} nodes of dgx-h100 instead of 1" for n in (170, 200, 250)]


def test_a_request_that_is_late_alone_is_not_offered_nodes_nor_less_load() -> None:
    words = [
        each for ladder in changes_of(serving_request(confidence=0.9), "p95_ttft", need=61.23456, have=40.0) for each in ladder
    ]
    assert not any("nodes" in each or "requests/s" in each for each in words)
    assert words[0] == "slo.p95_ttft_ms: 500" and "slo.confidence 0.5 instead of 0.9" in words
    assert "a cache in fp8" in words and f"precision {DType.FP8.value} instead of bf16" in words
