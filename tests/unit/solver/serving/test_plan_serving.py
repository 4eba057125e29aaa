from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import ClusterError, WorkloadError
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Progress, ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, Recompute
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import LognormalLength
from meshwright.solver.serving import plan_serving, predict_serving
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise import evaluation
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.serving.workers.goodput import RATE_GRID, SUSTAINED_STEPS
from meshwright.solver.verify.check import check
from tests.support.serving_layouts import replicas_of
from tests.unit.solver.serving.enumeration import best_objective, described, roomiest
from tests.unit.solver.serving.requests import cluster, serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


def devices_needed(request: ServingRequest) -> float:
    answer = plan(request)
    return answer.devices if answer.feasible else math.inf


@pytest.mark.parametrize(
    ("rate", "ttft_ms", "tpot_ms", "output"),
    [
        (3.0, 500.0, 20.0, 100),
        (9.0, 400.0, 12.0, 100),
        (9.0, 120.0, 40.0, 100),
        (2.0, 150.0, 6.0, 100),
        (60.0, 300.0, 9.0, 100),
        # Kept only where a limit of 16 sequences holds requests back.
        (15.0, 1500.0, 9.0, 200),
    ],
)
def test_the_search_finds_what_enumeration_finds(rate: float, ttft_ms: float, tpot_ms: float, output: int) -> None:
    request = serving_request(rate=rate, ttft_ms=ttft_ms, tpot_ms=tpot_ms, output=output)
    answer = plan(request)
    assert (answer.devices if answer.feasible else None) == best_objective(request, found=None)
    if answer.feasible:
        assert described(answer) == roomiest(request, answer)


def test_of_equal_cost_the_roomiest_wins() -> None:
    # Two replicas of one device keep the promise as well as one of two, with less room.
    request = serving_request(rate=12.0, ttft_ms=1000.0, tpot_ms=16.0, search=Search(pp=(1,), kvp=(1,)))
    answer = plan(request)
    kept = {tp: plan(replace(request, search=replace(request.search, tp=(tp,)))) for tp in (1, 2)}
    alike = {tp: other for tp, other in kept.items() if other.feasible and other.devices == answer.devices}
    assert len(alike) > 1
    assert described(answer) in [described(other) for other in alike.values()]
    assert strain(answer, request) == min(strain(other, request) for other in alike.values())


def strain(answer: Plan, request: ServingRequest) -> float:
    """The largest share of a target that a plan's percentiles take."""
    assert answer.predicted is not None
    assert answer.predicted.ttft_p95_s is not None
    assert answer.predicted.tpot_p95_s is not None
    assert request.slo.p95_ttft_ms is not None
    assert request.slo.p95_tpot_ms is not None
    figures = (answer.predicted.ttft_p95_s, answer.predicted.tpot_p95_s)
    return max(1e3 * figures[0] / request.slo.p95_ttft_ms, 1e3 * figures[1] / request.slo.p95_tpot_ms)


def test_a_plan_says_everything() -> None:
    answer = plan(serving_request(rate=9.0, ttft_ms=400.0, tpot_ms=12.0))
    assert answer.certificate.status is Status.OPTIMAL
    assert answer.certificate.objective == answer.certificate.bound == answer.devices
    assert answer.predicted is not None
    replicas = replicas_of(answer)
    assert answer.predicted.tokens_per_s == pytest.approx(900.0)
    assert 0.0 < replicas.load.utilisation < 1.0
    assert answer.devices == replicas.load.replicas * replicas.axes.tp * replicas.axes.pp
    assert {"ttft_p95_s", "tpot_p95_s"} == set(answer.predicted.bands)
    for name, band in answer.predicted.bands.items():
        assert band.low <= getattr(answer.predicted, name) <= band.high
    assert replicas.stages[0].memory.kv_cache_bytes > replicas.stages[0].memory.weights_bytes


def test_a_plan_says_which_constraint_binds() -> None:
    slow = plan(serving_request(rate=4.0, ttft_ms=5000.0, tpot_ms=9.0))
    assert slow.notes[-1].startswith("Binds most, by the share of what is allowed that it takes: P95 TPOT (")
    late = plan(serving_request(rate=9.0, ttft_ms=120.0, tpot_ms=200.0))
    assert "it takes: P95 TTFT (" in late.notes[-1]
    assert late.notes[-1].index("P95 TTFT") < late.notes[-1].index("load")


def test_same_request_same_plan() -> None:
    request = serving_request(rate=9.0)
    assert plan(request) == plan(request)


