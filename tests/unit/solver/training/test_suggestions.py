"""Changes that are suggested for a request without a plan: each is reached when its request is run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.app.requests.examples import INFEASIBLE_REQUEST
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import Progress, Stop, ignore_progress, never_stop
from meshwright.solver.problem.choices import Improvements, Objective
from meshwright.solver.problem.request import REQUEST_SCHEMA, PlanRequest, Slo, TrainingRequest
from meshwright.solver.suggestions import (
    LEAST_GAIN,
    AskBudget,
    BoundedAsking,
    RequestChange,
    more_devices,
    solved_suggestions,
    surer_suggestions,
)
from meshwright.solver.training.report.changes import SAFE, is_tight, training_changes
from tests.support.fakes import infeasible_plan
from tests.unit.solver.training.full_space import larger
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.suggestions import changed

TOLERANCE = 1e-9


SHORT_OF_MEMORY = {1: 0.85, 11: 0.9, 19: 0.95}
"""Seeds of requests, and the share of their devices' memory with which nothing fits."""

SHORT_OF_TIME = (3, 6)
RESTRICTED = (17, 37)
"""Seeds of requests whose own restrictions leave no plan."""


def short_of_memory(seed: int) -> TrainingRequest:
    """A random request that leaves all choices of memory open, on devices with less of it."""
    drawn = larger(random_request(seed), np.random.default_rng(seed))
    names = ("pp", "offload_optimizer", "offload_activations", "zero_stages", "recompute", "schedules", "tp_overlap")
    open_search = replace(drawn.search, microbatch=(1,), **dict.fromkeys(names, ()))  # type: ignore[arg-type]
    groups = []
    for group in drawn.cluster.groups:
        device = group.node.device
        less = replace(device, memory_bytes=round(device.memory_bytes * SHORT_OF_MEMORY[seed]))
        groups.append(replace(group, node=replace(group.node, device=less)))
    return as_written(replace(drawn, cluster=replace(drawn.cluster, groups=tuple(groups)), search=open_search))


def short_of_time(seed: int) -> TrainingRequest:
    """A random request with a target that nothing meets."""
    slo = Slo(max_step_time_s=1e-6) if seed % 2 else Slo(min_tokens_per_s=1e12)
    return as_written(replace(random_request(seed), slo=slo))


def as_written(request: TrainingRequest) -> TrainingRequest:
    """The request as its document is read: documents leave out what drawn requests have of other hosts."""
    read = resolve_request(json.loads(json.dumps(request_document(request))), files=NoFiles())
    assert isinstance(read, TrainingRequest)
    return read


def run(request: PlanRequest) -> Plan:
    return solve(request, stop=never_stop, progress=ignore_progress)


def reached(request: TrainingRequest, plan: Plan) -> set[str]:
    """The fields that suggestions set, each of whose requests has a plan that is no worse than was said."""
    for suggestion in plan.suggestions:
        document = json.loads(json.dumps(request_document(request)))
        for path, value in suggestion.set.items():
            changed(document, path, json.loads(value))
        document["search"]["improvements"] = "unasked"
        found = run(resolve_request(document, files=NoFiles()))
        assert found.feasible, suggestion
        assert found.certificate.objective is not None and found.certificate.unit == suggestion.unit
        assert found.certificate.objective <= suggestion.objective * (1 + TOLERANCE)
    return {path for each in plan.suggestions for path in each.set}


KINDS = {
    "cluster.groups.0.nodes",
    "search.offload_gradients",
    "search.offload_optimizer",
    "search.optimizers",
    "search.pp",
    "search.risk",
    "search.schedules",
    "slo.max_step_time_s",
    "slo.min_tokens_per_s",
    "workload.seq_len",
}
"""Fields that changes of requests without a plan set: each kind of change, and of restrictions two."""


@pytest.mark.slow
def test_every_suggestion_is_reached() -> None:
    kinds: set[str] = set()
    drawn = (random_request(seed) for seed in RESTRICTED)
    restricted = (as_written(replace(each, search=replace(each.search, tp_overlap=()))) for each in drawn)
    for request in (*map(short_of_memory, SHORT_OF_MEMORY), *map(short_of_time, SHORT_OF_TIME), *restricted):
        plan = run(request)
        assert not plan.feasible and plan.reason is not None and plan.suggestions
        assert plan.reason.remedies == tuple(f"{each.change}: {each.reaches}" for each in plan.suggestions)
        kinds |= reached(request, plan)
    assert kinds == KINDS


