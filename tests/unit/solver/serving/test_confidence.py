"""Targets at a confidence: the search, enumeration and the checker ask the same of simulated percentiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.results import Percentile
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import worker_layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.enumeration import best_objective, described, roomiest
from tests.unit.solver.serving.requests import serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def planned(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.9, 0.99])
@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.ENERGY])
def test_the_search_finds_what_enumeration_finds_at_any_confidence(confidence: float, objective: Objective) -> None:
    request = serving_request(rate=6.0, ttft_ms=420.0, tpot_ms=14.0, objective=objective, confidence=confidence)
    answer = planned(request)
    assert answer.certificate.objective == pytest.approx(best_objective(request, found=None))
    if answer.feasible and objective is Objective.DEVICES:
        assert described(answer) == roomiest(request, answer)


def test_pools_keep_their_own_law() -> None:
    search = Search(modes=(ServingMode.DISAGGREGATED,), tp=(1, 2), pp=(1,))
    request = serving_request(rate=2.0, ttft_ms=900.0, tpot_ms=14.0, search=search, confidence=0.9)
    answer = planned(request)
    assert answer.certificate.objective == best_objective(request, found=None)
    own, both = promised_of(request, pools=True), promised_of(request)
    assert own.simulated.ttft_s < both.simulated.ttft_s


def test_a_plan_states_median_promise_and_chance() -> None:
    request = serving_request(ttft_ms=500.0, tpot_ms=20.0, confidence=0.9)
    predicted = planned(request).predicted
    assert predicted is not None and predicted.ttft_p95_s and predicted.ttft_promised_s and predicted.tpot_promised_s
    assert predicted.ttft_p95_s < predicted.ttft_promised_s <= 0.5
    assert predicted.tpot_promised_s <= 0.020
    assert predicted.chance_ttft_missed is not None and 0.0 < predicted.chance_ttft_missed < 0.1
    assert predicted.bands["ttft_p95_s"].low < predicted.ttft_p95_s < predicted.bands["ttft_p95_s"].high
    without = planned(replace(request, slo=replace(request.slo, p95_ttft_ms=None))).predicted
    assert without is not None and without.chance_ttft_missed is None and without.chance_tpot_missed is not None


def test_an_open_loop_is_promised_with_slower_steps() -> None:
    """Its replica keeps the targets under a load that is as much nearer too; a closed loop's law is of times alone."""
    request = serving_request(rate=6.0, ttft_ms=500.0, tpot_ms=20.0, confidence=0.9)
    promised = promised_of(request)
    assert promised.slowed is not None and promised.slowed.slowdown == pytest.approx(1.253, abs=2e-3)
    clients = replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", 4)))
    assert promised_of(clients).slowed is None
    assert promised_of(replace(request, slo=replace(request.slo, confidence=0.5))).slowed is None
    evaluator = Evaluator(request.workload, promised, request.search.seed)
    plain = Evaluator(request.workload, replace(promised, slowed=None), request.search.seed)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    engine = builder.engine(next(iter(worker_layouts(request))))
    kept = 0
    for candidate in evaluator.candidates(engine):
        for rate in (1.0, 2.0, 4.0, 6.0):
            with_slower, without = (each.measure(candidate, Share(rate)) for each in (evaluator, plain))
            assert with_slower.keeps <= without.keeps
            assert with_slower.ttft.value == without.ttft.value or with_slower.missed
            if with_slower.keeps:
                kept += 1
                assert plain.measure(candidate, Share(rate * promised.slowed.slowdown)).tpot.value <= evaluator.targets.tpot_s
                assert with_slower.tpot.high >= without.tpot.high
    assert kept


def test_what_slower_steps_promise_is_asked_of_both_simulations_alike() -> None:
    promised = promised_of(serving_request(ttft_ms=500.0, tpot_ms=20.0, confidence=0.9))
    allowed = promised.simulated
    most = promised.slowed_targets(allowed)
    first, later = Percentile(0.01, 0.01, 0.01), Percentile(0.001, 0.001, 0.001)
    slower = (Percentile(most.ttft_s, 0.0, most.ttft_s), Percentile(most.tpot_s, 0.0, most.tpot_s))
    ttft, tpot = promised.with_slowed(first, later, slower=slower)
    assert (ttft.value, tpot.value) == (0.01, 0.001)
    assert (ttft.high, tpot.high) == pytest.approx((allowed.ttft_s, allowed.tpot_s))


def test_the_checker_finds_a_promise_that_is_too_good() -> None:
    request = serving_request(confidence=0.9)
    answer = planned(request)
    assert answer.predicted is not None and answer.predicted.ttft_promised_s is not None
    hopeful = replace(answer, predicted=replace(answer.predicted, ttft_promised_s=answer.predicted.ttft_p95_s))
    assert {violation.rule for violation in check(hopeful, request)} == {Rule.SLO}
    surer = replace(request, slo=replace(request.slo, confidence=0.99))
    assert {violation.rule for violation in check(answer, surer)} == {Rule.SLO}
    tight = replace(request, slo=replace(request.slo, p95_ttft_ms=answer.predicted.ttft_promised_s * 990.0))
    assert {violation.rule for violation in check(answer, tight)} == {Rule.SLO}


def test_more_confidence_never_takes_fewer_devices() -> None:
    devices = []
    for confidence in (0.5, 0.9, 0.99):
        answer = planned(serving_request(rate=12.0, ttft_ms=300.0, tpot_ms=14.0, confidence=confidence))
        devices.append(answer.devices if answer.feasible else 1000)
    assert devices == sorted(devices) and devices[0] < devices[-1]


def test_an_infeasible_answer_says_what_is_promised() -> None:
    answer = planned(serving_request(tpot_ms=7.0, search=Search(tp=(1,), pp=(1,)), confidence=0.9))
    assert answer.reason is not None and answer.reason.constraint == "p95_tpot"
    assert "at slo.confidence 0.9" in answer.reason.message
    assert answer.reason.need > answer.reason.have == 7.0


@pytest.mark.parametrize("search", [Search(risk=0.2), Search(price_risk=0.4)])
def test_the_risk_of_memory_is_refused(search: Search) -> None:
    with pytest.raises(WorkloadError, match=r"search.risk is of training plans"):
        planned(serving_request(search=search))
