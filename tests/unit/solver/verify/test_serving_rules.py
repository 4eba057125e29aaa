"""Rules of serving plans, each broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.units import DType
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import PlanRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, LognormalLength, PoissonArrivals, PrefixCache
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat
from tests.unit.solver.verify.changes import changed
from tests.unit.solver.verify.plans import cluster, model, serving_plan, serving_request


def rules(plan: object, request: PlanRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}  # type: ignore[arg-type]


def test_a_correct_plan_is_accepted() -> None:
    assert check(serving_plan(), serving_request()) == ()


def test_stages_may_list_the_devices_of_every_replica() -> None:
    assert not check(changed(serving_plan(), "layout.stages.0.devices", (DeviceRange(0, 4),)), serving_request())


@pytest.mark.parametrize(
    ("path", "value", "broken"),
    [
        ("layout", None, {Rule.ANSWER}),
        ("layout.stages", (), {Rule.ANSWER}),
        ("predicted.ttft_p95_s", None, {Rule.ANSWER}),
        ("certificate.objective", 3.0, {Rule.CERTIFICATE}),
        ("layout.load.replicas", 3, {Rule.DEVICES}),
        ("layout.axes.tp", 4, {Rule.AXES, Rule.DEVICES, Rule.DIVISIBILITY}),
        ("layout.axes.pp", 2, {Rule.AXES, Rule.DEVICES, Rule.STAGES}),
        ("layout.axes.cp", 2, {Rule.AXES, Rule.SEARCH, Rule.LAUNCHER, Rule.DEVICES}),
        ("layout.stages.0.devices", (DeviceRange(7, 2),), {Rule.DEVICES}),
        ("layout.stages.0.devices", (DeviceRange(0, 1), DeviceRange(0, 1)), {Rule.DEVICES}),
        ("layout.stages.0.devices", (DeviceRange(0, 3),), {Rule.DEVICES}),
        ("layout.stages.0.blocks.1.count", 3, {Rule.LAYERS}),
        ("layout.stages.0.memory.weights_bytes", 2000.0, {Rule.WEIGHTS, Rule.PEAK_MEMORY}),
        ("layout.stages.0.memory.weights_bytes", 9000.0, {Rule.WEIGHTS, Rule.PEAK_MEMORY}),
        ("layout.stages.0.memory.kv_cache_bytes", 700.0, {Rule.KV_CACHE, Rule.PEAK_MEMORY}),
        ("layout.stages.0.memory.kv_cache_bytes", 90_000.0, {Rule.CAPACITY, Rule.PEAK_MEMORY}),
        ("predicted.peak_memory_bytes", 1.0, {Rule.PEAK_MEMORY}),
        ("layout.load.utilisation", 1.0, {Rule.UTILISATION}),
        ("layout.load.max_num_seqs", 2, {Rule.UTILISATION}),
        ("predicted.tokens_per_s", -8.0, {Rule.NUMBERS}),
        ("predicted.cost_per_million_tokens", 1.0, {Rule.COST}),
    ],
)
def test_one_broken_thing_breaks_its_own_rules(path: str, value: object, broken: set[Rule]) -> None:
    request = serving_request(model=model(ffn=18)) if path == "layout.axes.tp" else serving_request()
    assert rules(changed(serving_plan(), path, value), request) == broken


def test_percentiles_meet_the_slo() -> None:
    assert not check(serving_plan(), serving_request(slo=Slo(p95_ttft_ms=500.0, p95_tpot_ms=20.0)))
    assert rules(serving_plan(), serving_request(slo=Slo(p95_ttft_ms=499.0))) == {Rule.SLO}
    assert rules(serving_plan(), serving_request(slo=Slo(p95_tpot_ms=19.0))) == {Rule.SLO}


def test_the_cache_holds_one_whole_request_at_any_load() -> None:
    idle = changed(serving_plan(), "layout.load.mean_batch", 0.1)
    assert Rule.KV_CACHE in rules(changed(idle, "layout.stages.0.memory.kv_cache_bytes", 300.0), serving_request())
    assert Rule.KV_CACHE not in rules(changed(idle, "layout.stages.0.memory.kv_cache_bytes", 320.0), serving_request())


def test_the_cache_holds_a_system_prompt_once() -> None:
    request = serving_request()
    assert isinstance(request.workload, ServingWorkload)
    shared = replace(request, workload=replace(request.workload, prefix_cache=PrefixCache(system_tokens=5)))
    busy = changed(serving_plan(), "layout.load.mean_batch", 4.0)
    # Four requests of 6 + 4 / 2 tokens of 32 bytes; of the 6 five are the same for all.
    for size, with_shared, without in (
        (543.0, True, True),
        (544.0, False, True),
        (1023.0, False, True),
        (1024.0, False, False),
    ):
        plan = changed(busy, "layout.stages.0.memory.kv_cache_bytes", size)
        assert (Rule.KV_CACHE in rules(plan, shared), Rule.KV_CACHE in rules(plan, request)) == (with_shared, without)


def test_windows_bound_what_their_layers_cache() -> None:
    small = changed(serving_plan(), "layout.stages.0.memory.kv_cache_bytes", 300.0)
    assert Rule.KV_CACHE not in rules(small, serving_request(model=model(window=2)))


def test_restrictions_and_launchers_bind() -> None:
    assert rules(serving_plan(), serving_request(search=Search(launcher=Launcher.VLLM, tp=(1,)))) == {Rule.SEARCH}
    assert rules(serving_plan(), serving_request(search=Search(launcher=Launcher.TORCHTITAN))) == {Rule.LAUNCHER}


def test_the_cluster_must_hold_every_replica() -> None:
    plan = changed(changed(serving_plan(), "layout.load.replicas", 4), "devices", 8)
    plan = changed(changed(plan, "certificate.objective", 8.0), "certificate.bound", 8.0)
    assert not check(plan, serving_request())
    assert rules(plan, serving_request(cluster=cluster(nodes=1))) == {Rule.DEVICES}


def test_cost_counts_every_replica() -> None:
    per_million = 4 * 2.0 / 3600 / 8.0 * 1e6
    assert not check(changed(serving_plan(), "predicted.cost_per_million_tokens", per_million), serving_request())


def test_quantised_weights_and_caches_take_their_own_bytes() -> None:
    workload = serving_request().workload
    assert isinstance(workload, ServingWorkload)
    request = serving_request(workload=replace(workload, precision=DType.FP8))
    assert not check(serving_plan(), request)
    half = changed(serving_plan(), "layout.stages.0.memory.weights_bytes", 1.0 * (128 + 4 * 232 + 128))
    half = changed(half, "layout.stages.0.memory.kv_cache_bytes", 480.0)
    half = changed(half, "predicted.peak_memory_bytes", flat(half).stages[0].memory.total_bytes)
    assert not check(half, request)
    wide = replace(request, workload=replace(workload, precision=DType.FP8, kv_dtype=DType.BF16))
    assert rules(half, wide) == {Rule.KV_CACHE}


def test_lengths_enter_the_cache_by_their_mean() -> None:
    workload = ServingWorkload("serving", PoissonArrivals("poisson", 2.0), LognormalLength(mean=30.0, p95=40.0), FixedLength(4))
    assert rules(serving_plan(), serving_request(workload=workload)) == {Rule.KV_CACHE}