def improving(seed: int, **changes: Any) -> TrainingRequest:
    """A random request with a plan, of which what would make it better is asked."""
    drawn = random_request(seed)
    return as_written(replace(drawn, search=replace(drawn.search, improvements=Improvements.SOLVED), **changes))


@pytest.mark.slow
def test_what_makes_a_plan_better_is_reached() -> None:
    step_s = run(as_written(random_request(3))).certificate.objective
    assert step_s is not None
    few = improving(3, objective=Objective.DEVICES, slo=Slo(max_step_time_s=1.02 * step_s, confidence=0.5))
    kinds: set[str] = set()
    for request in (improving(1), improving(34), few):
        plan = run(request)
        assert plan.feasible and plan.certificate.objective is not None and plan.suggestions
        for each in plan.suggestions:
            gain = 1 - each.objective / plan.certificate.objective
            assert gain >= LEAST_GAIN and each.reaches.startswith(f"{gain:.1%} better: ")
        kinds |= reached(request, plan)
    assert {"search.risk", "search.microbatch", "cluster.groups.0.nodes", "slo.max_step_time_s"} <= kinds


def tight(seed: int, memory: float) -> TrainingRequest:
    """A request of `short_of_memory` with so much of its devices' memory that it has a plan, of which what would make it better
    is asked."""
    drawn = short_of_memory(seed)
    groups = []
    for group in drawn.cluster.groups:
        device = group.node.device
        more = replace(device, memory_bytes=round(device.memory_bytes * memory / SHORT_OF_MEMORY[seed]))
        groups.append(replace(group, node=replace(group.node, device=more)))
    search = replace(drawn.search, improvements=Improvements.SOLVED)
    return as_written(replace(drawn, cluster=replace(drawn.cluster, groups=tuple(groups)), search=search))


@pytest.mark.slow
def test_what_makes_a_tight_plan_safe_is_reached_with_its_price() -> None:
    """At the risk alone, or where nothing is safe there, or only slower, beside what takes memory off the devices."""
    offloaded = {"search.risk": "0.01", "search.offload_optimizer": "[1.0]"}
    for request, wanted in ((improving(6), {"search.risk": "0.01"}), (tight(19, 1.05), offloaded)):
        plan = run(request)
        assert plan.feasible and is_tight(plan) and plan.certificate.objective is not None
        safe = [each for each in plan.suggestions if each.set.get("search.risk") == "0.01"]
        assert [dict(each.set) for each in safe] == [wanted]
        loss = safe[0].objective / plan.certificate.objective - 1
        assert loss > 0 and safe[0].reaches.startswith(f"{loss:.1%} worse: ")
        reached(request, plan)
        search = replace(request.search, risk=SAFE, improvements=Improvements.UNASKED)
        if "search.offload_optimizer" in wanted:
            search = replace(search, offload_optimizer=(1.0,))
        found = run(replace(request, search=search))
        assert not is_tight(found) and found.certificate.objective == pytest.approx(safe[0].objective)


def test_a_plan_that_is_safe_is_not_made_safer() -> None:
    for seed in (1, 34):
        plan = run(improving(seed))
        assert plan.feasible and not is_tight(plan)
        assert not any(each.set.get("search.risk") == json.dumps(SAFE) for each in plan.suggestions)


def test_beside_a_surer_change_only_what_costs_less_is_suggested() -> None:
    request = short_of_time(3)
    good = run(as_written(replace(request, slo=Slo())))
    assert good.certificate.objective is not None
    worth = {"own": 1.0, "surer": 1.2, "cheaper": 1.1, "dearer": 1.3, "hardly": 1.195, "free": 1.0}

    def change(name: str) -> RequestChange:
        return RequestChange(name, {}, replace(request, model=replace(request.model, name=name)))

    def plan_of(name: str) -> Plan:
        objective = worth[name] * good.certificate.objective  # type: ignore[operator]
        return replace(good, feasible=name in worth, certificate=replace(good.certificate, objective=objective))

    def found(surer: list[RequestChange], *names: str) -> list[tuple[str, str]]:
        work = AskBudget(change=1000, ladder=1500, all=4000)
        suggestions = surer_suggestions(
            plan_of("own"),
            surer,
            lambda _: [[change(name)] for name in names],
            lambda other, _: plan_of(other.model.name) if other.model.name in worth else replace(good, feasible=False),
            lambda _: "reached",
            work=work,
            stop=never_stop,
        )
        return [(each.change, each.reaches) for each in suggestions]

    told = found([change("no"), change("surer")], "cheaper", "dearer", "hardly", "free")
    assert told == [("surer", "20.0% worse: reached"), ("cheaper", "10.0% worse: reached"), ("free", "as good: reached")]
    assert found([change("no")], "dearer", "no") == [("dearer", "30.0% worse: reached")]


