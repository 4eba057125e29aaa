"""Workers that switch layouts: what a change moves, search, plan, prediction, simulation, rules and refusals."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console

from meshwright.app.base.figures import axes
from meshwright.app.cli.pages.plan_page import NextStep, print_plan
from meshwright.app.launching.exporters import export
from meshwright.app.regression.locked_plan import structure_of
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ExportError, WorkloadError
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.api import explain, predict, simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import FrontierScope, Launcher, Objective, ServingMode, Space
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.explain import Excluded
from meshwright.solver.serving.forms.switched.engine import SwitchedBuilder, SwitchedEngine
from meshwright.solver.serving.workers.goodput import RATE_GRID, SUSTAINED_STEPS
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.serving_layouts import switched_of
from tests.unit.solver.serving.enumeration import best_objective, switching
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.verify.changes import at, changed

SWITCHED = Search(tp=(1, 2, 4), pp=(1, 2, 4), modes=(ServingMode.SWITCHED,))
EVERY = replace(SWITCHED, modes=(ServingMode.AGGREGATED, ServingMode.SWITCHED))

L4_LINK = 12.5e9
"""Bytes a second to the host of an L4: PCIe 4 x8."""

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def l4(*, devices: int = 4, host_gb: float = 400.0) -> Cluster:
    whole = cluster(node="l4-pcie", per_node=devices)
    group = whole.groups[0]
    return replace(whole, groups=(replace(group, node=replace(group.node, host_memory_bytes=int(host_gb * 1e9))),))


def asked(*, search: Search = SWITCHED, **changes: object) -> ServingRequest:
    given = {"rate": 0.2, "ttft_ms": 120_000.0, "tpot_ms": None, "on": l4(), "search": search} | changes
    return serving_request(**given)  # type: ignore[arg-type]


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


@cache
def planned(objective: Objective = Objective.THROUGHPUT) -> tuple[ServingRequest, Plan]:
    request = asked(objective=objective)
    return request, plan(request)


def worker(prefill: str, decode: str, request: ServingRequest) -> SwitchedEngine:
    builder = EngineBuilder(request, sequence_tokens=2100)
    engines = {layout.name: builder.engine(layout) for layout in layouts(request)}
    return SwitchedBuilder(request, builder, shortest_prompt=2000).engine(engines[prefill], engines[decode])


def test_a_device_loads_what_it_lacks() -> None:
    """Of tp 1 x pp 4 a device holds 8 of 32 layers whole, of tp 4 a quarter of each: it keeps a quarter of its 8."""
    request = asked()
    engine = worker("tp 1 x pp 4", "tp 4", request)
    hidden, kv, ffn = 4096, 1024, 14336
    matrices = 2.0 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn)
    norms = 2.0 * 2 * hidden
    # The first device holds the embedding too, a quarter of which stays; the last, with the head, keeps as much.
    vocabulary, last_norm = 2.0 * 128256 * hidden, 2.0 * hidden
    needed = 32 * (matrices / 4 + norms) + 2 * vocabulary / 4 + last_norm
    inner = needed - 8 * (matrices / 4 + norms)
    assert engine.to_decode_bytes == pytest.approx(inner, rel=1e-6)
    # Back: the last stage has the head and the norm before it.
    last = 8 * (matrices + norms) + vocabulary + last_norm
    assert engine.to_prefill_bytes == pytest.approx(last - 8 * (matrices / 4 + norms) - vocabulary / 4 - last_norm, rel=1e-6)


def test_pipelines_of_the_same_ranks_keep_what_they_share() -> None:
    """From tp 2 x pp 2 to tp 4 each device keeps half of its piece where halves and quarters begin alike."""
    there = worker("tp 2 x pp 2", "tp 4", asked())
    stage = max(needs.weights_bytes for needs in there.decode.needs)
    # Device 1 holds the second half of layers 0 to 15, and needs the second quarter: nothing of that is there.
    assert there.to_decode_bytes == pytest.approx(stage, rel=0.01)


def test_host_memory_is_for_one_copy_of_the_weights_and_a_buffer_for_each_worker() -> None:
    pair = worker("tp 1 x pp 2", "tp 2", asked())
    assert pair.replicas_per_node == 2
    token_bytes = 32 * 2 * 1024 * 2
    assert pair.host_token_bytes == token_bytes
    assert pair.change.buffer_tokens == int((400e9 - pair.host_weights_bytes) / 2 / token_bytes)
    # Keys and values of a token: half of the layers whole, or all of them halved.
    assert pair.change.out_token_s == pair.change.in_token_s == pytest.approx(token_bytes / 2 / L4_LINK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "changes"),
    [
        (SWITCHED, {"rate": 1.0}),
        (EVERY, {"rate": 1.6, "ttft_ms": 30_000.0}),
        (SWITCHED, {"rate": 0.3, "ttft_ms": 4_000.0, "tpot_ms": 200.0}),
    ],
)
def test_the_fewest_devices_are_what_enumeration_finds(search: Search, changes: dict[str, object]) -> None:
    request = asked(objective=Objective.DEVICES, search=search, **changes)
    answer = plan(request)
    assert answer.certificate.objective == best_objective(request, found=None)
    assert not answer.feasible or answer.certificate.status is Status.OPTIMAL


def test_the_goodput_is_what_enumeration_finds() -> None:
    """Every pair of layouts and batch limit at the next rate of the grid, and at the answer's own, with those down to half."""
    request = asked(objective=Objective.THROUGHPUT, search=replace(SWITCHED, tp=(1, 4), pp=(1, 4)))
    answer = plan(request)
    assert answer.certificate.objective is not None
    step = round(-math.log(answer.certificate.objective) / math.log(RATE_GRID))
    builder = EngineBuilder(request, sequence_tokens=2100)
    evaluator, workers = switching(request, [builder.engine(layout) for layout in layouts(request)])
    candidates = [candidate for engine in workers for candidate in evaluator.candidates(engine)]

    def sustained(highest: int) -> bool:
        steps = range(highest, highest - SUSTAINED_STEPS - 1, -1)
        return any(all(evaluator.measure(one, Share(RATE_GRID**lower)).keeps for lower in steps) for one in candidates)

    assert len(candidates) == 12
    assert sustained(step)
    assert not sustained(step + 1)