def test_a_plan_predicts_itself() -> None:
    for objective in (Objective.DEVICES, Objective.THROUGHPUT):
        request = serving_request(rate=5.0, objective=objective)
        answer = plan(request)
        again = predict_serving(request, answer)
        assert check(again, request) == ()
        assert again.predicted == answer.predicted
        assert again.layout == answer.layout
        assert again.certificate.bound is None


def test_batch_limits_of_ones_own_sustain_a_rate_too() -> None:
    request = serving_request(rate=1.0, objective=Objective.THROUGHPUT)
    answer = plan(request)
    replicas = replicas_of(answer)
    own = replace(answer, layout=replace(replicas, load=replace(replicas.load, max_num_seqs=5, max_num_batched_tokens=1000)))
    again = predict_serving(request, own)
    assert check(again, request) == ()
    assert certified(answer) < certified(again) < 1.0


def test_without_targets_a_rate_costs_few_simulations_and_is_sustained() -> None:
    request = serving_request(rate=1.0, ttft_ms=None, tpot_ms=None, objective=Objective.THROUGHPUT)
    answer = plan(request)
    evaluator, candidate, _ = given_candidate(request, replicas_of(answer).workers)
    rate, replicas = 1.0 / certified(answer), replicas_of(answer).workers.count
    shares = [Share(rate / each, replicas) for each in (1.0, 1.2, 1.5, 2.0)]
    assert all(evaluator.measure(candidate, share).keeps for share in shares)
    assert not evaluator.measure(candidate, Share(rate * RATE_GRID, replicas)).keeps
    assert predict_serving(request, answer).search.evaluated < SUSTAINED_STEPS / 2


def test_prediction_refuses_what_breaks_the_promise() -> None:
    request = serving_request(rate=9.0)
    answer = plan(request)
    busier = predict_serving(serving_request(rate=90.0), answer)
    assert not busier.feasible
    assert busier.reason is not None
    assert busier.reason.need > busier.reason.have
    fuller = predict_serving(serving_request(on=cluster(node="l4-pcie"), model_name="qwen3-32b"), answer)
    assert fuller.reason is not None
    assert fuller.reason.constraint == "memory"


def test_one_device_less_would_not_do() -> None:
    request = serving_request(rate=20.0, ttft_ms=400.0, tpot_ms=20.0)
    answer = plan(request)
    assert answer.devices > 1
    smaller = replace(request, cluster=cluster(per_node=answer.devices - 1))
    assert not plan(smaller).feasible


@pytest.mark.parametrize(
    "change", [{"rate": 2.0}, {"ttft_ms": 2000.0}, {"tpot_ms": 60.0}, {"ttft_ms": None}, {"precision": DType.FP8}]
)
def test_asking_less_never_takes_more_devices(change: dict[str, object]) -> None:
    hard = {"rate": 20.0, "ttft_ms": 300.0, "tpot_ms": 15.0}
    needed = devices_needed(serving_request(**hard))
    assert math.isfinite(needed)
    assert devices_needed(serving_request(**(hard | change))) <= needed


def test_a_faster_device_never_takes_more() -> None:
    hard = {"rate": 8.0, "ttft_ms": 600.0, "tpot_ms": 25.0}
    slow, fast = (devices_needed(serving_request(**hard, on=cluster(node=node))) for node in ("dgx-a100", "dgx-h100"))
    assert math.isfinite(slow)
    assert fast <= slow


def test_goodput_grows_with_the_cluster() -> None:
    small, large = (
        plan(serving_request(rate=1.0, objective=Objective.THROUGHPUT, on=cluster(nodes=nodes))) for nodes in (1, 2)
    )
    assert small.predicted is not None
    assert large.predicted is not None
    assert large.predicted.tokens_per_s == pytest.approx(2 * small.predicted.tokens_per_s, rel=0.08)
    assert small.certificate.objective == pytest.approx(100.0 / small.predicted.tokens_per_s)


def test_a_rate_above_one_that_is_missed_is_no_goodput(monkeypatch: pytest.MonkeyPatch) -> None:
    request = serving_request(rate=1.0, objective=Objective.THROUGHPUT, search=Search(tp=(2,), pp=(1,)))
    highest = 1.0 / certified(plan(request))
    measure = evaluation.Evaluator.measure

    def unlucky(self: evaluation.Evaluator, candidate: Candidate, share: Share, *, within: float = 1.0) -> Measured:
        measured = measure(self, candidate, share, within=within)
        return replace(measured, keeps=measured.keeps and not 0.955 < share.load / highest < 0.985)

    monkeypatch.setattr(evaluation.Evaluator, "measure", unlucky)
    answer = plan(request)
    assert 0.94 < 1.0 / certified(answer) / highest < 0.955
    assert best_objective(request, found=certified(answer)) == pytest.approx(certified(answer))
    assert certified(predict_serving(request, answer)) == certified(answer)