def test_a_plan_has_no_suggestions_unless_they_are_asked_for() -> None:
    asked = improving(1)
    plain = run(replace(asked, search=replace(asked.search, improvements=Improvements.UNASKED)))
    assert plain.suggestions == () and run(asked).suggestions
    assert replace(run(asked), suggestions=()).certificate == plain.certificate


def test_the_same_request_has_the_same_suggestions_and_one_with_a_plan_has_none() -> None:
    request = short_of_memory(19)
    assert run(request).suggestions == run(request).suggestions
    whole = replace(request, search=replace(request.search, offload_optimizer=(0.0, 0.25, 0.5, 0.75, 1.0)))
    assert run(whole).feasible and run(whole).suggestions == ()


def test_a_ladder_stops_at_its_first_plan_and_work_is_counted() -> None:
    request = next(each for each in map(random_request, range(40)) if run(each).feasible)
    good, asked = run(request), list[str]()

    def answers(other: PlanRequest, stop: Stop) -> Plan:
        asked.append(other.model.name)
        if other.model.name == "endless":
            while not stop():
                pass
        return good if other.model.name == "good" else replace(good, feasible=False)

    def change(name: str) -> RequestChange:
        return RequestChange(name, {}, replace(request, model=replace(request.model, name=name)))

    work = AskBudget(change=1000, ladder=1500, all=4000)
    ladders = [[change("bad"), change("good"), change("good")], [change("bad")], [change("good")]]
    found = solved_suggestions(ladders, answers, lambda plan: "reached", work=work, stop=never_stop)
    assert [each.change for each in found] == ["good", "good"] and asked == ["bad", "good", "bad", "good"]
    asked.clear()
    # A ladder has room for one such search and a half, all of them for two ladders and two thirds.
    endless = [[change("endless")] * 5 for _ in range(20)]
    assert solved_suggestions(endless, answers, lambda plan: "reached", work=work, stop=never_stop) == ()
    assert len(asked) == 5
    assert solved_suggestions(ladders, answers, lambda plan: "reached", work=work, stop=lambda: True) == ()


def test_a_plan_of_a_part_is_suggested_where_the_whole_is_not_decided() -> None:
    request = next(each for each in map(random_request, range(40)) if run(each).feasible)
    good, part = run(request), replace(request, model=replace(request.model, name="part"))

    def answers(other: PlanRequest, stop: Stop) -> Plan:
        return good if other is part else replace(good, feasible=False)

    ladder = [RequestChange("small", {}, request, part=request), RequestChange("enough", {}, request, part=part)]
    work = AskBudget(change=1, ladder=1, all=1)
    found = solved_suggestions([ladder], answers, lambda plan: "reached", work=work, stop=never_stop)
    assert [each.change for each in found] == ["enough"]


def test_of_changes_whose_parts_are_late_or_lack_memory_the_whole_is_searched_of_the_last_late_one() -> None:
    request = short_of_time(3)
    late = infeasible_plan(request)
    assert late.reason is not None
    reasons = {
        "full": replace(late.reason, constraint="device_memory"),
        "late": replace(late.reason, constraint="slo.max_step_time_s", need=1.34, have=1.0),
        "near": replace(late.reason, constraint="slo.max_step_time_s", need=1.33, have=1.0),
    }

    def named(name: str) -> TrainingRequest:
        return replace(request, model=replace(request.model, name=name))

    def searched_whole(*names: str) -> list[str]:
        asked = list[str]()

        def answers(other: PlanRequest, stop: Stop) -> Plan:
            asked.append(other.model.name)
            return replace(late, reason=reasons[other.model.name.split()[0]])

        ladder = [RequestChange(name, {}, named(f"{name} {n}"), part=named(name)) for n, name in enumerate(names)]
        work = AskBudget(change=10, ladder=100, all=100)
        assert solved_suggestions([ladder], answers, lambda plan: "reached", work=work, stop=never_stop) == ()
        assert asked[: len(names)] == list(names)
        return asked[len(names) :]

    assert searched_whole("full", "full") == []
    assert searched_whole("full", "late", "late") == ["late 2"]
    assert searched_whole("late", "near", "full", "near") == ["near 1", "near 3"]