@pytest.mark.slow
def test_switching_wins_only_where_it_is_better() -> None:
    request = asked(objective=Objective.THROUGHPUT, prompt=4000, output=200)
    alone, apart, both = (
        plan(replace(request, search=replace(SWITCHED, modes=modes)))
        for modes in ((ServingMode.AGGREGATED,), (ServingMode.SWITCHED,), (ServingMode.AGGREGATED, ServingMode.SWITCHED))
    )
    assert alone.certificate.objective is not None
    assert apart.certificate.objective is not None
    assert both.certificate.objective == min(alone.certificate.objective, apart.certificate.objective)
    assert isinstance(both.layout, Replicas) == (alone.certificate.objective <= apart.certificate.objective)


def test_a_plan_says_everything() -> None:
    _, answer = planned()
    layout = switched_of(answer)
    prompts, degrees = layout.prompts, layout.answers.axes
    assert answer.predicted is not None
    assert answer.certificate.status is Status.OPTIMAL
    assert degrees.tp * degrees.pp == prompts.axes.tp * prompts.axes.pp
    assert prompts.axes.pp > degrees.pp
    assert prompts.to_decode_s == pytest.approx(prompts.to_decode_bytes / L4_LINK)
    assert 0.0 < prompts.switching_share < 0.5
    rate = 1.0 / (answer.certificate.objective or 1.0)
    assert answer.predicted.tokens_per_s == pytest.approx(100.0 * rate)


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.DEVICES])
def test_a_plan_predicts_and_simulates_itself(objective: Objective) -> None:
    request, answer = planned(objective)
    again = predict(request, answer)
    assert check(again, request) == ()
    assert again.predicted == answer.predicted
    assert again.layout == answer.layout
    assert answer.predicted is not None
    if objective is Objective.DEVICES:
        assert simulate(request, answer).ttft.p95.value == pytest.approx(answer.predicted.ttft_p95_s)


def test_a_slower_link_to_the_host_is_never_better() -> None:
    request, fast = planned()
    group = request.cluster.groups[0]
    device = replace(group.node.device, host_bytes_per_s=2e9)
    slow = plan(replace(request, cluster=Cluster((replace(group, node=replace(group.node, device=device)),))))
    assert fast.certificate.objective is not None
    assert slow.certificate.objective is not None
    assert slow.certificate.objective > fast.certificate.objective


@pytest.mark.parametrize(
    ("path", "factor", "rule"),
    [
        ("layout.prompts.to_decode_bytes", 0.2, Rule.WEIGHTS),
        ("layout.prompts.to_prefill_s", 0.9, Rule.STAGE_TIME),
        ("layout.prompts.out_token_s", 0.9, Rule.STAGE_TIME),
        ("layout.prompts.in_token_s", 0.9, Rule.STAGE_TIME),
        ("layout.prompts.buffer_tokens", 2, Rule.HOST_BYTES),
        ("layout.prompts.host_bytes", 1.2, Rule.HOST_MEMORY),
        ("layout.prompts.stages.0.memory.weights_bytes", 0.5, Rule.WEIGHTS),
        ("layout.prompts.stages.0.memory.kv_cache_bytes", 0.0, Rule.KV_CACHE),
        ("layout.prompts.switching_share", 20.0, Rule.UTILISATION),
        ("layout.prompts.max_num_seqs", 0, Rule.BATCH),
        ("predicted.tpot_p95_s", 1e-4, Rule.STAGE_TIME),
    ],
)
def test_the_checker_refuses_a_changed_plan(path: str, factor: float, rule: Rule) -> None:
    request, answer = planned()
    value = at(answer, path)
    assert isinstance(value, int | float)
    broken = check(changed(answer, path, type(value)(value * factor)), request)
    assert rule in {violation.rule for violation in broken}


