"""Pools of prefill and decode workers: search, plan, prediction, simulation and rules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.split_dims import RankGrid
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.api import predict, simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, Objective, ServingMode
from meshwright.solver.problem.launchers.servers import CacheMoves
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.layouts import layouts, prefill_layouts
from meshwright.solver.serving.forms.pools.pools import joined, placed
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import with_fields
from tests.support.serving_layouts import pools_of
from tests.unit.solver.serving.enumeration import best_objective, described, roomiest
from tests.unit.solver.serving.requests import cluster, serving_request

POOLS = Search(tp=(1, 2), pp=(1,), modes=(ServingMode.DISAGGREGATED,))
BOTH = replace(POOLS, modes=(ServingMode.AGGREGATED, ServingMode.DISAGGREGATED))

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def asked(*, search: Search = POOLS, **changes: object) -> ServingRequest:
    return serving_request(**({"rate": 9.0, "ttft_ms": 400.0, "tpot_ms": 12.0, "search": search} | changes))  # type: ignore[arg-type]


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


@pytest.mark.parametrize(
    ("rate", "ttft_ms", "tpot_ms"), [(3.0, 400.0, 12.0), (9.0, 400.0, 12.0), (9.0, 150.0, 8.0), (20.0, 600.0, 9.0)]
)
def test_the_search_finds_what_enumeration_finds(rate: float, ttft_ms: float, tpot_ms: float) -> None:
    request = asked(rate=rate, ttft_ms=ttft_ms, tpot_ms=tpot_ms, on=cluster(per_node=8))
    answer = plan(request)
    assert (answer.devices if answer.feasible else None) == best_objective(request, found=None)
    if answer.feasible:
        assert described(answer) == roomiest(request, answer)


def test_a_plan_says_everything() -> None:
    answer = plan(asked())
    pools = pools_of(answer)
    assert answer.predicted is not None
    assert answer.certificate.status is Status.OPTIMAL
    prefill, decode = (axes.tp * axes.pp for axes in (pools.prefill.axes, pools.decode.axes))
    assert answer.devices == pools.prefill.workers * prefill + pools.decode.load.replicas * decode
    assert answer.predicted.tokens_per_s == pytest.approx(900.0)
    # 2000 tokens of 128 KiB over at most two devices' NVLink at 450 GB/s.
    assert pools.prefill.transfer_s > 2000 * 131072 / (2 * 450e9)


def test_pools_win_only_with_fewer_devices() -> None:
    aggregated = plan(asked(search=replace(POOLS, modes=(ServingMode.AGGREGATED,))))
    apart, both = plan(asked()), plan(asked(search=BOTH))
    assert both.devices == min(aggregated.devices, apart.devices)
    assert isinstance(both.layout, Replicas) == (aggregated.devices <= apart.devices)


def test_a_plan_predicts_and_simulates_itself() -> None:
    request = asked()
    answer = plan(request)
    again = predict(request, answer)
    assert check(again, request) == ()
    assert again.predicted == answer.predicted
    assert pools_of(again).prefill == pools_of(answer).prefill
    found = simulate(request, answer)
    assert answer.predicted is not None
    assert found.ttft.p95.value == answer.predicted.ttft_p95_s
    assert found.missed == ()
    busier = predict(asked(rate=90.0), answer)
    assert busier.reason is not None
    assert busier.reason.need > busier.reason.have


def test_phases_may_run_on_different_devices() -> None:
    # One device of each type: no pool has room for the other beside it.
    groups = tuple(cluster(node=node, name=node, per_node=1).groups[0] for node in ("dgx-h100", "dgx-a100"))
    request = asked(on=Cluster(groups), rate=1.0, ttft_ms=1000.0, tpot_ms=40.0, objective=Objective.COST)
    answer = plan(request)
    pools = pools_of(answer)
    assert {pools.prefill.stages[0].devices[0].first, pools.decode.stages[0].devices[0].first} == {0, 1}
    # 2000 tokens of 128 KiB between nodes, each of whose cards carry 8 devices in the catalogue.
    assert pools.prefill.transfer_s > 2000 * 131072 / groups[0].node.inter.bytes_per_s


def test_goodput_of_pools_uses_the_cluster() -> None:
    request = asked(rate=1.0, objective=Objective.THROUGHPUT)
    answer = plan(request)
    assert pools_of(answer)
    assert answer.predicted is not None
    assert answer.predicted.tokens_per_s >= plan(asked(rate=1.0)).predicted.tokens_per_s  # type: ignore[union-attr]
    assert answer.devices == 4 or any("left over" in note for note in answer.notes)
    assert predict(request, answer).predicted == answer.predicted


def test_what_pools_can_not_be_asked() -> None:
    request = asked()
    clients = replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", 4)))
    with pytest.raises(WorkloadError, match="closed loop"):
        plan(clients)


def drafting(request: ServingRequest, *, memory_bytes: float = 1e9, acceptance: float = 0.7) -> ServingRequest:
    draft = Draft(DraftMethod.EAGLE, relative_cost=0.05, memory_bytes=memory_bytes)
    return replace(request, workload=replace(request.workload, speculation=Speculation(4, acceptance, draft)))


@pytest.mark.parametrize(("rate", "tpot_ms"), [(9.0, 12.0), (9.0, 5.0), (20.0, 9.0)])
def test_pools_that_draft_tokens_are_those_of_enumeration(rate: float, tpot_ms: float) -> None:
    request = drafting(asked(rate=rate, tpot_ms=tpot_ms, on=cluster(per_node=8)))
    answer = plan(request)
    assert (answer.devices if answer.feasible else None) == best_objective(request, found=None)
    if answer.feasible:
        assert described(answer) == roomiest(request, answer)


def test_drafts_make_tokens_of_pools_come_faster_and_prompts_not() -> None:
    plain, request = asked(tpot_ms=4.0), drafting(asked(tpot_ms=4.0))
    assert not plan(plain).feasible
    answer = plan(request)
    pools = pools_of(answer)
    assert "with drafted tokens pp is 1" in answer.certificate.space
    assert {axes.pp for axes in (pools.prefill.axes, pools.decode.axes)} == {1}
    assert predict(request, answer).predicted == answer.predicted
    found = simulate(request, answer)
    assert answer.predicted is not None and found.tpot is not None
    assert (found.ttft.p95.value, found.tpot.p95.value) == (answer.predicted.ttft_p95_s, answer.predicted.tpot_p95_s)
    # The same pools, none of whose proposals is kept.
    refused = simulate(drafting(request, acceptance=0.0), answer)
    assert refused.tpot is not None and refused.tpot.p95.value > 2.0 * found.tpot.p95.value


def test_the_checker_counts_the_draft_in_both_pools() -> None:
    request = drafting(asked(tpot_ms=4.0))
    answer = plan(request)
    heavier = check(answer, drafting(request, memory_bytes=2e10))
    assert {v.where.split(".")[1] for v in heavier if v.rule is Rule.WEIGHTS} == {"prefill", "stages[0]"}
    pool = pools_of(answer).prefill
    few = changed(answer, max_num_batched_tokens=5 * pool.max_num_seqs - 1)
    assert (Rule.BATCH, "plan.prefill.serving.max_num_batched_tokens") in {(v.rule, v.where) for v in check(few, request)}


def test_no_prefill_worker_that_drafts_shares_prompts() -> None:
    sharing = asked(search=replace(POOLS, cp=(1, 2), engine=ServingEngine.SGLANG))
    assert {layout.grid.cp for layout in prefill_layouts(sharing)} == {1, 2}
    assert {layout.grid.cp for layout in prefill_layouts(drafting(sharing))} == {1}


def changed(answer: Plan, **fields: object) -> Plan:
    pools = pools_of(answer)
    return replace(answer, layout=replace(pools, prefill=replace(pools.prefill, **fields)))  # type: ignore[arg-type]


def test_one_broken_thing_breaks_its_own_rules() -> None:
    request = asked()
    answer = plan(request)
    pools = pools_of(answer)
    pool = pools.prefill

    def rules(broken: Plan, of: ServingRequest = request) -> set[Rule]:
        return {violation.rule for violation in check(broken, of)}

    assert rules(answer, replace(request, search=replace(POOLS, modes=(ServingMode.AGGREGATED,)))) == {Rule.SEARCH}
    assert Rule.DEVICES in rules(changed(answer, workers=pool.workers + 1))
    assert rules(changed(answer, utilisation=1.0)) == {Rule.UTILISATION}
    assert rules(changed(answer, transfer_s=1e-9)) == {Rule.STAGE_TIME}
    assert Rule.LAYERS in rules(changed(answer, stages=()))
    taken = (DeviceRange(pools.decode.stages[0].devices[0].first, pool.stages[0].devices[0].count),)
    assert Rule.DEVICES in rules(changed(answer, stages=(replace(pool.stages[0], devices=taken),)))
    light = replace(pool.stages[0], memory=replace(pool.stages[0].memory, weights_bytes=1.0))
    assert Rule.WEIGHTS in rules(changed(answer, stages=(light,)))
    one_kind = with_fields(answer, prefill=None)
    assert Rule.DEVICES in rules(one_kind)


def test_wider_stages_come_first_so_that_none_straddles_nodes() -> None:
    small, large = (
        next(layout for layout in layouts(asked(on=cluster(per_node=8, nodes=2))) if layout.grid.tp == tp) for tp in (1, 2)
    )
    assert placed(small, 3, large, 2) == (4, 0)
    assert placed(large, 2, small, 3) == (0, 4)
    assert placed(large, 8, small, 1) is None


@pytest.mark.parametrize(("launcher", "engine"), [(Launcher.VLLM, ServingEngine.VLLM), (Launcher.SGLANG, ServingEngine.SGLANG)])
def test_pools_of_a_named_launcher_are_joined_by_it(launcher: Launcher, engine: ServingEngine) -> None:
    """Of a launcher that moves caches to a multiple of ranks, no decode worker has fewer ranks than prefill workers."""
    whole = replace(POOLS, launcher=launcher, engine=engine)
    assert isinstance(plan(asked(search=whole)).layout, Pools)
    narrower = CacheMoves(of_tp_alone=True, to_fewer_ranks=False)
    two, one = (SimpleNamespace(pp=1, grid=RankGrid(tp=tp)) for tp in (2, 1))
    assert joined(one, two, narrower)  # type: ignore[arg-type]
    assert not joined(two, one, narrower)  # type: ignore[arg-type]
    assert joined(two, one, CacheMoves(of_tp_alone=True, to_fewer_ranks=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "search",
    [
        replace(POOLS, launcher=Launcher.TENSORRT_LLM, engine=ServingEngine.TENSORRT_LLM),
        replace(POOLS, launcher=Launcher.VLLM, modes=(ServingMode.SWITCHED,)),
    ],
)
def test_a_named_launcher_is_not_planned_for_forms_that_it_does_not_start(search: Search) -> None:
    with pytest.raises(WorkloadError, match="starts no plans of this form"):
        plan(asked(search=search))
