"""Changes that are suggested for a serving request without a plan: each is reached when its request is run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, unfinished_search
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Improvements, Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving.changes import is_tight, serving_changes
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.nearest import nearest_to
from meshwright.solver.serving.promise import evaluation
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.suggestions import LEAST_GAIN, RESCUE_WORK, said_of_none
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
    "requests_per_s": {"cluster.groups.0.node.devices_per_node", "workload.arrivals.requests_per_s"},
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
    targets, fields = {"slo.p95_ttft_ms", "slo.p95_tpot_ms"}, [set(each.set) for each in plan.suggestions]
    assert any(targets < each and "cluster.groups.0.node.devices_per_node" in each for each in fields)
    assert targets | {"workload.arrivals.requests_per_s"} in fields
    require_reached(request, plan)


def test_devices_of_a_node_are_advised_before_other_nodes_are_and_the_load_that_one_keeps() -> None:
    request = as_written(serving_request(rate=60.0, search=Search(pp=(1,)), on=cluster(per_node=1), output=50))
    plan = run(request)
    more, less = plan.suggestions[:2]
    devices = int(more.set["cluster.groups.0.node.devices_per_node"])
    assert 1 < devices <= 8 and "cluster.groups.0.nodes" not in more.set
    assert more.change == f"{devices} devices of one node of dgx-h100 instead of 1"
    assert set(less.set) == {"workload.arrivals.requests_per_s"}
    require_reached(request, plan)


def test_a_target_too_tight_for_one_request_is_moved_to_what_is_reached_at_the_load() -> None:
    request = as_written(serving_request(rate=4.0, ttft_ms=None, tpot_ms=2.0, on=cluster(per_node=4)))
    plan = run(request)
    assert plan.reason is not None and plan.reason.constraint == "p95_tpot"
    moved = next(each for each in plan.suggestions if set(each.set) == {"slo.p95_tpot_ms"})
    assert plan.reason.need < float(moved.set["slo.p95_tpot_ms"])
    require_reached(request, replace(plan, suggestions=(moved,)))


def test_where_no_change_helps_the_answer_says_so_in_one_sentence() -> None:
    plan = solve(as_written(asked()["memory"]), stop=lambda: True, progress=ignore_progress)
    assert plan.reason is not None and plan.reason.constraint == "memory" and not plan.suggestions
    assert plan.reason.remedies == (said_of_none((), is_stopped=True),)
    assert plan.reason.remedies[0].endswith("after 0 changes were tried: raise search.time_limit_s for advice")
    undecided = replace(plan, reason=unfinished_search(1, looked_for="a plan", remedies=()))
    assert "2 changes that were tried has a plan, 1 of them undecided" in said_of_none((plan, undecided), is_stopped=False)
    assert said_of_none((plan,), is_stopped=False).startswith("no single change helps (1 were tried)")


def test_advice_on_long_prompts_takes_no_more_steps_than_that_on_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of which fits in no memory: a bound says so, and a simulation of any change is of 1,500 such prompts."""
    clients = ClosedArrivals(process="closed", concurrency=1)
    request = serving_request(
        model_name="llama-3.1-70b", prompt=120_000, ttft_ms=None, tpot_ms=None, objective=Objective.THROUGHPUT
    )
    request = replace(request, cluster=cluster(per_node=2), workload=replace(request.workload, arrivals=clients))
    steps = list[float]()
    count = Evaluator.count_simulation

    def counted(self: Evaluator, of_one: float = 0.0) -> None:
        count(self, of_one)
        steps.append(of_one)

    monkeypatch.setattr(Evaluator, "count_simulation", counted)
    monkeypatch.setattr(evaluation, "STEPS_OF_A_LOOK", 100)
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    assert plan.reason is not None and plan.reason.constraint == "memory" and plan.search.evaluated == 0
    assert plan.suggestions, plan.reason.remedies
    # The last one of each change may be begun with little left.
    assert sum(steps) <= 100 * RESCUE_WORK.all + len(plan.suggestions) * max(steps)


def test_the_nearest_layouts_are_a_part_of_the_space() -> None:
    request = serving_request(on=cluster(per_node=4))
    near, far = nearest_to(request), nearest_to(serving_request(rate=1e6, on=cluster(per_node=4)))
    assert near is not None and near.search.tp and far is None
    assert {layout.key for layout in layouts(near)} <= {layout.key for layout in layouts(request)}


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


def whole_node(**asked: float) -> ServingRequest:
    """A request on a node that can't be filled further."""
    return serving_request(on=cluster(per_node=8), **asked)  # type: ignore[arg-type]


def changes_of(request: ServingRequest, constraint: str, *, need: float, have: float) -> list[list[str]]:
    reason = Reason(constraint, need, have, "", "")
    return [[change.words for change in ladder] for ladder in serving_changes(request, reason, run)]


def test_a_load_that_all_devices_keep_is_tried_before_lower_ones_and_nodes_by_what_is_missing() -> None:
    nodes, loads, *_ = changes_of(whole_node(rate=60.0), "requests_per_s", need=60.0, have=24.04)
    assert loads == ["24 requests/s instead of 60", "15 requests/s instead of 60", "6 requests/s instead of 60"]
    assert nodes == [f"{n} nodes of dgx-h100 instead of 1" for n in (3, 4, 5)]
    closed = serving_request()
    closed = replace(closed, workload=replace(closed.workload, arrivals=ClosedArrivals("closed", 3)))
    _, loads, *_ = changes_of(closed, "concurrency", need=3.0, have=0.0)
    assert loads == ["2 clients instead of 3", "1 clients instead of 3"]


def test_no_more_nodes_are_advised_than_a_search_can_look_through() -> None:
    request = whole_node(rate=60.0)
    assert changes_of(request, "requests_per_s", need=1e9, have=1.0)[0] == []
    (nodes, *_) = changes_of(request, "requests_per_s", need=100.0, have=1.0)
    assert nodes == [f"{n} nodes of dgx-h100 instead of 1" for n in (100, 111, 125)]


def test_a_request_that_is_late_alone_is_not_offered_nodes_nor_less_load() -> None:
    words = [each for ladder in changes_of(whole_node(confidence=0.9), "p95_ttft", need=61.23456, have=40.0) for each in ladder]
    assert not any("nodes" in each or "requests/s" in each for each in words)
    assert words[0] == "slo.p95_ttft_ms: 500" and "slo.confidence 0.5 instead of 0.9" in words
    assert "a cache in fp8" in words and f"precision {DType.FP8.value} instead of bf16" in words