def test_a_search_for_a_change_ends_with_a_plan_near_its_bound_or_when_none_can_be_in_time() -> None:
    good = infeasible_plan(short_of_time(3))

    def ended(*told: Progress, within: float | None = 0.1) -> bool:
        asking = BoundedAsking(never_stop, 100, within=within, latest_s=5.0)
        for each in told:
            asking.note(each)
        return asking()

    found = Progress(1, 3, best=1.1, bound=1.0, incumbent=lambda: good)
    assert ended(found) and not ended(found, within=None)
    assert not ended(replace(found, best=1.11)) and not ended(replace(found, incumbent=lambda: None))
    assert ended(replace(found, best=None, incumbent=None, bound=5.1)) and not ended(Progress(1, 3, bound=5.0))
    unbounded = replace(found, bound=None)
    assert not ended(unbounded) and ended(unbounded, replace(unbounded, done=3))


def test_no_ladder_is_begun_with_enough_suggestions() -> None:
    request = next(each for each in map(random_request, range(40)) if run(each).feasible)
    good, asked = run(request), list[PlanRequest]()

    def answers(other: PlanRequest, stop: Stop) -> Plan:
        asked.append(other)
        return good

    ladders = [[RequestChange(name, {}, request)] for name in "abc"]
    work = AskBudget(change=10, ladder=100, all=100, enough=2)
    found = solved_suggestions(ladders, answers, lambda plan: "reached", work=work, stop=never_stop)
    assert [each.change for each in found] == ["a", "b"] and len(asked) == 2


def test_devices_of_a_node_are_advised_before_other_nodes_are() -> None:
    workload = {"kind": "training", "global_batch": 16, "seq_len": 4096}
    document = {"schema": REQUEST_SCHEMA, "model": {"catalog": "llama-3.1-8b"}, "cluster": "H100", "workload": workload}
    request = resolve_request(document, files=NoFiles())
    assert isinstance(request, TrainingRequest)
    request = as_written(request)
    plan = run(request)
    more = next(each for each in plan.suggestions if "cluster.groups.0.node.devices_per_node" in each.set)
    assert more.change.endswith("devices of one node of dgx-h100 instead of 1") and "cluster.groups.0.nodes" not in more.set
    reached(request, replace(plan, suggestions=(more,)))


def test_nodes_are_filled_evenly_and_then_as_many_opened_as_the_devices_need() -> None:
    half = Cluster((NodeGroup("a", part_of_node(node_type("dgx-h100"), 4), 2),))
    request = replace(random_request(1), cluster=half)
    sizes = [
        (each.request.cluster.groups[0].nodes, each.request.cluster.groups[0].node) for each in more_devices(request, (9, 17))
    ]
    assert [(nodes, node.devices_per_node) for nodes, node in sizes] == [(2, 5), (3, 8)]
    assert sizes[1][1].inter == node_type("dgx-h100").inter


@pytest.mark.parametrize("seed", SHORT_OF_TIME)
def test_a_target_that_is_suggested_is_no_looser_than_a_thousandth(seed: int) -> None:
    plan = run(short_of_time(seed))
    targets = [each for each in plan.suggestions if any(name.startswith("slo.") for name in each.set)]
    assert targets and plan.reason is not None
    ((name, value),) = targets[0].set.items()
    told = float(json.loads(value))
    if name == "slo.min_tokens_per_s":
        workload = short_of_time(seed).workload
        told = workload.global_batch * workload.seq_len / told
    assert plan.reason.need <= told <= plan.reason.need * 1.0011


def test_changes_that_can_not_hold_the_state_are_left_out() -> None:
    """405B keeps 14 bytes of each parameter: eight nodes of eight H100 have too little, whatever is sharded, twelve may do."""
    request = resolve_request(INFEASIBLE_REQUEST, files=NoFiles())
    assert isinstance(request, TrainingRequest)
    reason = infeasible_plan(request).reason
    assert reason is not None
    left = [change.words for ladder in training_changes(request, reason) for change in ladder]
    assert [words.split()[0] for words in left if "nodes of" in words] == ["12", "16"]
    assert [words for words in left if "optimizer lie" in words or "gradients lie" in words] == []
    assert [words for words in left if "weights lie" in words and "host" in words]