def certified(answer: Plan) -> float:
    assert answer.certificate.objective is not None
    return answer.certificate.objective


def test_cheaper_devices_win_on_cost() -> None:
    groups = (cluster(node="dgx-h100", name="fast").groups[0], cluster(node="dgx-a100", name="cheap").groups[0])
    request = serving_request(rate=2.0, ttft_ms=2000.0, tpot_ms=50.0, objective=Objective.COST, on=Cluster(groups))
    answer = plan(request)
    ranks = replicas_of(answer).stages[0].devices[0]
    assert ranks.first >= 4, "the A100 node holds ranks 4 to 7"
    prices = [group.node.device.price_per_hour for group in groups]
    assert answer.certificate.objective == answer.devices * min(price for price in prices if price)


def test_restrictions_are_kept() -> None:
    answer = plan(serving_request(rate=3.0, search=Search(tp=(2,), pp=(2,), dp=(1,))))
    replicas = replicas_of(answer)
    assert (replicas.axes.dp, replicas.axes.tp, replicas.axes.pp) == (1, 2, 2)
    assert [len(stage.blocks) for stage in replicas.stages] == [2, 2]
    assert [stage.devices[0].first for stage in replicas.stages] == [0, 2]


def test_lengths_that_spread() -> None:
    request = serving_request(prompt=LognormalLength(1000.0, 3000.0), output=LognormalLength(100.0, 250.0))
    assert plan(request).feasible


def test_progress_tells_the_best_and_ends_at_the_total() -> None:
    seen: list[Progress] = []
    plan_serving(serving_request(), stop=never_stop, progress=seen.append)
    assert [p.done for p in seen] == list(range(1, seen[-1].total + 1))
    bests = [p.best for p in seen if p.best is not None]
    assert bests == sorted(bests, reverse=True)


@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.THROUGHPUT])
def test_a_stopped_search_claims_no_more_than_it_proved(objective: Objective) -> None:
    calls = itertools.count()
    request = serving_request(rate=3.0, objective=objective)
    whole = plan(request)
    answer = plan_serving(request, stop=lambda: next(calls) >= 2, progress=ignore_progress)
    assert check(answer, request) == ()
    if answer.feasible:
        assert answer.certificate.bound is not None
        assert whole.certificate.objective is not None
        assert answer.certificate.bound <= whole.certificate.objective


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"tpot_ms": 1.0}, "p95_tpot"),
        ({"ttft_ms": 10.0}, "p95_ttft"),
        ({"rate": 1000.0}, "requests_per_s"),
        ({"model_name": "llama-3.1-405b"}, "memory"),
        ({"search": Search(tp=(3,))}, "divisibility"),
    ],
)
def test_infeasible_requests_name_the_tightest_constraint(change: dict[str, object], constraint: str) -> None:
    answer = plan(serving_request(**change))
    assert not answer.feasible
    assert answer.reason is not None
    assert answer.reason.constraint == constraint
    assert answer.reason.remedies


def test_the_reason_holds_at_its_word() -> None:
    refused = plan(serving_request(tpot_ms=1.0, ttft_ms=None, rate=0.05)).reason
    assert refused is not None
    assert plan(serving_request(tpot_ms=refused.need * 1.05, ttft_ms=None, rate=0.05)).feasible


@pytest.mark.parametrize(
    "search",
    [Search(cp=(2,)), Search(microbatch=(1,)), Search(recompute=(Recompute.FULL,)), Search(zero_stages=(1,))],
)
def test_restrictions_of_training_are_refused(search: Search) -> None:
    with pytest.raises(WorkloadError, match="training"):
        plan(serving_request(search=search))


def test_what_can_not_be_meant_is_refused() -> None:
    with pytest.raises(WorkloadError, match="objective"):
        plan(serving_request(objective=Objective.STEP_TIME))
    with pytest.raises(ClusterError, match="no matrix unit for bf16"):
        plan(serving_request(precision=DType.FP8, on=cluster(node="dgx-1-v100")))
