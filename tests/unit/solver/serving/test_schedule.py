"""Plans for loads that change over a day: targets hold at each rate, and fewer replicas do at most of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import predict, simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import PoissonArrivals, RateInterval, ScheduleArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.forms.kinds.answer import kind_requests
from meshwright.solver.serving.promise.question import measurements
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.serving_layouts import replicas_of
from tests.unit.solver.serving.requests import serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")

RATES = (20.0, 0.0, 6.0, 20.0)
SEARCH = Search(tp=(1,), pp=(1,))


def at_rates(*rates: float, search: Search = SEARCH, objective: Objective = Objective.DEVICES) -> ServingRequest:
    request = serving_request(rate=20.0, ttft_ms=600.0, tpot_ms=14.0, search=search, objective=objective)
    schedule = ScheduleArrivals("schedule", tuple(RateInterval(3600.0, rate) for rate in rates))
    return replace(request, workload=replace(request.workload, arrivals=schedule))


def at_one_rate(request: ServingRequest, rate: float) -> ServingRequest:
    return replace(request, workload=replace(request.workload, arrivals=PoissonArrivals("poisson", rate)))


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


def test_the_plan_is_that_of_the_busiest_interval() -> None:
    request = at_rates(*RATES)
    answer, busiest = plan(request), plan(at_one_rate(request, 20.0))
    assert (answer.layout, answer.predicted) == (busiest.layout, busiest.predicted)
    assert predict(request, answer).predicted == answer.predicted


def test_every_rate_is_simulated_once_and_says_how_many_replicas_would_do() -> None:
    request = at_rates(*RATES)
    answer = plan(request)
    found = simulate(request, answer)
    assert [(rate.requests_per_s, rate.seconds) for rate in found.rates] == [(20.0, 7200.0), (0.0, 3600.0), (6.0, 3600.0)]
    busiest, night, evening = found.rates
    assert answer.predicted is not None and found.missed == ()
    assert (busiest.ttft_s, busiest.tpot_s) == (answer.predicted.ttft_p95_s, answer.predicted.tpot_p95_s)
    assert busiest.replicas == replicas_of(answer).load.replicas
    assert (night.replicas, night.ttft_s, night.missed) == (0, None, ())
    assert evening.ttft_s is not None and evening.ttft_s < busiest.ttft_s
    # By trying each number of replicas.
    evaluator, candidate, share = given_candidate(at_one_rate(request, 6.0), replicas_of(answer).workers)
    keeps = [
        any(m.keeps for m in measurements(evaluator, [candidate], replace(share, replicas=n)))
        for n in range(1, replicas_of(answer).load.replicas + 1)
    ]
    assert evening.replicas == keeps.index(True) + 1 < busiest.replicas


def test_a_rate_that_is_too_much_is_named() -> None:
    answer = plan(at_rates(6.0))
    found = simulate(at_rates(6.0, 60.0), answer)
    assert found.missed and found.rates[1].replicas is None
    assert found.rates[0].missed == ()


def test_the_checker_holds_a_plan_to_the_busiest_interval() -> None:
    answer = plan(at_rates(6.0))
    assert answer.predicted is not None
    promised = answer.predicted.ttft_promised_s
    assert promised is not None
    tight = replace(at_rates(6.0, 3.0), slo=replace(at_rates(6.0).slo, p95_ttft_ms=0.9e3 * promised))
    assert Rule.SLO in {violation.rule for violation in check(answer, tight)}
    assert predict(at_rates(3.0, 60.0), answer).reason is not None


def test_pools_are_planned_for_a_schedule() -> None:
    request = at_rates(9.0, 3.0, search=replace(SEARCH, modes=(ServingMode.DISAGGREGATED,)))
    found = simulate(request, plan(request))
    assert [rate.replicas for rate in found.rates] == [None, None]
    assert found.rates[1].ttft_s is not None and found.missed == ()


def test_kinds_of_workers_take_their_share_of_every_interval() -> None:
    first, second = kind_requests(at_rates(10.0, 5.0), (0.25, 0.75), (3.0, 9.0))
    rates = [[interval.requests_per_s for interval in each.workload.arrivals.intervals] for each in (first, second)]  # type: ignore[union-attr]
    assert rates == [[3.0, 1.5], [9.0, 4.5]]


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.ENERGY])
def test_objectives_of_one_rate_are_refused(objective: Objective) -> None:
    with pytest.raises(WorkloadError, match="a schedule has several"):
        plan_serving(at_rates(*RATES, objective=objective), stop=never_stop, progress=ignore_progress)