def test_the_checker_wants_the_same_devices_in_both_layouts() -> None:
    request, answer = planned()
    layout = switched_of(answer)
    moved = changed(answer, "layout.prompts.stages.0.devices", (DeviceRange(3, 1),))
    assert Rule.DEVICES in {violation.rule for violation in check(moved, request)}
    same = replace(layout.prompts, axes=layout.answers.axes, stages=layout.answers.stages)
    assert Rule.AXES in {violation.rule for violation in check(changed(answer, "layout.prompts", same), request)}
    aggregated = replace(request, search=replace(SWITCHED, modes=(ServingMode.AGGREGATED,)))
    assert Rule.SEARCH in {violation.rule for violation in check(answer, aggregated)}


def test_no_launcher_runs_it() -> None:
    request, answer = planned()
    with pytest.raises(ExportError, match="no launcher changes the layout"):
        export(answer, request, "vllm")


def test_the_page_and_the_lock_show_both_layouts() -> None:
    request, answer = planned()
    prompts = switched_of(answer).prompts
    console = Console(width=100, record=True, file=io.StringIO())
    print_plan(console, answer, request, NextStep("", None), full=True)
    page = console.export_text()
    assert f"Layout of prompts, on the same devices: {axes(prompts.axes)}" in page
    assert "Layout of answers: " in page
    assert f"room for {prompts.buffer_tokens:,} tokens" in page.replace("\n", " ")
    structure = structure_of(answer)
    assert structure.prefill is not None
    assert structure.prefill.startswith(f"the same workers of {axes(prompts.axes)}")
    assert len(structure.prefill_stages) == prompts.axes.pp


def test_layouts_that_the_modes_leave_out_are_said_to_be() -> None:
    request, answer = planned(Objective.DEVICES)
    rows = explain(request, answer, "layouts")
    assert any(row.excluded_by is Excluded.SEARCH and "search.modes leaves out" in row.why for row in rows)


def beside_what_they_are_not_planned_for() -> list[ServingRequest]:
    request = asked()
    workload = request.workload
    return [
        replace(request, workload=replace(workload, arrivals=ClosedArrivals("closed", 8))),
        replace(request, workload=replace(workload, prefix_hit_ratio=0.5)),
        replace(request, workload=replace(workload, speculation=Speculation(1, 0.8, Draft(DraftMethod.NGRAM, 0.0)))),
        replace(request, workload=replace(workload, router=Router.ROUND_ROBIN)),
        replace(request, objective=Objective.ENERGY),
        replace(request, search=replace(SWITCHED, worker_kinds=2)),
        replace(request, search=replace(SWITCHED, frontier=FrontierScope.SWEPT)),
        replace(request, search=replace(SWITCHED, space=Space.LAUNCHABLE, launcher=Launcher.VLLM)),
    ]


@pytest.mark.parametrize("request_", beside_what_they_are_not_planned_for())
def test_what_does_not_go_together_is_refused(request_: ServingRequest) -> None:
    with pytest.raises(WorkloadError):
        plan(request_)


@pytest.mark.parametrize("request_", beside_what_they_are_not_planned_for())
def test_a_mode_that_does_not_go_with_the_rest_is_left_out_beside_one_that_does(request_: ServingRequest) -> None:
    alone, beside = (
        plan(replace(request_, search=replace(request_.search, modes=modes))) for modes in (EVERY.modes[:1], EVERY.modes)
    )
    assert alone.feasible
    assert [note for note in beside.notes if note not in alone.notes] == [beside.notes[0]]
    assert beside.notes[0].startswith("search.modes switched is left out: ")
    assert replace(beside, notes=beside.notes[1:]) == alone


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"on": l4(host_gb=16.2)}, "host_memory"),
        ({"on": l4(devices=1)}, "divisibility"),
        ({"tpot_ms": 1.0}, "p95_tpot"),
        ({"rate": 50.0}, "requests_per_s"),
    ],
)
def test_what_is_missing_is_said(changes: dict[str, object], constraint: str) -> None:
    answer = plan(asked(**changes))
    assert answer.reason is not None
    assert answer.reason.constraint == constraint
